//! Norms over rows.
#![allow(unsafe_code)]

use crate::{
    gpu::{Arg, Gpu},
    memory::{Memory, room},
    operand,
};
use cudarc::driver::{CudaFunction, LaunchConfig};
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
            let size =
                LaunchConfig { grid_dim: (tokens as u32, 1, 1), block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
            let mut args = vec![Arg::At(input.address), self.gpu.at(Some(&self.weight))];
            args.extend(self.layer.as_ref().map(|bias| self.gpu.at(bias.as_ref())));
            args.extend([Arg::Int(self.dim as i32), Arg::Float(self.eps), Arg::Int(i32::from(add)), Arg::At(y)]);
            // SAFETY: the arguments of `norm.cu`; rows are as long as the weight, and the grid has as many blocks as there are.
            unsafe { self.gpu.launch(&self.kernel, size, &args) }
        })
    }

    fn bytes(&self) -> u64 {
        let bias = if let Some(Some(_)) = self.layer { self.dim } else { 0 };
        4 * (self.dim + bias) as u64
    }
}
