//! Keys and values of a session's sequences.

use half::f16;
use pi_core::{Error, KvType, Limits, QuantType, Result};

/// One store: `[sequence][head][position][head_dim]`, so that a head's rows are read in one stream.
///
/// Memory comes zeroed from the system and is touched only as sequences grow.
#[derive(Debug)]
pub(crate) struct KvStore {
    kind: KvType,
    data: Vec<Vec<u8>>,
    heads: usize,
    head_dim: usize,
    context: usize,
}

impl KvStore {
    pub(crate) fn new(kind: KvType, limits: &Limits, heads: usize, head_dim: usize) -> Result<Self> {
        let bytes = [limits.context, heads, head_dim, kind.bytes()]
            .into_iter()
            .try_fold(1usize, usize::checked_mul)
            .filter(|&b| b <= isize::MAX as usize)
            .ok_or_else(|| Error::Limit {
                what: "bytes of the KV cache".into(),
                limit: isize::MAX as usize,
                got: usize::MAX,
            })?;
        // All of it at once first: a sum that cannot be had is refused before its parts are taken.
        let all = limits.sequences.saturating_mul(bytes);
        Vec::<u8>::new().try_reserve_exact(all).map_err(|_| no_memory("a KV cache", all, 1))?;
        let data = (0..limits.sequences).map(|_| zeroed("a KV cache", bytes)).collect::<Result<_>>()?;
        Ok(Self { kind, data, heads, head_dim, context: limits.context })
    }

    /// How rows are stored, as a quant type: for the kernels.
    pub(crate) fn ty(&self) -> QuantType {
        match self.kind {
            KvType::F32 => QuantType::F32,
            _ => QuantType::F16,
        }
    }

    fn row_bytes(&self) -> usize {
        self.head_dim * self.kind.bytes()
    }

    /// Stores all heads of one position; `row` holds `heads × head_dim` numbers.
    pub(crate) fn put(&mut self, seq: usize, pos: usize, row: &[f32]) {
        let (row_bytes, context) = (self.row_bytes(), self.context);
        for (h, head) in row.chunks_exact(self.head_dim).enumerate().take(self.heads) {
            let at = (h * context + pos) * row_bytes;
            let out = &mut self.data[seq][at..at + row_bytes];
            match self.kind {
                KvType::F32 => out.copy_from_slice(bytemuck::cast_slice(head)),
                _ => {
                    for (o, &v) in out.as_chunks_mut::<2>().0.iter_mut().zip(head) {
                        *o = f16::from_f32(v).to_le_bytes();
                    }
                }
            }
        }
    }

    /// The rows of one head, positions `from..to`.
    pub(crate) fn rows(&self, seq: usize, head: usize, from: usize, to: usize) -> &[u8] {
        let (row_bytes, base) = (self.row_bytes(), head * self.context);
        &self.data[seq][(base + from) * row_bytes..(base + to) * row_bytes]
    }
}

/// Zeros, or an error instead of an abort when the system has no memory for them.
pub(crate) fn zeroed<T: Copy + Default>(what: &str, n: usize) -> Result<Vec<T>> {
    // `vec![0; n]` asks the system for zeroed pages but aborts on failure: try the reservation first.
    Vec::<T>::new().try_reserve_exact(n).map_err(|_| no_memory(what, n, size_of::<T>()))?;
    Ok(vec![T::default(); n])
}

fn no_memory(what: &str, n: usize, size: usize) -> Error {
    let bytes = n as u128 * size as u128;
    Error::Device { device: "cpu".into(), message: format!("no memory for {what} of {bytes} bytes") }
}
