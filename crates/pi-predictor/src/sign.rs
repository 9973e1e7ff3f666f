//! Prediction from signs alone (SparseInfer, arXiv 2411.12692).
//!
//! A gate is a sum of products. If most of the products are negative, so is the sum, usually. The signs of the weights are
//! packed once, one bit each; for a token the signs of its input are packed, and the negative products of a neuron are the
//! bits in which the two differ.

use crate::words::Words;
use pi_core::{ActiveSet, Error, Executor, Hidden, Limits, Matrix, Predictor, PredictorRun, Result, SignKernels};
use std::sync::Arc;

/// Marks neurons whose gates have few enough negative products. Reads the FFN's input, not the residual stream.
pub struct Sign {
    /// `[neurons, words]`: signs of the gate's rows, 1 for negative; beyond the width 0.
    signs: Vec<u64>,
    words: usize,
    dim: usize,
    neurons: usize,
    /// Most negative products of a neuron that is marked.
    most: u32,
    kernels: SignKernels,
    exec: Arc<dyn Executor>,
}

impl Sign {
    /// From a gate matrix `[neurons, dim]`. `margin` is the share of the products by which negative ones may outnumber half: 0
    /// marks neurons with as many positive products as negative ones, higher values more of them, −0.5 (nearly) none and 0.5
    /// all.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the margin is outside −0.5 to 0.5; [`Error::Device`] if there is no memory.
    pub fn new(gate: &Matrix, margin: f32, exec: Arc<dyn Executor>) -> Result<Self> {
        let (dim, neurons, words) = (gate.cols(), gate.rows(), gate.cols().div_ceil(64));
        if !(-0.5..=0.5).contains(&margin) {
            return Err(Error::unsupported(format!("a margin of {margin}"), "expected a share from -0.5 to 0.5"));
        }
        let mut signs = Vec::new();
        signs.try_reserve_exact(neurons * words).map_err(|_| Error::Device {
            device: "host".into(),
            message: format!("no memory for the signs of {}", gate.name()),
        })?;
        signs.resize(neurons * words, 0);
        let (view, decode) = (gate.view(), gate.ty().info().decode);
        let mut row = vec![0.0; dim];
        for (neuron, signs) in signs.chunks_exact_mut(words.max(1)).enumerate() {
            decode(view.row(neuron), &mut row);
            (SignKernels::PLAIN.pack)(&row, signs);
        }
        let most = ((0.5 + f64::from(margin)) * dim as f64).floor() as u32;
        Ok(Self { signs, words, dim, neurons, most, kernels: SignKernels::PLAIN, exec })
    }

    /// The same, but signs of inputs are packed and compared by `kernels`: those of a device
    /// ([`Device::signs`](pi_core::Device::signs)) know its instructions. The marks are the same.
    pub fn with_kernels(mut self, kernels: SignKernels) -> Self {
        self.kernels = kernels;
        self
    }

    /// Words of packed signs of one input.
    pub fn words(&self) -> usize {
        self.words
    }

    /// How many products of each neuron are negative for an input whose signs are `x`
    /// ([`SignKernels::pack`]). Margins compare with their share of all products.
    pub fn negatives(&self, x: &[u64], out: &mut [u32]) {
        (self.kernels.differing)(&self.signs, x, out);
    }

    fn marks(&self, x: &[u64], first: usize) -> u64 {
        let mut counts = [0; 64];
        let n = (self.neurons - first).min(64);
        (self.kernels.differing)(&self.signs[first * self.words..], x, &mut counts[..n]);
        counts[..n].iter().enumerate().fold(0, |bits, (i, n)| bits | u64::from(*n <= self.most) << i)
    }
}

impl Predictor for Sign {
    fn kind(&self) -> &str {
        "sign"
    }

    fn dim(&self) -> usize {
        self.dim
    }

    fn neurons(&self) -> usize {
        self.neurons
    }

