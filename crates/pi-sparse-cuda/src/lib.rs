//! CUDA.
