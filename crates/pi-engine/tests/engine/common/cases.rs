//! Models, settings and conversations for the law that placement changes nothing, drawn from a generator.
#![allow(dead_code)] // each test file uses a part

use super::{exact, ids, placed::TOLERANCE};
use pi_core::{KvType, QuantType};
use pi_engine::{Engine, EngineBuilder, Predictors, SessionOptions, Sparsity, StepToken};
use pi_gguf::Kind;
use pi_testkit::{Random, TinyModel, synth::Family};

/// A conversation in several sequences: how long each prompt is, in which pieces it is computed, how many steps follow.
#[derive(Clone, Debug)]
pub struct Talk {
    pub prompts: Vec<usize>,
    pub piece: usize,
    pub steps: usize,
    pub seed: u64,
}

impl Talk {
    /// Up to 8 sequences, prompts of 1 to 70 tokens; of many sequences shorter ones, for the sake of time.
    pub fn any(random: &mut Random) -> Self {
        let sequences = 1 + random.below(8);
        let longest = [70, 70, 40, 20][(sequences - 1) / 2];
        Self {
            prompts: (0..sequences).map(|_| 1 + random.below(longest)).collect(),
            piece: 1 + random.below(70),
            steps: 1 + random.below(3),
            seed: random.below(1 << 30) as u64,
        }
    }

    /// Every logit, and how many neurons were let through and contributed, per layer.
    pub fn hold(&self, engine: &Engine) -> (Vec<Vec<f32>>, Vec<[u64; 2]>) {
        let sequences = self.prompts.len();
        let options = SessionOptions { context: Some(80), batch: self.piece.max(8), sequences, logits: 8 };
        let mut s = engine.session(&options).expect("a session");
        let mut seen = Vec::new();
        for (seq, &len) in (0u32..).zip(&self.prompts) {
            let tokens = ids(len, self.seed + u64::from(seq));
            for (i, part) in tokens.chunks(self.piece).enumerate() {
                let last = (i + 1) * self.piece >= len;
                let logits = |k| last && k + 1 == part.len();
                let step: Vec<_> =
                    part.iter().enumerate().map(|(k, &token)| StepToken { token, seq, logits: logits(k) }).collect();
                s.step(&step).expect("a step");
            }
            seen.push(s.logits(0).expect("logits").to_vec());
        }
        for i in 0..self.steps {
            let token = |seq: u32| (self.seed as u32 / 7 + 31 * i as u32 + 13 * seq) % 288;
            let step: Vec<_> =
                (0..sequences as u32).map(|seq| StepToken { token: token(seq), seq, logits: true }).collect();
            s.step(&step).expect("a step");
            seen.extend((0..sequences).map(|k| s.logits(k).expect("logits").to_vec()));
        }
        let (stats, of) = (s.stats(), engine.config().neurons);
        let count = |share: f32| (f64::from(share) * stats.tokens as f64 * of as f64).round() as u64;
        let counts = stats.marked.iter().zip(&stats.active).map(|(m, a)| [count(*m), count(*a)]).collect();
        (seen, counts)
    }
}

/// A family, as its files are.
pub fn family(random: &mut Random, ty: QuantType) -> TinyModel {
    let base = TinyModel {
        ty,
        layers: 1 + random.below(3),
        neurons: 40 + random.below(120),
        neuron_major: true,
        rank: Some(256),
        kind: Kind::PowerInfer,
        hidden_act: None,
        gate_shift: -0.5,
        seed: random.below(1 << 20) as u64,
        ..TinyModel::wide(ty)
    };
    match random.below(6) {
        0 => base,
        1 => TinyModel { qkv_bias: true, ..base },
        2 => TinyModel { family: Family::Bamboo, ..base },
        3 => TinyModel { family: Family::Falcon, ..base },
        4 => TinyModel { family: Family::Falcon, two_norms: true, ..base },
        _ => TinyModel { family: Family::Opt, kv_heads: 4, tied: true, ..base },
    }
}

pub fn skipping(random: &mut Random) -> (Sparsity, Predictors) {
    match random.below(5) {
        0 => (Sparsity::Off, Predictors::default()),
        1 => (Sparsity::Exact, Predictors::default()),
        2 => (Sparsity::Predictor, Predictors::default()),
        3 => (Sparsity::Predictor, Predictors::Oracle),
        _ => (Sparsity::Predictor, Predictors::Sign { margin: 0.0 }),
    }
}

#[derive(Debug)]
pub struct Case {
    pub model: TinyModel,
    pub skipping: (Sparsity, Predictors),
    pub kv: KvType,
    pub threads: usize,
    pub talk: Talk,
}

impl Case {
    pub fn any(random: &mut Random, ty: QuantType) -> Self {
        Self {
            model: family(random, ty),
            skipping: skipping(random),
            kv: [KvType::F32, KvType::F16, KvType::Q8_0][random.below(3)],
            threads: 1 + random.below(4),
            talk: Talk::any(random),
        }
    }

    pub fn settings(&self) -> EngineBuilder {
        let (sparsity, predictors) = self.skipping.clone();
        exact().sparsity(sparsity).predictors(predictors).kv(self.kv)
    }

    /// How many of so many neurons may have a gate, or a predicted one, that is all but 0, so that it falls on either side of it.
    pub fn flips(&self, of: u64) -> u64 {
        match self.kv {
            KvType::F32 => 1,
            _ => 1 + of / 500,
        }
    }

    /// Keys and values that are rounded may be rounded the other way.
    pub fn tolerance(&self) -> f64 {
        match self.kv {
            KvType::F32 => TOLERANCE,
            _ => 2e-3,
        }
    }
}
