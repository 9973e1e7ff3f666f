//! Writing to different parts of one array from several tasks.
//!
//! The functions here hand out parts that cannot overlap, so that operators need no unsafe code of their own.
#![allow(unsafe_code)]

use pi_core::Executor;
use std::{
    marker::PhantomData,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

/// Most parts an array is cut into.
const MAX_PARTS: usize = 1024;

/// Remembers which parts were handed out, so that an executor that runs a task twice cannot make two `&mut` to one part.
struct Claims([AtomicU64; MAX_PARTS / 64]);

impl Claims {
    fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_PARTS / 64])
    }

    fn claim(&self, part: usize) {
        let bit = 1 << (part % 64);
        assert!(self.0[part / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0, "the executor ran task {part} twice");
    }
}

/// A pointer that may go to another thread; the functions below see to it that parts are disjoint.
struct Base<T>(*mut T);
// SAFETY: used only to make disjoint `&mut` parts of a `&mut [T]`, with `T: Send`.
unsafe impl<T: Send> Sync for Base<T> {}

/// The columns `range` of a row-major array, for one task.
pub struct Columns<'a, T = f32> {
    base: *mut T,
    rows: usize,
    stride: usize,
    range: Range<usize>,
    life: PhantomData<&'a mut T>,
}

impl<T> Columns<'_, T> {
    /// The columns of this part.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// This part of row `r`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&mut self, r: usize) -> &mut [T] {
        assert!(r < self.rows);
        // SAFETY: row and range lie within the array (checked in `columns_of`); the claim there makes sure that only one task
        // has this range; the borrow of `self` keeps one row from being borrowed twice.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(r * self.stride + self.range.start), self.range.len()) }
    }
}

