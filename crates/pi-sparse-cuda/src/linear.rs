//! Matrices with an optional bias.
#![allow(unsafe_code)]

use crate::{
    gpu::{Arg, Gpu},
    memory::{Memory, room},
    operand,
};
use cudarc::driver::{CudaFunction, LaunchConfig, sys::CUdeviceptr};
use pi_core::{Dense, Error, Hidden, LinearSpec, Result, Write, footprint::LinearShape};
use std::sync::Arc;

/// Threads of a block: a warp for each of so many rows.
const THREADS: u32 = 256;
const WARP: u32 = 32;
/// Tokens of a block.
const TOKENS: usize = 4;

pub(crate) struct Linear {
    gpu: Arc<Gpu>,
    kernel: CudaFunction,
    weight: Memory<u8>,
    bias: Option<Memory<f32>>,
    rows: usize,
    cols: usize,
}

/// What the arrays of [`Linear::new`] take.
pub(crate) fn bytes(shape: &LinearShape) -> u64 {
    let (rows, row) = (shape.weight.rows, shape.weight.row_bytes() as usize);
    room::<u8>([rows, row]) + if shape.bias { room::<f32>([rows, 1]) } else { 0 }
}

impl Linear {
    pub(crate) fn new(gpu: &Arc<Gpu>, spec: &LinearSpec) -> Result<Self> {
        spec.check()?;
        let w = &spec.weight;
        if i32::try_from(w.rows()).is_err() || i32::try_from(w.cols()).is_err() {
            return Err(Error::unsupported(w.name(), "CUDA kernels count rows and columns with 31 bits"));
        }
        Ok(Self {
            kernel: gpu.kernel(&format!("pi_linear_{}", w.ty()))?,
            weight: gpu.upload(w.view().bytes())?,
            bias: spec.bias.as_ref().map(|b| gpu.upload(b)).transpose()?,
            rows: w.rows(),
            cols: w.cols(),
            gpu: gpu.clone(),
        })
    }
}

impl Dense for Linear {
    fn apply(&self, x: &mut Hidden, y: &mut Hidden, how: Write) -> Result<()> {
        if x.dim() != self.cols {
            return Err(Error::shape("input of a matrix", self.cols, x.dim()));
        }
        let tokens = x.tokens();
        let input = operand::Input::new(&self.gpu, x)?;
        operand::write(&self.gpu, y, tokens, self.rows, how, |y, add| self.queue(input.address, tokens, y, add))
    }

    fn bytes(&self) -> u64 {
        self.weight.len() as u64 + 4 * self.bias.as_ref().map_or(0, |b| b.len()) as u64
    }
}

impl Linear {
    /// Queues the product: `x` is the address of `[tokens, cols]` numbers, `y` of `[tokens, rows]`.
    pub(crate) fn queue(&self, x: CUdeviceptr, tokens: usize, y: CUdeviceptr, add: bool) -> Result<()> {
        let blocks = (self.rows as u32).div_ceil(THREADS / WARP);
        // a grid has 65,535 blocks in y at most
        for first in (0..tokens).step_by(TOKENS * 65_535) {
            let some = (tokens - first).min(TOKENS * 65_535);
            let grid_dim = (blocks, some.div_ceil(TOKENS) as u32, 1);
            let size = LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
            let args = [
                self.gpu.at(Some(&self.weight)),
                Arg::At(x + 4 * (first * self.cols) as u64),
                self.gpu.at(self.bias.as_ref()),
                Arg::Int(self.rows as i32),
                Arg::Int(self.cols as i32),
                Arg::Int(some as i32),
                Arg::Int(i32::from(add)),
                Arg::At(y + 4 * (first * self.rows) as u64),
            ];
            // SAFETY: the arguments of `linear.cu`; arrays have the sizes that are passed.
            unsafe { self.gpu.launch(&self.kernel, size, &args)? };
        }
        Ok(())
    }
}
