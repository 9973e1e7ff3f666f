//! Tests of the CPU device. One program, since each would be linked by itself; those of one file: `cargo test -p pi-sparse-cpu --test cpu FILE::`.

mod attention;
mod batches;
mod cases;
mod crossover;
mod device;
mod kernels;