/// Cuts `data`, rows of `cols` numbers, into runs of columns that start at multiples of `step` and are at least `min` wide
/// (except the last), and calls `f` for each, in parallel.
///
/// # Panics
/// If `data` is not a whole number of rows, or `step` is 0.
pub fn columns<T: Send>(
    exec: &dyn Executor,
    data: &mut [T],
    cols: usize,
    step: usize,
    min: usize,
    f: impl Fn(Columns<'_, T>) + Sync,
) {
    columns_of(exec, [(data, cols)], step, min, |_, part| f(part));
}

/// The same for several arrays in one section, as if their columns stood side by side: `f` gets the array's number, too.
/// Only the first array's runs are sure to start at multiples of `step`.
///
/// # Panics
/// As [`columns`].
pub fn columns_of<T: Send, const N: usize>(
    exec: &dyn Executor,
    arrays: [(&mut [T], usize); N],
    step: usize,
    min: usize,
    f: impl Fn(usize, Columns<'_, T>) + Sync,
) {
    assert!(step > 0);
    let mut total = 0;
    let arrays = arrays.map(|(data, cols)| {
        assert!(data.len().is_multiple_of(cols.max(1)));
        let start = total;
        total += cols;
        (Base(data.as_mut_ptr()), data.len() / cols.max(1), start, cols)
    });
    if total == 0 {
        return;
    }
    // A few parts per thread: enough to even out a slow core, not so many that handing them out costs; the same number for
    // each thread.
    let (threads, most) = (exec.width().max(1), total.div_ceil(min.max(1)));
    let wanted = [4, 2, 1].map(|each| each * threads).into_iter().find(|parts| *parts <= most);
    let wanted = if threads == 1 { 1 } else { wanted.unwrap_or(most).min(MAX_PARTS) };
    let width = total.div_ceil(wanted).max(min).next_multiple_of(step);
    let (parts, claims) = (total.div_ceil(width), Claims::new());
    let arrays = &arrays;
    exec.run(parts, &|i| {
        assert!(i < parts);
        claims.claim(i);
        for (a, (base, rows, start, cols)) in arrays.iter().enumerate() {
            let (from, to) = ((i * width).max(*start), ((i + 1) * width).min(start + cols));
            if from < to {
                let range = from - start..to - start;
                f(a, Columns { base: base.0, rows: *rows, stride: *cols, range, life: PhantomData });
            }
        }
    });
}

/// Cuts `data` into chunks of `len` (the last may be shorter) and calls `f(index, chunk)` for each, in parallel.
///
/// # Panics
/// If `len` is 0.
pub fn chunks<T: Send>(exec: &dyn Executor, data: &mut [T], len: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    assert!(len > 0);
    let total = data.len();
    let per_task = total.div_ceil(len).div_ceil(MAX_PARTS);
    let width = per_task * len;
    let (base, claims) = (Base(data.as_mut_ptr()), Claims::new());
    exec.run(total.div_ceil(width.max(1)), &|i| {
        claims.claim(i);
        let base = &base;
        let (start, end) = ((i * width).min(total), ((i + 1) * width).min(total));
        // SAFETY: `start..end` lies within the slice, and the claim makes sure that only one task has it.
        let part = unsafe { std::slice::from_raw_parts_mut(base.0.add(start), end - start) };
        part.chunks_mut(len).enumerate().for_each(|(k, chunk)| f(i * per_task + k, chunk));
    });
}

/// Cuts `data`, rows of `cols` numbers, into blocks: rows `cuts[i]..cuts[i + 1]` by runs of `width` columns. Calls
/// `f(i, part)` for each, in parallel, the last rows first.
///
/// # Panics
/// If `data` is not a whole number of rows, `cuts` do not ascend or lie beyond the rows, or `width` does not divide `cols`.
pub fn blocks(
    exec: &dyn Executor,
    data: &mut [f32],
    cols: usize,
    cuts: &[usize],
    width: usize,
    f: impl Fn(usize, Columns<'_>) + Sync,
) {
    if cols == 0 || cuts.len() < 2 {
        return;
    }
    assert!(width > 0 && cols.is_multiple_of(width) && data.len().is_multiple_of(cols));
    assert!(cuts.is_sorted() && cuts[cuts.len() - 1] <= data.len() / cols);
    let across = cols / width;
    let all = (cuts.len() - 1) * across;
    let per_task = all.div_ceil(MAX_PARTS);
    let parts = all.div_ceil(per_task);
    let (base, claims) = (Base(data.as_mut_ptr()), Claims::new());
    exec.run(parts, &|task| {
        assert!(task < parts);
        claims.claim(task);
        let base = &base;
        for at in (task * per_task..all.min((task + 1) * per_task)).map(|at| all - 1 - at) {
            let (i, column) = (at / across, at % across * width);
            let (from, to) = (cuts[i], cuts[i + 1]);
            // SAFETY: the cuts lie within the array, as was checked above; different parts share no row or no column, and
            // the claim makes sure that only one task has them.
            let base = unsafe { base.0.add(from * cols) };
            f(i, Columns { base, rows: to - from, stride: cols, range: column..column + width, life: PhantomData });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pool;

    #[test]
    fn parts_cover_everything_once() {
        let pool = Pool::new(3).unwrap();
        for (rows, cols, step, min) in [(1, 1, 1, 1), (3, 100, 32, 1), (2, 97, 4, 40), (5, 0, 1, 1), (4, 256, 256, 1)] {
            let mut data = vec![0.0; rows * cols];
            columns(&pool, &mut data, cols, step, min, |mut part| {
                assert_eq!(part.range().start % step, 0);
                for r in 0..rows {
                    part.row(r).iter_mut().for_each(|v| *v += 1.0);
                }
            });
            assert!(data.iter().all(|&v| v == 1.0), "{rows} x {cols}");
        }
        let (mut a, mut b, mut c) = (vec![0.0; 3 * 20], vec![0.0; 0], vec![0.0; 2 * 37]);
        columns_of(&pool, [(&mut a, 20), (&mut b, 0), (&mut c, 37)], 4, 4, |i, mut part| {
            for r in 0..[3, 0, 2][i] {
                part.row(r).iter_mut().for_each(|v| *v += 1.0 + i as f32);
            }
        });
        assert!(a.iter().all(|&v| v == 1.0) && c.iter().all(|&v| v == 3.0));
        let mut data = vec![0usize; 101];
        chunks(&pool, &mut data, 10, |i, c| c.iter_mut().for_each(|v| *v += i + 1));
        assert!(data.iter().enumerate().all(|(i, &v)| v == i / 10 + 1));
        let mut data = vec![0usize; 5000];
        chunks(&pool, &mut data, 2, |i, c| c.iter_mut().for_each(|v| *v += i + 1));
        assert!(data.iter().enumerate().all(|(i, &v)| v == i / 2 + 1));
        chunks(&pool, &mut [0u8; 0], 2, |_, _| panic!("there is nothing"));
        for (rows, cols, width) in [(7, 6, 2), (7, 6, 6), (1500, 3, 1)] {
            let cuts: Vec<usize> = [0, 0, 1, 4].into_iter().chain(5..=rows).collect();
            let mut data = vec![0.0; rows * cols];
            blocks(&pool, &mut data, cols, &cuts, width, |i, mut part| {
                for r in 0..cuts[i + 1] - cuts[i] {
                    let from = part.range().start;
                    let row = part.row(r).iter_mut().enumerate();
                    row.for_each(|(c, v)| *v += ((cuts[i] + r) * cols + from + c) as f32);
                }
            });
            assert!(data.iter().enumerate().all(|(i, &v)| v == i as f32), "{rows} rows of {cols} by {width}");
        }
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn an_executor_that_runs_a_task_twice_is_found_out() {
        struct Twice;
        impl Executor for Twice {
            fn width(&self) -> usize {
                1
            }
            fn run(&self, _: usize, task: &(dyn Fn(usize) + Sync)) {
                task(0);
                task(0);
            }
        }
        chunks(&Twice, &mut [0u8; 4], 4, |_, _| {});
    }
}
