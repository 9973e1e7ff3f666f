//! What kernels count, for all FFNs of a device together: the host asks once for what a step did in all its layers.
#![allow(unsafe_code)]

use crate::{event::Done, gpu::Gpu, memory::Memory, pinned::Pinned};
use cudarc::driver::{DriverError, result};
use pi_core::Result;
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// Tallies of a chunk.
const TALLIES: usize = 256;
/// Numbers of a tally: neurons × tokens that fired, that were marked, and of steps of which all neurons were computed.
pub(crate) const NUMBERS: usize = 3;
/// Bytes of it.
const BYTES: usize = 8 * NUMBERS;

/// Numbers that kernels add to.
#[derive(Default)]
pub(crate) struct Counts {
    chunks: Mutex<Vec<Chunk>>,
    /// Kernels that may have counted since the device was opened.
    launched: AtomicU64,
}

struct Chunk {
    device: Memory<u64>,
    host: Pinned<u64>,
    done: Done,
    free: Vec<usize>,
    /// What was launched when `host` was asked for.
    seen: Option<u64>,
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let _ = self.done.wait();
    }
}

/// Some numbers on the device, 0 at first.
pub(crate) struct Tally {
    gpu: Arc<Gpu>,
    chunk: usize,
    index: usize,
    address: u64,
}

impl Counts {
    fn chunks(&self) -> MutexGuard<'_, Vec<Chunk>> {
        self.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let mut chunks = gpu.counts.chunks();
        let failed = |e| gpu.full(e, BYTES * TALLIES);
        let chunk = match chunks.iter().position(|c| !c.free.is_empty()) {
            Some(chunk) => chunk,
            None => {
                chunks.push(Chunk {
                    // a few KiB of what the runtime takes, as it is there for all sessions
                    device: Memory::uncounted(&gpu.queue, gpu.queue.as_it_is(), NUMBERS * TALLIES).map_err(failed)?,
                    host: Pinned::new(&gpu.context, NUMBERS * TALLIES).map_err(failed)?,
                    done: Done::new(&gpu.context).map_err(failed)?,
                    free: (0..TALLIES).rev().collect(),
                    seen: None,
                });
                chunks.len() - 1
            }
        };
        let address = gpu.address(&chunks[chunk].device);
        let index = chunks[chunk].free.pop().unwrap_or_default();
        let address = address + (BYTES * index) as u64;
        let tally = Self { gpu: gpu.clone(), chunk, index, address };
        drop(chunks);
        // SAFETY: bytes of this chunk that nobody else has.
        unsafe { result::memset_d8_async(address, 0, BYTES, gpu.stream()?.cu_stream()) }.map_err(failed)?;
        tally.launched();
        Ok(tally)
    }

    /// Where kernels find it.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Says that a kernel was queued that may count here.
    pub(crate) fn launched(&self) {
        self.gpu.counts.launched.fetch_add(1, Relaxed);
    }

    /// What was counted by all that is queued. The host waits for that, unless another tally of the same chunk was asked for since.
    pub(crate) fn read(&self) -> std::result::Result<[u64; NUMBERS], DriverError> {
        let (gpu, mut chunks) = (&self.gpu, self.gpu.counts.chunks());
        let chunk = &mut chunks[self.chunk];
        let launched = gpu.counts.launched.load(Relaxed);
        if chunk.seen != Some(launched) {
            chunk.done.wait()?;
            gpu.context.bind_to_thread()?;
            let (from, stream) = (gpu.address(&chunk.device), gpu.queue.stream()?);
            // SAFETY: both have as many numbers; `done` is waited for before they are read or written again.
            unsafe { result::memcpy_dtoh_async(chunk.host.slice_mut(), from, stream.cu_stream()) }?;
            chunk.done.record(stream)?;
            chunk.done.wait()?;
            chunk.seen = Some(launched);
        }
        let numbers = chunk.host.slice();
        Ok(std::array::from_fn(|i| numbers[NUMBERS * self.index + i]))
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        if let Some(chunk) = self.gpu.counts.chunks().get_mut(self.chunk) {
            chunk.free.push(self.index);
        }
    }
}
