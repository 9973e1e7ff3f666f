//! Matrices with an optional bias.
#![allow(unsafe_code)]

use crate::{
    gpu::{Arg, GRID, Gpu, grid, int},
    memory::{Memory, room},
    operand,
};
use cudarc::driver::{CudaFunction, sys::CUdeviceptr};
use pi_core::{Dense, Error, Hidden, LinearSpec, Matrix, QuantType, Result, Write, footprint::LinearShape};
use std::sync::Arc;

/// Threads of a block: a warp for each of so many rows.
const THREADS: u32 = 256;
pub(crate) const WARP: u32 = 32;
/// Tokens of a block of kernels for few tokens, FEW in `types.cuh`.
pub(crate) const FEW: usize = 4;
/// Outputs, and tokens, of a block of kernels for many tokens, and its threads, as in `tile.cuh`.
pub(crate) const TILE: usize = 64;
pub(crate) const TILE_THREADS: u32 = 256;
/// Tokens from which on tiles are used. With fewer, most of a tile would be empty; with so many, warps would read and decode
/// each weight four times.
pub(crate) const MANY: usize = 16;

pub(crate) struct Linear {
    gpu: Arc<Gpu>,
    product: Product,
    weight: Memory<u8>,
    bias: Option<Memory<f32>>,
    rows: usize,
    cols: usize,
    /// Of both.
    bytes: u64,
}

/// Kernels that multiply matrices of a type.
pub(crate) struct Product {
    few: CudaFunction,
    many: CudaFunction,
}

impl Product {
    pub(crate) fn new(gpu: &Gpu, ty: QuantType) -> Result<Self> {
        let kernel = |name| gpu.kernel(&format!("{name}_{ty}"));
        let many = if gpu.tensor_cores { "pi_tensor_linear" } else { "pi_tile_linear" };
        Ok(Self { few: kernel("pi_linear")?, many: kernel(many)? })
    }

    /// Queues `y = w x + bias`: `w`, `bias` of `[rows, cols]` and `[rows]` numbers, `x` the address of `[tokens, cols]`, `y` of
    /// `[tokens, rows]`. Nothing is done if there is a number at `wanted` that is 0 by then, for [`MANY`] tokens and more.
    pub(crate) fn queue(
        &self,
        gpu: &Gpu,
        [w, bias]: [Arg; 2],
        (rows, cols): (usize, usize),
        x: CUdeviceptr,
        tokens: usize,
        wanted: CUdeviceptr,
        y: CUdeviceptr,
        add: bool,
    ) -> Result<()> {
        let (kernel, blocks, each, threads) = match tokens >= MANY {
            true => (&self.many, rows.div_ceil(TILE), TILE, TILE_THREADS),
            false => (&self.few, rows.div_ceil((THREADS / WARP) as usize), FEW, THREADS),
        };
        for first in (0..tokens).step_by(each * GRID) {
            let some = (tokens - first).min(each * GRID);
            let size = grid("rows of a matrix", [blocks, some.div_ceil(each), 1], threads)?;
            let x = Arg::At(x + 4 * (first * cols) as u64);
            let sizes =
                [int("rows of a matrix", rows)?, int("columns of a matrix", cols)?, int("tokens of a step", some)?];
            let (add, y) = (Arg::Int(i32::from(add)), Arg::At(y + 4 * (first * rows) as u64));
            let [rows, cols, some] = sizes;
            // SAFETY: the arguments of `linear.cu`; arrays have the sizes that are passed, as the caller says.
            unsafe {
                match tokens >= MANY {
                    true => {
                        let args = [w, x, bias, rows, cols, some, add, Arg::At(wanted), y];
                        gpu.launch_long(kernel, size, &args)?;
                    }
                    false => gpu.launch(kernel, size, &[w, x, bias, rows, cols, some, add, y])?,
                }
            };
        }
        Ok(())
    }
}

/// Fails unless kernels can count the matrix's rows and columns.
pub(crate) fn countable(m: &Matrix) -> Result<()> {
    let int = |what: &str, n| int(&format!("{what} of {}", m.name()), n);
    int("rows", m.rows()).and(int("columns", m.cols())).map(drop)
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
        countable(w)?;
        Ok(Self {
            product: Product::new(gpu, w.ty())?,
            weight: gpu.upload(w.view().bytes())?,
            bias: spec.bias.as_ref().map(|b| gpu.upload(b)).transpose()?,
            rows: w.rows(),
            cols: w.cols(),
            bytes: (w.size_bytes() + spec.bias.as_ref().map_or(0, |b| 4 * b.len())) as u64,
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
        self.bytes
    }
}

impl Linear {
    /// Queues the product: `x` is the address of `[tokens, cols]` numbers, `y` of `[tokens, rows]`.
    pub(crate) fn queue(&self, x: CUdeviceptr, tokens: usize, y: CUdeviceptr, add: bool) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        let weights = [self.gpu.at(Some(&self.weight)), self.gpu.at(self.bias.as_ref())];
        self.product.queue(&self.gpu, weights, (self.rows, self.cols), x, tokens, 0, y, add)
    }
}
