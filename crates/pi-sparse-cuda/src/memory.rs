//! Memory of a device, counted while it lives, and what is said of it beforehand.
//!
//! Every array of a device is made by [`Memory::new`], so [`Counter`] knows what is allocated. What an operator will allocate is said by the
//! function `…bytes` that stands beside the one that makes it, in the same terms: [`room`] of each array.
#![allow(unsafe_code)]

use crate::{KvPlace, attention, ffn, linear, norm, predictor, queue::Queue, shared};
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, DriverError, result, sys};
use pi_core::{
    Footprint, Limits,
    footprint::{AttentionShape, FfnShape, LinearShape, MlpShape, NormShape, PartShape},
};
use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Drivers give memory in pieces of so many bytes.
pub(crate) const PIECE: u64 = 512;

/// Bytes that an array of `n` elements takes, which has one at least.
pub(crate) fn room<T>(n: [usize; 2]) -> u64 {
    let bytes = (n[0] as u64).saturating_mul(n[1] as u64).max(1).saturating_mul(size_of::<T>() as u64);
    bytes.checked_next_multiple_of(PIECE).unwrap_or(u64::MAX)
}

/// Bytes that are allocated now, and most that ever were.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    now: AtomicU64,
    most: AtomicU64,
}

impl Counter {
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    pub(crate) fn most(&self) -> u64 {
        self.most.load(Relaxed)
    }
}

/// An array in a device's memory.
pub(crate) struct Memory<T> {
    slice: CudaSlice<T>,
    /// As they are counted.
    bytes: u64,
    queue: Arc<Queue>,
}

impl<T: DeviceRepr> Memory<T> {
    /// Room for `n` elements, at least one, for what is queued on `first` from now on. Contents are undefined. It is freed in the order of
    /// kernels.
    pub(crate) fn new(queue: &Arc<Queue>, first: &CudaStream, n: usize) -> Result<Self, DriverError> {
        let mut memory = Self::uncounted(queue, first, n)?;
        memory.bytes = room::<T>([n, 1]);
        let before = queue.taken.now.fetch_add(memory.bytes, Relaxed);
        queue.taken.most.fetch_max(before + memory.bytes, Relaxed);
        Ok(memory)
    }

    /// The same, counted as what the runtime takes.
    pub(crate) fn uncounted(queue: &Arc<Queue>, first: &CudaStream, n: usize) -> Result<Self, DriverError> {
        let (stream, n) = (queue.as_it_is(), n.max(1));
        let context = stream.context();
        let bytes = n.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
        let bytes = bytes.ok_or(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        context.bind_to_thread()?;
        let asynchronous = context.has_async_alloc();
        // SAFETY: the array below owns it. Whoever reads it has written it before; numbers have no invalid bits.
        let at = unsafe {
            if asynchronous { result::malloc_async(first.cu_stream(), bytes) } else { result::malloc_sync(bytes) }
        }?;
        // SAFETY: room for `n` elements that nobody else has.
        let slice = unsafe { stream.upgrade_device_ptr(at, n) };
        Ok(Self { slice, bytes: 0, queue: queue.clone() })
    }
}

impl<T> Drop for Memory<T> {
    fn drop(&mut self) {
        self.queue.settle(); // what uses it comes first
        self.queue.taken.now.fetch_sub(self.bytes, Relaxed);
    }
}

impl<T> Deref for Memory<T> {
    type Target = CudaSlice<T>;

    fn deref(&self) -> &CudaSlice<T> {
        &self.slice
    }
}

impl<T> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut CudaSlice<T> {
        &mut self.slice
    }
}

/// What a device allocates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CudaFootprint {
    /// Of the context, which is there as soon as the device is open.
    pub context: u64,
    /// Of kernels, and of what the driver's allocator wastes because it takes memory from the device in larger pieces than it gives.
    pub rest: u64,
    /// Where keys and values are.
    pub kv: KvPlace,
}

impl CudaFootprint {
    /// Of a device that had so much free memory when its context had been made. What was in use then is the context's if nobody else uses the
    /// device, and no context that is known takes more than three quarters of a gibibyte. Rounded, so that plans last.
    pub(crate) fn new(free: u64, total: u64, kv: KvPlace) -> Self {
        let part = |most: u64| (total / 64).min(most << 20);
        let used = total.saturating_sub(free).min(768 << 20);
        Self { context: used.next_multiple_of(part(32).max(1)), rest: part(64), kv }
    }
}

impl Footprint for CudaFootprint {
    fn runtime(&self) -> u64 {
        self.context + self.rest
    }

    fn hidden(&self, max_tokens: usize, dim: usize) -> u64 {
        room::<f32>([max_tokens, dim])
    }

    fn active(&self, max_tokens: usize, neurons: usize) -> u64 {
        room::<u64>([max_tokens, neurons.div_ceil(64)])
    }

    fn passing(&self, tokens: usize, dim: usize) -> u64 {
        room::<f32>([tokens, dim])
    }

    fn norm(&self, shape: &NormShape) -> u64 {
        norm::bytes(shape)
    }

    fn linear(&self, shape: &LinearShape) -> u64 {
        linear::bytes(shape)
    }

    fn kv_cache(&self, shape: &AttentionShape, limits: &Limits) -> u64 {
        match self.kv {
            KvPlace::Device => attention::cache_bytes(shape, limits),
            KvPlace::Host => 0,
        }
    }

    fn attention_shared(&self, shape: &AttentionShape, limits: &Limits) -> u64 {
        attention::shared_bytes(shape, limits)
    }

    fn tables(&self, shape: &AttentionShape, limits: &Limits) -> u64 {
        shared::tables_bytes(limits.tokens, shape.rope_dims)
    }

    fn sparse_ffn(&self, shape: &FfnShape, part: PartShape) -> u64 {
        ffn::bytes(shape, part)
    }

    fn ffn_scratch(&self, shape: &FfnShape, neurons: usize, limits: &Limits) -> u64 {
        ffn::scratch_bytes(shape, neurons, limits)
    }

    fn ffn_shared(&self, shape: &FfnShape, neurons: usize, limits: &Limits) -> u64 {
        ffn::shared_bytes(shape, neurons, limits)
    }

    fn mlp(&self, shape: &MlpShape) -> u64 {
        predictor::bytes(shape)
    }

    fn mlp_shared(&self, shape: &MlpShape, limits: &Limits) -> u64 {
        predictor::shared_bytes(shape, limits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_take_whole_pieces_and_one_at_least() {
        assert_eq!([0, 1, 128, 129].map(|n| room::<f32>([n, 1])), [512, 512, 512, 1024]);
        assert_eq!((room::<u8>([3, 512]), room::<f32>([usize::MAX, 2])), (1536, u64::MAX));
    }

    #[test]
    fn what_others_have_in_use_is_not_taken_for_the_context() {
        let gib = 1u64 << 30;
        let runtime = |free, total| CudaFootprint::new(free, total, KvPlace::Device).runtime() >> 20;
        assert_eq!(runtime(gib, gib), 16);
        assert_eq!(runtime(23 * gib + gib / 2 + 1000, 24 * gib), 512 + 64);
        assert_eq!(runtime(2 * gib, 80 * gib), 768 + 64);
    }
}
