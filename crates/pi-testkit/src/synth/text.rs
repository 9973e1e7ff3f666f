//! The tokens that a model is calibrated with, and their hidden states.

use super::{
    layout::{EPS, POSITION_OFFSET},
    math::Source,
    model::{BIAS, SynthModel},
    shape::Family,
    stream::as_stored,
    vocab::Vocab,
};

/// Tokens whose neurons' inputs decide the biases.
const CALIBRATION: usize = 128;
/// Tokens of other texts that tell what came out.
const HELD_OUT: usize = 64;
/// Tokens of a text. Those of one text resemble each other, the more the deeper the layer, so there must be several texts.
const LONGEST: usize = 16;
/// Deviation of a learned position's numbers; the embedding's is 1.
const POSITION: f32 = 0.3;

/// Random tokens in texts of at most [`LONGEST`], each beginning with the begin-of-text token.
pub(super) struct Text {
    ids: Vec<usize>,
    /// Per token: where its text begins.
    pub starts: Vec<usize>,
    /// How many of the tokens are for calibration; the others are held out.
    pub calibration: usize,
}

impl Text {
    pub fn new(model: &SynthModel) -> Self {
        let (vocab, random) = (Vocab::of(model.family), Source::new(model.seed, "text").row(0));
        let longest = model.shape.context.min(LONGEST);
        let (mut ids, mut starts) = (Vec::new(), Vec::<usize>::new());
        for t in 0..CALIBRATION + HELD_OUT {
            let start = match starts.last() {
                Some(&start) if t - start < longest && t != CALIBRATION => start,
                _ => t,
            };
            let any = vocab.special + random.bits(t as u32) as usize % (model.shape.vocab - vocab.special);
            ids.push(if start == t { vocab.bos } else { any });
            starts.push(start);
        }
        Self { ids, starts, calibration: CALIBRATION }
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// The hidden states before the first layer, as the stored embedding gives them.
    pub fn embedded(&self, model: &SynthModel) -> Vec<f32> {
        let (d, mut bytes) = (model.shape.dim, Vec::new());
        let mut h = vec![0.0; self.len() * d];
        let mut position = vec![0.0; d];
        for (t, h) in h.chunks_exact_mut(d).enumerate() {
            embedding(model)(self.ids[t], h);
            as_stored(model.ty, h, &mut bytes);
            if model.family == Family::Opt {
                position.fill(0.0);
                positions(model)(t - self.starts[t] + POSITION_OFFSET, &mut position);
                as_stored(model.ty, &mut position, &mut bytes);
                h.iter_mut().zip(&position).for_each(|(h, p)| *h += p);
            }
        }
        h
    }
}

/// Rows of the embedding.
pub(super) fn embedding(model: &SynthModel) -> impl Fn(usize, &mut [f32]) + Sync {
    let (source, constant) = (Source::new(model.seed, "token_embd"), model.constant());
    let vocab = Vocab::of(model.family);
    // Where the embedding is the head as well, a token with nothing but the constant is never the likeliest.
    let empty = if model.family == Family::Opt { vocab.special } else { 0 };
    move |id, row| {
        row[..BIAS].fill(constant);
        if id >= empty || id == vocab.bos {
            source.row(id).fill(BIAS, &mut row[BIAS..], 1.0);
        }
    }
}

/// Rows of the learned positions.
pub(super) fn positions(model: &SynthModel) -> impl Fn(usize, &mut [f32]) + Sync {
    let source = Source::new(model.seed, "position_embd");
    move |position, row| source.row(position).fill(BIAS, &mut row[BIAS..], POSITION)
}

/// Hidden states after a norm with weights 1, and what they were divided by.
pub(super) fn norm(model: &SynthModel, h: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let d = model.shape.dim;
    let (mut x, mut scales) = (h.to_vec(), Vec::new());
    for x in x.chunks_exact_mut(d) {
        if model.has_norm_bias() {
            let mean = (x.iter().map(|&v| f64::from(v)).sum::<f64>() / d as f64) as f32;
            x.iter_mut().for_each(|v| *v -= mean);
        }
        let square = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / d as f64;
        let scale = (square + f64::from(EPS)).sqrt() as f32;
        x.iter_mut().for_each(|v| *v /= scale);
        scales.push(scale);
    }
    (x, scales)
}

/// A matrix the other way round.
pub(super) fn transposed(m: &[f32], cols: usize) -> Vec<f32> {
    let rows = m.len() / cols;
    (0..m.len()).map(|i| m[i % rows * cols + i / rows]).collect()
}
