//! Norms over rows, and the sum of what two devices computed.
#![allow(unsafe_code)]

use crate::{
    array::own,
    gpu::{Arg, Gpu, grid, int, long, threads},
    memory::{Memory, room},
    operand,
};
use cudarc::driver::CudaFunction;
use pi_core::{Dense, Error, Hidden, NormSpec, Result, Write, footprint::NormShape};
use std::sync::Arc;

/// Threads of a block, which has a row.
const THREADS: u32 = 256;

pub(crate) struct Norm {
    gpu: Arc<Gpu>,
    kernel: CudaFunction,
    weight: Memory<f32>,
    /// Of a layer norm; `None` for RMSNorm.
    layer: Option<Option<Memory<f32>>>,
    eps: f32,
    dim: usize,
}

/// What the arrays of [`Norm::new`] take.
pub(crate) fn bytes(shape: &NormShape) -> u64 {
    room::<f32>([shape.dim, 1]) * if shape.bias { 2 } else { 1 }
}

impl Norm {
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: &NormSpec) -> Result<Self> {
        let (name, weight, layer, eps) = match spec {
            NormSpec::Rms { weight, eps } => ("pi_rms_norm", weight, None, *eps),
            NormSpec::Layer { weight, bias, eps } => {
                if let Some(bias) = bias.as_ref().filter(|b| b.len() != weight.len()) {
                    return Err(Error::shape("bias of a norm", weight.len(), bias.len()));
                }
                let bias = bias.as_ref().map(|b| gpu.upload(b)).transpose()?;
                ("pi_layer_norm", weight, Some(bias), *eps)
            }
            _ => return Err(Error::unsupported("this norm", "CUDA has RMSNorm and LayerNorm")),
        };
        let (kernel, weight, dim) = (gpu.kernel(name)?, gpu.upload(weight)?, weight.len());
        Ok(Self { gpu: gpu.clone(), kernel, weight, layer, eps, dim })
    }
}

impl Dense for Norm {
    fn apply(&self, x: &mut Hidden, y: &mut Hidden, how: Write) -> Result<()> {
        if x.dim() != self.dim {
            return Err(Error::shape("input of a norm", self.dim, x.dim()));
        }
        let tokens = x.tokens();
        let input = operand::Input::new(&self.gpu, x)?;
        operand::write(&self.gpu, y, tokens, self.dim, how, |y, add| {
            if tokens == 0 {
                return Ok(());
            }
            let size = grid("rows of a norm", [tokens, 1, 1], THREADS)?;
            let (x, weight) = (Arg::At(input.address), self.gpu.at(Some(&self.weight)));
            let end = [int("numbers of a norm", self.dim)?, Arg::Float(self.eps), Arg::Int(i32::from(add)), Arg::At(y)];
            let bias = self.layer.as_ref().map(|bias| self.gpu.at(bias.as_ref()));
            let [dim, eps, add, y] = end;
            // SAFETY: the arguments of `norm.cu`; rows are as long as the weight, and the grid has as many blocks as there are.
            unsafe {
                match bias {
                    None => self.gpu.launch(&self.kernel, size, &[x, weight, dim, eps, add, y]),
                    Some(bias) => self.gpu.launch(&self.kernel, size, &[x, weight, bias, dim, eps, add, y]),
                }
            }
        })
    }

    fn bytes(&self) -> u64 {
        let bias = if let Some(Some(_)) = self.layer { self.dim } else { 0 };
        4 * (self.dim + bias) as u64
    }
}

/// `y += x` where `y` is, if that is `gpu`. False if it is elsewhere.
///
/// # Errors
/// If the device fails; shapes were checked.
pub(crate) fn add(gpu: &Arc<Gpu>, x: &mut Hidden, y: &mut Hidden) -> Result<bool> {
    if own(gpu, y.resident()).is_none() {
        return Ok(false);
    }
    let (tokens, dim) = (y.tokens(), y.dim());
    let input = operand::Input::new(gpu, x)?;
    operand::write(gpu, y, tokens, dim, Write::Add, |y, _| {
        let n = tokens * dim;
        if n == 0 {
            return Ok(());
        }
        let size = threads("numbers of a sum", n, THREADS)?;
        let args = [Arg::At(input.address), long("numbers of a sum", n)?, Arg::At(y)];
        // SAFETY: the arguments of `norm.cu`; both arrays have `n` numbers.
        unsafe { gpu.launch(&gpu.kernel("pi_add")?, size, &args) }
    })?;
    Ok(true)
}
