//! The sparse FFN: all gatings and activations, parts of the neurons, marks of a predictor.

use super::{Checked, close, dot, hidden, matrix, random, refused, same, text, tolerance, wide};
use crate::Random;
use pi_core::{Activation, ActiveSet, Device, Down, FfnWeights, Gating, Limits, Matrix, NeuronSet, QuantType, Write};

const ACTIVATIONS: [Activation; 6] = [
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::ReluSquared,
    Activation::FatRelu(0.25),
];

pub(super) fn check(device: &dyn Device) -> Checked {
    for gating in [Gating::Gated, Gating::Symmetric, Gating::UpOnly] {
        for act in ACTIVATIONS {
            for (neuron_major, bias) in [(true, true), (true, false), (false, true)] {
                for skip in [false, true] {
                    if skip && !act.is_sparse() {
                        continue;
                    }
                    let case = Case::new(QuantType::F32, 40, 70, gating, act, skip, neuron_major, bias);
                    case.check(device)
                        .map_err(|e| format!("ffn, {gating:?} {act}, skip {skip}, biases {bias}: {e}"))?;
                }
            }
        }
    }
    for ty in QuantType::ALL.into_iter().filter(|ty| device.supports(*ty)) {
        for neuron_major in [true, false] {
            let case = Case::new(
                ty,
                256,
                if neuron_major { 36 } else { 256 },
                Gating::Gated,
                Activation::Relu,
                true,
                neuron_major,
                false,
            );
            case.check(device).map_err(|e| format!("ffn of {ty}, neuron-major {neuron_major}: {e}"))?;
        }
    }
    specs(device)
}

struct Case {
    w: FfnWeights,
    /// Gate, up, and down as one row per neuron, decoded.
    gate: Vec<f64>,
    up: Vec<f64>,
    down: Vec<f64>,
    tolerance: f64,
}

impl Case {
    #[allow(clippy::too_many_arguments)]
    fn new(
        ty: QuantType,
        dim: usize,
        neurons: usize,
        gating: Gating,
        act: Activation,
        skip: bool,
        neuron_major: bool,
        bias: bool,
    ) -> Self {
        let mut rng = Random(31);
        let gate = (gating != Gating::UpOnly).then(|| matrix(&mut rng, "gate", ty, neurons, dim));
        let up = matrix(&mut rng, "up", ty, neurons, dim);
        let (down, rows) = if neuron_major {
            let m = matrix(&mut rng, "down_t", ty, neurons, dim);
            let rows = m.decode();
            (Down::NeuronMajor(m), rows)
        } else {
            let m = matrix(&mut rng, "down", ty, dim, neurons);
            let d = m.decode();
            let rows = (0..neurons * dim).map(|i| d[i % dim * neurons + i / dim]).collect();
            (Down::OutputMajor(m), rows)
        };
        let mut b = |n: usize| bias.then(|| random(&mut rng, n, 0.5).into());
        let w = FfnWeights {
            gate_bias: if gate.is_some() { b(neurons) } else { None },
            up_bias: b(neurons),
            down_bias: b(dim),
            gate,
            up,
            down,
            gating,
            act,
            skip,
        };
        let decoded = |m: &Matrix| wide(&m.decode());
        Self {
            gate: w.gate.as_ref().map(decoded).unwrap_or_default(),
            up: decoded(&w.up),
            down: wide(&rows),
            tolerance: tolerance(ty),
            w,
        }
    }

