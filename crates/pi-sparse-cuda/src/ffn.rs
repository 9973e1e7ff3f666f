//! The neuron-aware FFN of the neurons that are on the device.
mod room;
mod run;

pub(crate) use room::{bytes, scratch_bytes, shared_bytes};

use crate::{
    counts::{NUMBERS, Tally},
    gpu::Gpu,
    linear::{Linear, Product, countable},
    memory::Memory,
    shared::Lease,
};
use cudarc::driver::CudaFunction;
use pi_core::{Down, Error, FfnRun, FfnWeights, Limits, LinearSpec, Matrix, NeuronSet, OpStats, Result, SparseFfn};
use std::sync::Arc;

/// Rows of owned neurons, one after the other.
struct Rows {
    /// For few tokens: a warp per neuron.
    kernel: CudaFunction,
    weight: Memory<u8>,
    bias: Option<Memory<f32>>,
    row_bytes: u64,
}

enum Sum {
    /// Rows and the kernel for many tokens, on tensor cores or not.
    Rows(Rows, CudaFunction),
    /// Output-major: every neuron is read.
    Whole(Linear),
}

/// For many tokens: all neurons, as products of matrices. Each token leaves out others, so that together most neurons are wanted, and
/// what is saved may be less than what reading and decoding a weight anew for every FEW tokens costs.
struct Many {
    choose: CudaFunction,
    first: Product,
    second: Option<Product>,
    fire: CudaFunction,
    join: CudaFunction,
}

pub(crate) struct CudaFfn {
    gpu: Arc<Gpu>,
    w: FfnWeights,
    neurons: NeuronSet,
    ids: Option<Memory<u32>>,
    /// The gate, or up where there is none.
    first: Rows,
    second: Option<Rows>,
    many: Many,
    down: Sum,
    sum: CudaFunction,
    down_bias: Option<Memory<f32>>,
}

fn rows(gpu: &Arc<Gpu>, kernel: &str, m: &Matrix, bias: Option<&[f32]>, neurons: &NeuronSet) -> Result<Rows> {
    countable(m)?;
    let owned_bias: Option<Vec<f32>> = bias.map(|b| neurons.iter().map(|id| b[id]).collect());
    Ok(Rows {
        kernel: gpu.kernel(&format!("{kernel}_{}", m.ty()))?,
        weight: gpu.rows(m, neurons)?,
        bias: owned_bias.map(|b| gpu.upload(&b)).transpose()?,
        row_bytes: m.row_bytes() as u64,
    })
}

impl CudaFfn {
    pub(crate) fn new(gpu: &Arc<Gpu>, w: &FfnWeights, neurons: &NeuronSet) -> Result<Self> {
        w.check()?;
        if neurons.total() != w.neurons() {
            return Err(Error::shape("neuron set", format!("{} neurons", w.neurons()), neurons.total()));
        }
        let gate =
            w.gate.as_ref().map(|m| rows(gpu, "pi_ffn_hidden", m, w.gate_bias.as_deref(), neurons)).transpose()?;
        let up = rows(gpu, "pi_ffn_hidden", &w.up, w.up_bias.as_deref(), neurons)?;
        let (first, second) = match gate {
            Some(gate) => (gate, Some(up)),
            None => (up, None),
        };
        let many = Many {
            choose: gpu.kernel("pi_ffn_choose")?,
            first: Product::new(gpu, w.gate.as_ref().unwrap_or(&w.up).ty())?,
            second: second.as_ref().map(|_| Product::new(gpu, w.up.ty())).transpose()?,
            fire: gpu.kernel("pi_ffn_fire")?,
            join: gpu.kernel("pi_ffn_join")?,
        };
        let down = match &w.down {
            Down::NeuronMajor(m) => {
                let many = if gpu.tensor_cores { "pi_tensor_down" } else { "pi_tile_down" };
                Sum::Rows(rows(gpu, "pi_ffn_down", m, None, neurons)?, gpu.kernel(&format!("{many}_{}", m.ty()))?)
            }
            Down::OutputMajor(m) if neurons.is_all() => Sum::Whole(Linear::new(gpu, &LinearSpec::new(m.clone()))?),
            Down::OutputMajor(m) => {
                let why = "its down matrix is output-major; store it neuron-major (ffn_down_t)";
                return Err(Error::unsupported(format!("a part of the neurons of {}", m.name()), why));
            }
            _ => return Err(Error::unsupported("this order of a down matrix", "CUDA knows neuron- and output-major")),
        };
        // neuron 0 belongs to exactly one operator of a layer: its owner adds the bias
        let owns_bias = !neurons.is_empty() && neurons.id(0) == 0;
        let ids: Vec<u32> = neurons.iter().map(|id| id as u32).collect();
        Ok(Self {
            ids: (!neurons.is_all()).then(|| gpu.upload(&ids)).transpose()?,
            first,
            second,
            many,
            down,
            sum: gpu.kernel("pi_ffn_sum")?,
            down_bias: w.down_bias.as_ref().filter(|_| owns_bias).map(|b| gpu.upload(b)).transpose()?,
            neurons: neurons.clone(),
            w: w.clone(),
            gpu: gpu.clone(),
        })
    }

    fn slices(&self, tokens: usize) -> usize {
        room::slices(self.neurons.len(), tokens)
    }
}

impl SparseFfn for CudaFfn {
    fn neurons(&self) -> &NeuronSet {
        &self.neurons
    }

    fn open(self: Arc<Self>, limits: &Limits) -> Result<Box<dyn FfnRun>> {
        let (gpu, owned, dim) = (&self.gpu, self.neurons.len(), self.w.dim());
        let rows = if let Sum::Rows(..) = self.down { room::parts(owned, limits) } else { 0 };
        let lease = Lease::new(gpu);
        gpu.shared().reserve(gpu, room::shared(owned, self.second.is_some(), limits))?;
        Ok(Box::new(run::Run {
            h: gpu.scratch([limits.tokens, owned])?,
            part: gpu.scratch([rows, dim])?,
            choice: gpu.scratch([1, 1])?,
            counts: Tally::new(gpu)?,
            counted: [0; NUMBERS],
            steps: 0,
            limit: limits.tokens,
            step: 0,
            tokens: None,
            values: None,
            stats: OpStats::default(),
            _lease: lease,
            op: self,
        }))
    }
}
