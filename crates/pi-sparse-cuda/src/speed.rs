//! How fast a device's own memory is.

use crate::{gpu::Gpu, memory::Memory};
use pi_core::Result;
use std::{sync::Arc, time::Instant};

/// Copies that follow each other without a wait, and how often that is done.
const COPIES: usize = 20;
const TIMES: usize = 5;

/// Bytes read and written per second when an array of `bytes` is copied within the device: the median of several times many copies.
pub(crate) fn copy(gpu: &Arc<Gpu>, bytes: usize) -> Result<f64> {
    let failed = |e| gpu.error(e);
    let from: Memory<u8> = gpu.scratch([bytes, 1])?;
    let mut to: Memory<u8> = gpu.scratch([bytes, 1])?;
    let mut copies = |n: usize| -> Result<f64> {
        let stream = gpu.stream()?;
        let begun = Instant::now();
        for _ in 0..n {
            stream.memcpy_dtod(&*from, &mut *to).map_err(failed)?;
        }
        stream.synchronize().map_err(failed)?;
        Ok(begun.elapsed().as_secs_f64())
    };
    copies(1)?;
    let mut times = [0.0; TIMES];
    for time in &mut times {
        *time = copies(COPIES)?;
    }
    times.sort_by(f64::total_cmp);
    Ok(2.0 * (bytes * COPIES) as f64 / times[TIMES / 2].max(1e-9))
}