    fn bytes(&self) -> u64 {
        8 * self.signs.len() as u64
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn PredictorRun>> {
        let words = limits.tokens.saturating_mul(self.words);
        let mut signs = Vec::new();
        signs.try_reserve_exact(words).map_err(|_| Error::Device {
            device: "host".into(),
            message: format!("no memory for the signs of {} tokens", limits.tokens),
        })?;
        signs.resize(words, 0);
        let marks = Words::try_new(limits.tokens, self.neurons.div_ceil(64))?;
        Ok(Box::new(Run { op: self, signs, marks }))
    }
}

struct Run {
    op: Arc<Sign>,
    /// Signs of the step's inputs.
    signs: Vec<u64>,
    marks: Words,
}

impl PredictorRun for Run {
    fn mark(&mut self, _: &mut Hidden, x: &mut Hidden, active: &mut ActiveSet) -> Result<()> {
        let Self { op, signs, marks } = self;
        let tokens = x.tokens();
        fits(&**op, x, active)?;
        let Some(signs) = signs.get_mut(..tokens * op.words) else {
            return Err(Error::Limit {
                what: "tokens per step".into(),
                limit: signs.len() / op.words.max(1),
                got: tokens,
            });
        };
        for (row, signs) in x.host()?.chunks_exact(op.dim).zip(signs.chunks_exact_mut(op.words)) {
            (op.kernels.pack)(row, signs);
        }
        let (signs, words) = (&*signs, op.neurons.div_ceil(64));
        marks.fill(&*op.exec, active.marks(tokens)?, words, |t, word| {
            op.marks(&signs[t * op.words..(t + 1) * op.words], word * 64)
        });
        Ok(())
    }
}

/// Fails unless a predictor is made for this input and this set.
pub(crate) fn fits(p: &dyn Predictor, input: &Hidden, active: &ActiveSet) -> Result<()> {
    if (input.dim(), active.neurons()) != (p.dim(), p.neurons()) {
        return Err(Error::shape(
            format!("input and active set of a predictor ({})", p.kind()),
            format!("width {}, {} neurons", p.dim(), p.neurons()),
            format!("width {}, {} neurons", input.dim(), active.neurons()),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pi_core::{QuantType, Serial};

    fn marks(sign: Sign, x: &[f32], tokens: usize) -> Vec<u64> {
        let (dim, neurons) = (sign.dim(), sign.neurons());
        let mut run = Arc::new(sign).open(&Limits { tokens, sequences: 1, context: 1 }).unwrap();
        let (mut h, mut input) = (Hidden::new(tokens, dim), Hidden::new(tokens, dim));
        let mut active = ActiveSet::new(tokens, neurons);
        input.host_mut().unwrap().copy_from_slice(x);
        run.mark(&mut h, &mut input, &mut active).unwrap();
        active.host().unwrap().unwrap().to_vec()
    }

    /// Counting negative products one by one must give the same marks, for odd widths and numbers of neurons, and any margin.
    #[test]
    fn neurons_with_few_negative_products_are_marked() {
        for (dim, neurons, tokens) in [(1, 1, 1), (64, 64, 2), (100, 130, 3), (256, 65, 1)] {
            let number = |i: usize| ((i as f32 + 0.5) * 12.9898).sin();
            let w: Vec<f32> = (0..dim * neurons).map(number).collect();
            let x: Vec<f32> = (0..dim * tokens).map(|i| number(i * 7 + 3)).collect();
            let gate = Matrix::encode("gate", QuantType::F32, neurons, dim, &w).unwrap();
            for margin in [-0.5, -0.1, 0.0, 0.05, 0.5] {
                let got = marks(Sign::new(&gate, margin, Arc::new(Serial)).unwrap(), &x, tokens);
                for (t, i) in (0..tokens).flat_map(|t| (0..neurons).map(move |i| (t, i))) {
                    let negative = (0..dim).filter(|d| w[i * dim + d] * x[t * dim + d] < 0.0).count();
                    let bit = got[t * neurons.div_ceil(64) + i / 64] >> (i % 64) & 1 == 1;
                    assert_eq!(
                        bit,
                        negative as f64 <= (0.5 + f64::from(margin)) * dim as f64,
                        "{dim}, {neurons}, {margin}"
                    );
                }
                assert!(
                    got.chunks(neurons.div_ceil(64))
                        .all(|row| row.iter().map(|w| w.count_ones()).sum::<u32>() <= neurons as u32)
                );
            }
        }
    }

    #[test]
    fn a_margin_outside_its_range_is_refused() {
        let gate = Matrix::encode("gate", QuantType::F32, 1, 1, &[1.0]).unwrap();
        for margin in [0.6, -0.6, f32::NAN] {
            assert!(matches!(Sign::new(&gate, margin, Arc::new(Serial)), Err(Error::Unsupported { .. })));
        }
    }
}
