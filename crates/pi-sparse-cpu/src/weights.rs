//! Weights as operators hold them: where they lie, or a second time in the layout that their kernels are fastest with.

use crate::{Kernels, Packed, TypeKernels, split};
use memmap2::{Mmap, MmapMut};
use pi_core::{Executor, Matrix, NeuronSet, SharedBytes};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// A matrix and the kernels for the layout that it has.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub m: Matrix,
    pub k: TypeKernels,
}

impl Weights {
    /// A matrix where it lies.
    pub(crate) fn plain(m: &Matrix, kernels: &Kernels) -> Self {
        Self { m: m.clone(), k: *kernels.get(m.ty()) }
    }
}

/// Repacks matrices while there is room. Clones share the room.
#[derive(Clone, Default)]
pub(crate) struct Packer(Arc<Room>);

#[derive(Default)]
struct Room {
    limit: u64,
    used: AtomicU64,
}

/// A part of the room, given back when the last operator that uses it is gone.
struct Taken {
    room: Arc<Room>,
    bytes: u64,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Relaxed);
    }
}

/// The bytes of a repacked matrix.
struct Repacked {
    bytes: Mmap,
    _taken: Taken,
}

impl AsRef<[u8]> for Repacked {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Packer {
    /// Room for so many bytes.
    pub(crate) fn new(limit: u64) -> Self {
        Self(Arc::new(Room { limit, used: AtomicU64::new(0) }))
    }

    /// Bytes of what is repacked now.
    pub(crate) fn used(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// A matrix, repacked if that makes it faster and there is room. Only the rows of `rows` will be used.
    pub(crate) fn weights(&self, m: &Matrix, rows: &NeuronSet, kernels: &Kernels, exec: &dyn Executor) -> Weights {
        let whole = |packed: &&Packed| m.cols().is_multiple_of(packed.columns);
        let repacked = kernels.packed(m.ty()).filter(whole).and_then(|packed| {
            let bytes = rows.len() as u64 * m.row_bytes() as u64;
            let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.0.limit);
            self.0.used.fetch_update(Relaxed, Relaxed, take).ok()?;
            let taken = Taken { room: self.0.clone(), bytes };
            Some(Weights { m: repack(m, rows, packed, exec, taken)?, k: packed.kernels })
        });
        repacked.unwrap_or_else(|| Weights::plain(m, kernels))
    }
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packer({} of {} bytes)", self.used(), self.0.limit)
    }
}

/// `None` if there is nothing to do, or no memory.
fn repack(m: &Matrix, rows: &NeuronSet, packed: &Packed, exec: &dyn Executor, taken: Taken) -> Option<Matrix> {
    if rows.is_empty() || m.row_bytes() == 0 {
        return None;
    }
    // Pages of rows that are left out are never touched and so take no memory.
    let mut bytes = MmapMut::map_anon(m.size_bytes()).ok()?;
    #[cfg(target_os = "linux")]
    if rows.is_all() {
        // Fewer entries of the page table to be looked up. If the system does not do it, nothing is lost.
        let _ = bytes.advise(memmap2::Advice::HugePage);
    }
    let view = m.view();
    let owned = (!rows.is_all()).then(|| {
        let mut owned = vec![false; m.rows()];
        rows.iter().for_each(|row| owned[row] = true);
        owned
    });
    split::chunks(exec, &mut bytes, m.row_bytes(), |row, out| {
        if owned.as_ref().is_none_or(|owned| owned[row]) {
            (packed.pack)(view.row(row), out);
        }
    });
    let repacked = Repacked { bytes: bytes.make_read_only().ok()?, _taken: taken };
    let bytes = SharedBytes::new(Arc::new(repacked), 0..m.size_bytes())?;
    Matrix::new(m.name(), m.ty(), m.rows(), m.cols(), bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;
    use pi_core::QuantType;

    fn matrix(rows: usize, cols: usize) -> Matrix {
        let data: Vec<f32> = (0..rows * cols).map(|i| (i as f32 * 0.7).sin()).collect();
        Matrix::encode("w", QuantType::Q4_0, rows, cols, &data).unwrap()
    }

    /// Reversing the nibbles of each byte stands for a layout.
    fn kernels() -> Kernels {
        let packed = Packed {
            pack: |row, out| out.iter_mut().zip(row).for_each(|(out, byte)| *out = byte.rotate_left(4)),
            kernels: TypeKernels { dot: |w, _| w[0].into(), ..*Kernels::reference().get(QuantType::Q4_0) },
            columns: 64,
        };
        Kernels::reference().with_packed(QuantType::Q4_0, packed)
    }

    #[test]
    fn matrices_are_repacked_while_there_is_room() {
        let (m, pool) = (matrix(6, 64), Pool::new(2).unwrap());
        let all = NeuronSet::all(6);
        let packer = Packer::new(2 * m.size_bytes() as u64 + 10);
        let mut kept = Vec::new();
        for i in 1..=3 {
            let w = packer.weights(&m, &all, &kernels(), &pool);
            let same = |row: usize| w.m.view().row(row) == m.view().row(row);
            let reversed = |row: usize| w.m.view().row(row)[5] == m.view().row(row)[5].rotate_left(4);
            assert!((0..6).all(|row| if i < 3 { reversed(row) && !same(row) } else { same(row) }), "{i}");
            assert_eq!((w.k.dot)(&[7], &[]) == 7.0, i < 3);
            assert_eq!(packer.used(), i.min(2) * m.size_bytes() as u64);
            kept.push(w);
        }
        kept.truncate(1);
        assert_eq!(packer.used(), m.size_bytes() as u64, "what is gone takes no room");
        assert_eq!(Packer::default().weights(&m, &all, &kernels(), &pool).m.view().bytes(), m.view().bytes());
        let none = Packer::new(u64::MAX).weights(&m, &all, &Kernels::reference(), &pool);
        assert_eq!(none.m.view().bytes(), m.view().bytes());
        let ragged = matrix(6, 96);
        let w = Packer::new(u64::MAX).weights(&ragged, &all, &kernels(), &pool);
        assert_eq!(w.m.view().bytes(), ragged.view().bytes(), "64 numbers are packed together");
    }

    #[test]
    fn only_the_rows_that_are_used_take_room() {
        let (m, pool) = (matrix(6, 64), Pool::new(2).unwrap());
        let some = NeuronSet::some(6, vec![1, 4]).unwrap();
        let packer = Packer::new(2 * m.row_bytes() as u64);
        let w = packer.weights(&m, &some, &kernels(), &pool);
        assert_eq!(packer.used(), 2 * m.row_bytes() as u64);
        for row in 0..6 {
            let want: Vec<u8> = m
                .view()
                .row(row)
                .iter()
                .map(|b| if some.iter().any(|r| r == row) { b.rotate_left(4) } else { 0 })
                .collect();
            assert_eq!(w.m.view().row(row), want);
        }
    }
}
