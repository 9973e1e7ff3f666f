//! Keys and values of a session's sequences.

use pi_core::{Error, KvType, Limits, QuantType, Result};

/// One store: `[sequence][head][position][head_dim]`, so that a head's rows are read in one stream.
///
/// Memory comes zeroed from the system and is touched only as sequences grow.
#[derive(Debug)]
pub(crate) struct KvStore {
    ty: QuantType,
    /// Bytes of one head at one position.
    row_bytes: usize,
    data: Vec<Vec<u8>>,
    head_dim: usize,
    context: usize,
}

impl KvStore {
    pub(crate) fn new(kind: KvType, limits: &Limits, heads: usize, head_dim: usize) -> Result<Self> {
        let ty = kind.quant();
        let row_bytes = kind.row_bytes(head_dim).ok_or_else(|| Error::Block {
            what: "heads of the KV cache".into(),
            cols: head_dim,
            ty,
        })?;
        let bytes = [limits.context, heads, row_bytes]
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
        Ok(Self { ty, row_bytes, data, head_dim, context: limits.context })
    }

    /// How rows are stored.
    pub(crate) fn ty(&self) -> QuantType {
        self.ty
    }

    /// Bytes of one head at one position.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Stores all heads of one position; `row` holds `heads × head_dim` numbers, which `encode` writes as [`ty`](Self::ty).
    pub(crate) fn put(&mut self, seq: usize, pos: usize, row: &[f32], encode: fn(&[f32], &mut [u8])) {
        let data = &mut self.data[seq];
        for (h, head) in row.chunks_exact(self.head_dim).enumerate() {
            let at = (h * self.context + pos) * self.row_bytes;
            encode(head, &mut data[at..at + self.row_bytes]);
        }
    }

    /// The rows of one head, positions `from..to`.
    pub(crate) fn rows(&self, seq: usize, head: usize, from: usize, to: usize) -> &[u8] {
        let base = head * self.context;
        &self.data[seq][(base + from) * self.row_bytes..(base + to) * self.row_bytes]
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
