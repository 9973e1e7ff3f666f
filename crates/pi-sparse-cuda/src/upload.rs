//! Weights on their way to the device: from where they lie, through two pinned buffers in turns, so that one is filled while the
//! other is copied. They have a queue of their own, so this runs beside kernels, and kernels that are queued later wait for it.
#![allow(unsafe_code)]

use crate::{
    event::Done,
    gpu::Gpu,
    memory::Memory,
    pinned::{Number, Pinned},
};
use cudarc::driver::{CudaContext, CudaStream, DriverError, result};
use pi_core::{Matrix, NeuronSet, Result};
use std::{
    slice,
    sync::{Arc, Mutex, PoisonError},
};

/// Bytes that are copied at a time: enough that a copy's start does not matter.
const PIECE: usize = 4 << 20;

struct Buffer {
    memory: Pinned<u8>,
    done: Done,
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let _ = self.done.wait();
    }
}

/// The queue of uploads, and its buffers once they were needed.
pub(crate) struct Uploads {
    stream: Arc<CudaStream>,
    buffers: Mutex<Option<[Buffer; 2]>>,
}

impl Uploads {
    pub(crate) fn new(context: &Arc<CudaContext>) -> std::result::Result<Self, DriverError> {
        Ok(Self { stream: context.new_stream()?, buffers: Mutex::default() })
    }
}

impl Gpu {
    /// A copy of numbers in the device's memory. It is there when a kernel that is queued later runs.
    pub(crate) fn upload<T: Number>(&self, from: &[T]) -> Result<Memory<T>> {
        // SAFETY: any bytes may be read as such; numbers have no padding.
        let bytes = unsafe { slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
        self.send(from.len(), bytes.len(), &mut |at, to| to.copy_from_slice(&bytes[at..at + to.len()]))
    }

    /// The same for a matrix's rows of `neurons`, one after the other.
    pub(crate) fn rows(&self, m: &Matrix, neurons: &NeuronSet) -> Result<Memory<u8>> {
        let (view, len) = (m.view(), m.row_bytes());
        if neurons.is_all() {
            return self.upload(view.bytes());
        }
        self.send(neurons.len() * len, neurons.len() * len, &mut |mut at, mut to| {
            while !to.is_empty() {
                // a piece may begin and end within a row
                let row = &view.row(neurons.id(at / len))[at % len..];
                let (part, rest) = to.split_at_mut(row.len().min(to.len()));
                part.copy_from_slice(&row[..part.len()]);
                at += part.len();
                to = rest;
            }
        })
    }

    /// `fill` gets the place of a piece among `bytes` bytes, and where to write it.
    fn send<T: Number>(&self, len: usize, bytes: usize, fill: &mut dyn FnMut(usize, &mut [u8])) -> Result<Memory<T>> {
        if bytes == 0 {
            // no copy that its use and its end could come after
            return self.room(self.queue.as_it_is(), len);
        }
        let failed = |e| self.error(e);
        let mut guard = self.uploads.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || -> std::result::Result<Buffer, DriverError> {
            Ok(Buffer { memory: Pinned::new(&self.context, PIECE)?, done: Done::new(&self.context)? })
        };
        let buffers = match &mut *guard {
            Some(buffers) => buffers,
            none => none.insert([new().map_err(|e| self.full(e, PIECE))?, new().map_err(|e| self.full(e, PIECE))?]),
        };
        let stream = &self.uploads.stream;
        let array = self.room::<T>(stream, len)?;
        let address = self.address(&array);
        let mut sent = Ok(());
        for (i, at) in (0..bytes).step_by(PIECE).enumerate() {
            let buffer = &mut buffers[i % 2];
            let n = PIECE.min(bytes - at);
            sent = buffer.done.wait().and_then(|()| {
                fill(at, &mut buffer.memory.slice_mut()[..n]);
                // SAFETY: the array has `bytes` bytes from `address` on, and the buffer is not written before its event.
                unsafe {
                    result::memcpy_htod_async(address + at as u64, &buffer.memory.slice()[..n], stream.cu_stream())
                }?;
                buffer.done.record(stream)
            });
            if sent.is_err() {
                break;
            }
        }
        // the array is freed in the order of the kernels' queue, so that has to come after the copies, whatever happened
        let joined = self.queue.stream().and_then(|to| buffers.iter().try_for_each(|buffer| buffer.done.before(to)));
        sent.and(joined).map_err(failed)?;
        Ok(array)
    }
}