    /// What the neurons of `set` that are marked add for row `x`; the bias of the down matrix comes with neuron 0.
    fn output(&self, set: &NeuronSet, marked: impl Fn(usize) -> bool, x: &[f64]) -> Vec<f64> {
        let (w, dim) = (&self.w, x.len());
        let bias = |b: &Option<std::sync::Arc<[f32]>>, i: usize| b.as_ref().map_or(0.0, |b| f64::from(b[i]));
        let mut y = vec![0.0; dim];
        for i in set.iter() {
            if i == 0 {
                y.iter_mut().enumerate().for_each(|(k, y)| *y += bias(&w.down_bias, k));
            }
            if !marked(i) {
                continue;
            }
            let row = i * dim..(i + 1) * dim;
            let u = dot(&self.up[row.clone()], x) + bias(&w.up_bias, i);
            let g = || dot(&self.gate[row.clone()], x) + bias(&w.gate_bias, i);
            let h = match w.gating {
                Gating::Gated => apply(w.act, g()) * u,
                Gating::Symmetric => apply(w.act, g()) * apply(w.act, u),
                _ => apply(w.act, u),
            };
            y.iter_mut().zip(&self.down[row]).for_each(|(y, d)| *y += h * d);
        }
        y
    }

    fn check(&self, device: &dyn Device) -> Checked {
        let n = self.w.neurons();
        let mut rng = Random(32);
        let all = NeuronSet::all(n);
        if matches!(self.w.down, Down::OutputMajor(_)) {
            let some = NeuronSet::some(n, vec![1]).map_err(text)?;
            refused("a part of an output-major FFN", device.sparse_ffn(&self.w, &some))?;
            return self.parts(device, &[all], &mut rng);
        }
        let of = |keep: &mut dyn FnMut(usize) -> bool| {
            NeuronSet::some(n, (0..n).filter(|i| keep(*i)).map(|i| i as u32).collect()).map_err(text)
        };
        let owner: Vec<usize> = (0..n).map(|_| rng.below(3)).collect();
        let splits = [
            vec![all.clone()],
            vec![of(&mut |i| i % 2 == 0)?, of(&mut |i| i % 2 == 1)?],
            vec![of(&mut |i| i == 0)?, of(&mut |i| i > 0)?],
            vec![all, of(&mut |_| false)?],
            vec![of(&mut |i| owner[i] == 0)?, of(&mut |i| owner[i] == 1)?, of(&mut |i| owner[i] == 2)?],
        ];
        splits.iter().try_for_each(|parts| self.parts(device, parts, &mut rng))
    }

    /// Every part gives what its neurons add, and together they give the whole: no neuron is lost or counted twice.
    fn parts(&self, device: &dyn Device, parts: &[NeuronSet], rng: &mut Random) -> Checked {
        let (n, dim) = (self.w.neurons(), self.w.dim());
        let limits = Limits { tokens: 19, sequences: 1, context: 1 };
        let mut runs = Vec::new();
        for set in parts {
            let op = device.sparse_ffn(&self.w, set).map_err(text)?;
            same("owned neurons", op.neurons(), set)?;
            runs.push(op.open(&limits).map_err(text)?);
        }
        let mut active = ActiveSet::new(20, n);
        for (tokens, density) in
            [(1, None), (3, None), (1, Some(2)), (5, Some(2)), (2, Some(1)), (19, Some(4)), (2, Some(0))]
        {
            let marks: Vec<bool> =
                (0..tokens * n).map(|_| density.is_none_or(|d| d > 0 && rng.below(d) == 0)).collect();
            if density.is_some() {
                let words = n.div_ceil(64);
                let bits = active.marks(tokens).map_err(text)?;
                bits.fill(0);
                for i in (0..tokens * n).filter(|i| marks[*i]) {
                    bits[i / n * words + i % n / 64] |= 1 << (i % n % 64);
                }
            } else {
                active.set_all(tokens).map_err(text)?;
            }
            let x = random(rng, tokens * dim, 1.0);
            let rows = wide(&x);
            let expect = |set: &NeuronSet| -> Vec<f64> {
                let row = |t: usize| self.output(set, |i| marks[t * n + i], &rows[t * dim..(t + 1) * dim]);
                (0..tokens).flat_map(row).collect()
            };
            let what = format!("{tokens} tokens, marks {density:?}, {} parts", parts.len());
            let mut x = hidden(device, &x, dim)?;
            let mut whole = hidden(device, &vec![0.0; tokens * dim], dim)?;
            for (set, run) in parts.iter().zip(&mut runs) {
                let mut y = device.hidden(tokens + 1, dim).map_err(text)?;
                run.submit(&mut x, &mut active).map_err(text)?;
                run.collect(&mut y, Write::Set).map_err(text)?;
                let part = format!("{what}, {} of {n} neurons", set.len());
                close(&part, y.host().map_err(text)?, &expect(set), self.tolerance)?;
                refused("a result collected twice", run.collect(&mut y, Write::Set))?;
                run.submit(&mut x, &mut active).map_err(text)?;
                run.collect(&mut whole, Write::Add).map_err(text)?;
                let stats = run.take_stats();
                same(&format!("{part}: neurons counted"), stats.neurons, (2 * tokens * set.len()) as u64)?;
                let marked = set.iter().map(|i| (0..tokens).filter(|t| marks[t * n + i]).count() as u64).sum::<u64>();
                if stats.active > 2 * marked || !self.w.skip && stats.active != 2 * marked {
                    return Err(format!("{part}: {} active neurons of {} marked", stats.active, 2 * marked));
                }
            }
            close(
                &format!("{what}, the sum"),
                whole.host().map_err(text)?,
                &expect(&NeuronSet::all(n)),
                self.tolerance,
            )?;
            for run in &mut runs {
                self.bad(device, &mut **run, &mut active)?;
            }
        }
        Ok(())
    }

