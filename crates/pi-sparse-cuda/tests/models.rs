//! Whole models with parts on a CUDA device: the logits are those of the CPU alone. On the emulated driver, or with
//! `PI_CUDA_TEST=real` on a GPU.

use pi_cuda_emu::use_driver;
use pi_engine::{
    Engine, EngineBuilder, LayerPlan, Plan, Predictors, SessionOptions, Side, Sparsity, StepToken,
    pi_core::{KvType, NeuronSet, QuantType},
    pi_sparse_cpu::Kernels,
};
use pi_gguf::{File, Kind};
use pi_sparse_cuda::Cuda;
use pi_testkit::{TinyModel, synth::Family};
use std::sync::Arc;

/// On the CPU exactly, so that what differs is the device's.
fn exact() -> EngineBuilder {
    Engine::builder().kernels(Kernels::reference()).threads(1).kv(KvType::F32)
}

/// Logits after each of nine tokens, `batch` at a time.
fn logits(engine: &Engine, batch: usize) -> Vec<f32> {
    let options = SessionOptions { batch, logits: batch, ..Default::default() };
    let mut session = engine.session(&options).unwrap();
    let tokens: Vec<u32> = (0..9).map(|i| 5 + 7 * i).collect();
    let mut all = Vec::new();
    for part in tokens.chunks(batch) {
        let step: Vec<_> = part.iter().map(|token| StepToken { token: *token, seq: 0, logits: true }).collect();
        session.step(&step).unwrap();
        (0..part.len()).for_each(|i| all.extend_from_slice(session.logits(i).unwrap()));
    }
    all
}

fn agree(what: &str, file: &File, settings: &dyn Fn() -> EngineBuilder) {
    match use_driver() {
        Ok(()) => {}
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "{e}");
            return eprintln!("SKIPPED: {e}");
        }
    }
    let cpu = settings().load(file).unwrap();
    let n = cpu.config().neurons;
    let third = NeuronSet::some(n, (0..n as u32).filter(|i| i % 3 != 1).collect()).unwrap();
    for (hot, dense) in [
        (NeuronSet::all(n), Side::Accelerator),
        (third.clone(), Side::Accelerator),
        (third, Side::Cpu),
        (NeuronSet::none(n), Side::Accelerator),
    ] {
        let layers = vec![LayerPlan { dense, hot: hot.clone() }; cpu.config().layers];
        let cuda = Arc::new(Cuda::open(0).unwrap());
        let both = settings().accelerator(cuda, Plan { layers, head: dense }).load(file).unwrap();
        for batch in [1, 4] {
            let (got, want) = (logits(&both, batch), logits(&cpu, batch));
            let size = want.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / size;
            // sums in another order
            assert!(off <= 2e-5, "{what}: {} hot, dense parts on {dense:?}, steps of {batch}: off by {off}", hot.len());
        }
    }
}

#[test]
fn logits_do_not_depend_on_the_device() {
    for ty in [QuantType::F16, QuantType::Q4_0] {
        let file = TinyModel { neuron_major: true, ..TinyModel::wide(ty) }.file();
        for sparsity in [Sparsity::Off, Sparsity::Exact] {
            agree(&format!("{ty}, {sparsity:?}"), &file, &|| exact().sparsity(sparsity));
        }
    }
}

#[test]
fn logits_do_not_depend_on_the_device_when_predictors_choose() {
    for (family, tied) in
        [(Family::Llama, false), (Family::Bamboo, false), (Family::Falcon, false), (Family::Opt, true)]
    {
        let model = TinyModel {
            kind: Kind::PowerInfer,
            neuron_major: true,
            hidden_act: None,
            rank: Some(32),
            gate_shift: -0.5,
            family,
            tied,
            ..TinyModel::default()
        };
        let predictors = || exact().sparsity(Sparsity::Predictor).predictors(Predictors::default());
        agree(&format!("{family:?}"), &model.file(), &predictors);
    }
}