    fn bad(&self, device: &dyn Device, run: &mut dyn pi_core::FfnRun, active: &mut ActiveSet) -> Checked {
        let (n, dim) = (self.w.neurons(), self.w.dim());
        let tokens = active.tokens();
        let mut other = hidden(device, &vec![0.0; tokens * (dim + 1)], dim + 1)?;
        refused("input of another width", run.submit(&mut other, active))?;
        let mut x = hidden(device, &vec![0.0; (tokens + 1) * dim], dim)?;
        refused("marks for fewer tokens", run.submit(&mut x, active))?;
        let mut x = hidden(device, &vec![0.0; 20 * dim], dim)?;
        refused("more tokens than the run was opened for", run.submit(&mut x, &mut ActiveSet::new(20, n)))?;
        refused("marks for other neurons", run.submit(&mut x, &mut ActiveSet::new(20, n + 1)))?;
        refused("a result that nobody asked for", run.collect(&mut x, Write::Set))
    }
}

fn specs(device: &dyn Device) -> Checked {
    let good = Case::new(QuantType::F32, 8, 12, Gating::Gated, Activation::Relu, true, true, true).w;
    let mut rng = Random(33);
    let other = matrix(&mut rng, "other", QuantType::F32, 11, 8);
    let bad = [
        ("a gate of another height", FfnWeights { gate: Some(other.clone()), ..good.clone() }),
        ("a missing gate", FfnWeights { gate: None, ..good.clone() }),
        ("a gate too many", FfnWeights { gating: Gating::UpOnly, ..good.clone() }),
        ("a down matrix of another height", FfnWeights { down: Down::NeuronMajor(other), ..good.clone() }),
        ("a gate's bias of another length", FfnWeights { gate_bias: Some(vec![0.0; 8].into()), ..good.clone() }),
        ("an up's bias of another length", FfnWeights { up_bias: Some(vec![0.0; 8].into()), ..good.clone() }),
        ("a down's bias of another length", FfnWeights { down_bias: Some(vec![0.0; 12].into()), ..good.clone() }),
        ("skipping where nothing is ever 0", FfnWeights { act: Activation::Silu, ..good.clone() }),
    ];
    for (what, w) in bad {
        refused(what, device.sparse_ffn(&w, &NeuronSet::all(12)))?;
    }
    refused("a set of another layer's neurons", device.sparse_ffn(&good, &NeuronSet::all(13)))
}

fn apply(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::FatRelu(t) => {
            if x > 0.0 && x >= f64::from(t) {
                x
            } else {
                0.0
            }
        }
        other => f64::from(other.apply(x as f32)),
    }
}
