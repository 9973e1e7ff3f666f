//! Conformance of kernels: the functions that compute one quant type, against the plain ones of [`pi_core::quant`].
//!
//! [`check`] takes plain function pointers, so it fits the kernels of any back end:
//!
//! ```
//! use pi_core::QuantType;
//! use pi_testkit::kernels::{Activations, Functions, check};
//!
//! let ty = QuantType::Q4_0;
//! let info = ty.info();
//! let q8 = Activations {
//!     block_len: 32,
//!     block_bytes: 34,
//!     encode: QuantType::Q8_0.info().encode,
//!     decode: QuantType::Q8_0.info().decode,
//! };
//! let mine = Functions {
//!     activations: q8,
//!     plain_encode: q8.encode,
//!     dot: info.dot,
//!     dot4: |w, _, x| w.map(|w| (QuantType::Q4_0.info().dot)(w, x)),
//!     tile: None,
//!     axpy: |w, a, y| {
//!         let mut row = vec![0.0; w.len() / 18 * 32];
//!         (QuantType::Q4_0.info().decode)(w, &mut row);
//!         let whole = y.len() / 32 * 32;
//!         y[..whole].iter_mut().zip(row).for_each(|(y, w)| *y += a * w);
//!     },
//!     axpy4: None,
//!     decode: info.decode,
//! };
//! check(ty, &mine)?;
//! # Ok::<(), String>(())
//! ```

use crate::Random;
use half::f16;
use pi_core::QuantType;

/// How a back end writes rows of activations: in blocks, the last of which may be filled up with zeros.
#[derive(Clone, Copy, Debug)]
pub struct Activations {
    /// Numbers per block.
    pub block_len: usize,
    /// Bytes per block.
    pub block_bytes: usize,
    /// Writes a row.
    pub encode: fn(&[f32], &mut [u8]),
    /// Reads whole blocks.
    pub decode: fn(&[u8], &mut [f32]),
}

/// How a back end computes one quant type. Rows are bytes at any alignment; every function stops at the shortest of its
/// arguments in whole blocks and leaves the rest alone.
#[derive(Clone, Copy, Debug)]
pub struct Functions {
    /// What stands beside weights in [`dot`](Self::dot).
    pub activations: Activations,
    /// A plain encoder of activations, which must write the same bytes.
    pub plain_encode: fn(&[f32], &mut [u8]),
    /// Scalar product of a row of weights with a row of activations.
    pub dot: fn(&[u8], &[u8]) -> f32,
    /// Four rows at once; equal to four times [`dot`](Self::dot), to the bit.
    pub dot4: Dot4,
    /// Some rows (64 at most) beside several rows of activations that lie so many bytes apart, into a row of numbers for each
    /// of these; equal to [`dot`](Self::dot), to the bit.
    pub tile: Option<Tile>,
    /// `y += a * decode(w)`.
    pub axpy: fn(&[u8], f32, &mut [f32]),
    /// Four rows, one after the other; equal to four times [`axpy`](Self::axpy), to the bit.
    pub axpy4: Option<Axpy4>,
    /// Decodes exactly.
    pub decode: fn(&[u8], &mut [f32]),
}

/// See [`Functions::tile`].
pub type Tile = fn(&[&[u8]], &[u8], usize, &mut [f32]);
/// See [`Functions::dot4`]. The second four rows are those that will be wanted next, or empty: no more than a hint.
pub type Dot4 = fn([&[u8]; 4], [&[u8]; 4], &[u8]) -> [f32; 4];
/// See [`Functions::axpy4`], and [`Dot4`] for the hint.
pub type Axpy4 = fn([&[u8]; 4], [&[u8]; 4], [f32; 4], &mut [f32]);

/// Rows that may follow `w`, as a hint: none, others, and shorter ones.
fn nexts(w: [&[u8]; 4]) -> [[&[u8]; 4]; 3] {
    [[&[]; 4], [w[3], w[1], w[0], w[2]], w.map(|w| &w[..w.len() / 3])]
}

/// Fails unless `f` computes type `ty`: rows of all kinds of lengths, at odd addresses, with scales and codes at their
/// limits, and cut anywhere.
///
/// Products may be off by 4·10⁻⁶ of the sum of magnitudes, scaled rows by three roundings of f32. Decoding, encoding and the
/// product of four rows must be equal to the bit.
///
/// # Errors
/// What differed first, with the numbers.
pub fn check(ty: QuantType, f: &Functions) -> Result<(), String> {
    let case = Case { ty, f };
    case.products()?;
    case.scales()?;
    case.limits()?;
    case.large_sums()?;
    case.four_rows()?;
    case.tiles()?;
    case.decoding()?;
    case.scaled_rows()?;
    case.four_scaled_rows()?;
    case.encoding()?;
    case.cuts()
}

/// A row at an odd place in memory.
struct Unaligned {
    bytes: Vec<u8>,
    offset: usize,
}

impl Unaligned {
    fn new(row: &[u8], offset: usize) -> Self {
        let mut bytes = vec![0x5a; offset];
        bytes.extend_from_slice(row);
        Self { bytes, offset }
    }

    fn row(&self) -> &[u8] {
        &self.bytes[self.offset..]
    }
}

/// All numbers of a row, decoded by the reference.
pub fn decode(ty: QuantType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / ty.info().block_bytes * ty.info().block_len];
    (ty.info().decode)(bytes, &mut out);
    out
}

fn encode(ty: QuantType, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0; x.len() / ty.info().block_len * ty.info().block_bytes];
    (ty.info().encode)(x, &mut out);
    out
}

fn normals(rng: &mut Random, n: usize, size: f32) -> Vec<f32> {
    (0..n).map(|_| rng.normal() * size).collect()
}

fn bytes(rng: &mut Random, n: usize) -> Vec<u8> {
    (0..n).map(|_| rng.bits() as u8).collect()
}

/// Sets all scales of a row.
fn set_scales(ty: QuantType, row: &mut [u8], mut scale: impl FnMut() -> f32) {
    let places: &[usize] = match ty {
        QuantType::F32 | QuantType::F16 | QuantType::BF16 => return,
        QuantType::Q8_K => {
            for block in row.chunks_mut(292) {
                block[..4].copy_from_slice(&scale().to_le_bytes());
            }
            return;
        }
        QuantType::Q2_K => &[80, 82],
        QuantType::Q3_K => &[108],
        QuantType::Q6_K => &[208],
        QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q8_1 | QuantType::Q4_K | QuantType::Q5_K => &[0, 2],
        _ => &[0],
    };
    for block in row.chunks_mut(ty.info().block_bytes) {
        for at in places {
            block[*at..at + 2].copy_from_slice(&f16::from_f32(scale()).to_le_bytes());
        }
    }
}

/// A row of any codes, but with scales of a size that sums can bear.
pub fn random_row(ty: QuantType, blocks: usize, rng: &mut Random) -> Vec<u8> {
    if ty.is_float() {
        return encode(ty, &normals(rng, blocks, 1.0));
    }
    let mut row = bytes(rng, blocks * ty.info().block_bytes);
    set_scales(ty, &mut row, || rng.normal());
    row
}

/// What a product may be off by: 4e-6 of the largest weight of each 256 times the activations' magnitudes there. Kernels
/// add in f32, with minima apart from codes, so that terms larger than the products themselves may cancel.
fn tolerance(w: &[f32], x: &[f32]) -> f64 {
    let parts = w.chunks(256).zip(x.chunks(256));
    let magnitudes = parts.map(|(w, x)| {
        let max = w.iter().fold(0.0, |m: f32, v| m.max(v.abs()));
        x.iter().map(|x| f64::from(x.abs()) * f64::from(max)).sum::<f64>()
    });
    magnitudes.sum::<f64>() * 4e-6 + 1e-30
}

/// The product of decoded rows in f64.
fn plain_dot(w: &[f32], x: &[f32]) -> f64 {
    w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
}

/// NaN is within nothing.
fn within(got: f64, want: f64, tolerance: f64) -> bool {
    (got - want).abs() <= tolerance
}

struct Case<'a> {
    ty: QuantType,
    f: &'a Functions,
}

impl Case<'_> {
    fn block_counts(&self) -> Vec<usize> {
        match self.ty.info().block_len {
            1 => (0..35).chain([63, 255, 256, 257, 300, 513]).collect(),
            32 => (0..10).chain([17]).collect(),
            _ => vec![0, 1, 2, 3, 5],
        }
    }

    fn fail(&self, what: impl AsRef<str>) -> Result<(), String> {
        Err(format!("{}: {}", self.ty, what.as_ref()))
    }

    fn activations(&self, x: &[f32]) -> Vec<u8> {
        let a = &self.f.activations;
        let mut bytes = vec![0xa5; x.len().div_ceil(a.block_len) * a.block_bytes];
        (a.encode)(x, &mut bytes);
        bytes
    }

    fn decoded(&self, bytes: &[u8]) -> Vec<f32> {
        let a = &self.f.activations;
        let mut x = vec![0.0; bytes.len() / a.block_bytes * a.block_len];
        (a.decode)(bytes, &mut x);
        x
    }

    fn product(&self, what: &str, w: &[u8], a: &[u8], slack: f64) -> Result<(), String> {
        let (w_numbers, x) = (decode(self.ty, w), self.decoded(a));
        let (got, want) = ((self.f.dot)(w, a), plain_dot(&w_numbers, &x));
        let tolerance = slack * tolerance(&w_numbers, &x);
        if within(f64::from(got), want, tolerance) {
            return Ok(());
        }
        self.fail(format!("the product of {what}: {got} instead of {want} ± {tolerance}"))
    }

    fn products(&self) -> Result<(), String> {
        let mut rng = Random(1);
        for blocks in self.block_counts() {
            for (offset, size) in [(0, 1.0), (1, 1e-3), (2, 1e3), (3, 1e-7)] {
                let w = Unaligned::new(&random_row(self.ty, blocks, &mut rng), offset);
                let x = normals(&mut rng, blocks * self.ty.info().block_len, size);
                let a = Unaligned::new(&self.activations(&x), 3 - offset);
                self.product(&format!("{blocks} blocks, activations about {size}"), w.row(), a.row(), 1.0)?;
            }
        }
        Ok(())
    }

    /// The smallest and largest scales that half precision has, and zero.
    fn scales(&self) -> Result<(), String> {
        let mut rng = Random(8);
        for scale in [0.0, 6e-8, -6e-8, 3e-6, 65504.0, -65504.0] {
            let mut w = random_row(self.ty, 512 / self.ty.info().block_len, &mut rng);
            set_scales(self.ty, &mut w, || scale);
            let a = self.activations(&normals(&mut rng, 512, 1.0));
            self.product(&format!("a row with scales of {scale}"), &w, &a, 1.0)?;
        }
        Ok(())
    }

    /// Codes at their limits, beside activations at theirs, of all signs.
    fn limits(&self) -> Result<(), String> {
        let mut rng = Random(7);
        let info = self.ty.info();
        if info.block_len == 1 {
            return Ok(());
        }
        for w_byte in [0x00, 0x7f, 0x80, 0x88, 0xff] {
            let mut w = vec![w_byte; 512 / info.block_len * info.block_bytes];
            set_scales(self.ty, &mut w, || 1.0);
            for signs in [0u64, u64::MAX, 0x5555_5555_5555_5555, rng.bits()] {
                let x: Vec<f32> = (0..512).map(|i| if signs >> (i % 64) & 1 == 1 { -2.5 } else { 2.5 }).collect();
                let what = format!("codes {w_byte:#x} and the largest activations with signs {signs:#x}");
                self.product(&what, &w, &self.activations(&x), 1.0)?;
            }
        }
        // whatever the bytes, nothing may panic
        for _ in 0..50 {
            let w = bytes(&mut rng, 512 / info.block_len * info.block_bytes);
            let a = &self.f.activations;
            (self.f.dot)(&w, &bytes(&mut rng, 512usize.div_ceil(a.block_len) * a.block_bytes));
        }
        Ok(())
    }

    /// Activations of 7·10⁴ and blocks whose sum passes 65504, the end of half precision.
    fn large_sums(&self) -> Result<(), String> {
        let mut rng = Random(9);
        let w = encode(self.ty, &normals(&mut rng, 512, 0.1));
        for (small, large) in [(1.0, 7e4), (7e4, 7e4), (-9e4, 1e6), (3e3, -3e3)] {
            let x: Vec<f32> = (0..512).map(|i| if i % 37 == 5 { large } else { small }).collect();
            let a = self.activations(&x);
            self.product(&format!("activations of {small} and {large}"), &w, &a, 1.0)?;
        }
        Ok(())
    }

    fn four_rows(&self) -> Result<(), String> {
        let mut rng = Random(2);
        for blocks in self.block_counts() {
            let rows: [_; 4] = std::array::from_fn(|i| Unaligned::new(&random_row(self.ty, blocks, &mut rng), i));
            let mut w = [0, 1, 2, 3].map(|i| rows[i].row());
            let a = self.activations(&normals(&mut rng, blocks * self.ty.info().block_len, 1.0));
            let equal = |w: [&[u8]; 4], a: &[u8]| {
                for next in nexts(w) {
                    let (four, one) = ((self.f.dot4)(w, next, a), w.map(|w| (self.f.dot)(w, a)));
                    if four.map(f32::to_bits) != one.map(f32::to_bits) {
                        return self.fail(format!("four rows of {blocks} blocks: {four:?}, one at a time {one:?}"));
                    }
                }
                Ok(())
            };
            equal(w, &a)?;
            equal(w, &a[..a.len() / 2])?;
            w[2] = &w[2][..w[2].len() / 2];
            equal(w, &a)?;
        }
        Ok(())
    }

    /// All numbers of tokens from none to more than any kernel takes at a time, at any distance.
    fn tiles(&self) -> Result<(), String> {
        let Some(tile) = self.f.tile else { return Ok(()) };
        let mut rng = Random(12);
        for (round, blocks) in self.block_counts().into_iter().enumerate() {
            let n = blocks * self.ty.info().block_len;
            let many = [1, 3, 4, 8, 12, 23, 64][round % 7];
            let rows: Vec<_> = (0..many).map(|i| Unaligned::new(&random_row(self.ty, blocks, &mut rng), i)).collect();
            let mut w: Vec<&[u8]> = rows.iter().map(Unaligned::row).collect();
            let tokens = [0, 1, 2, 3, 5, 31, 33, 70][round % 8];
            let row_bytes = self.activations(&vec![0.0; n]).len() + round % 3 * 64;
            let mut x = vec![0x5a; tokens * row_bytes];
            for x in x.chunks_mut(row_bytes.max(1)) {
                let a = self.activations(&normals(&mut rng, n, 1.0));
                x[..a.len()].copy_from_slice(&a);
            }
            let equal = |w: &[&[u8]], x: &[u8]| {
                let mut got = vec![7.0; tokens * w.len()];
                tile(w, x, row_bytes, &mut got);
                for (t, got) in got.chunks(w.len()).enumerate() {
                    for (r, (got, w)) in got.iter().zip(w).enumerate() {
                        let want = (self.f.dot)(w, x.get(t * row_bytes..).unwrap_or(&[]));
                        if got.to_bits() != want.to_bits() {
                            return self.fail(format!(
                                "row {r} of {many} beside token {t} of {tokens} in a tile of {blocks} blocks: {got} \
                                 instead of {want}"
                            ));
                        }
                    }
                }
                Ok(())
            };
            equal(&w, &x)?;
            equal(&w, &x[..x.len() / 2])?;
            w[many / 2] = &w[many / 2][..w[many / 2].len() / 2];
            equal(&w, &x)?;
        }
        Ok(())
    }

    fn four_scaled_rows(&self) -> Result<(), String> {
        let Some(axpy4) = self.f.axpy4 else { return Ok(()) };
        let mut rng = Random(13);
        for blocks in self.block_counts() {
            let rows: [_; 4] = std::array::from_fn(|i| Unaligned::new(&random_row(self.ty, blocks, &mut rng), i));
            let mut w = [0, 1, 2, 3].map(|i| rows[i].row());
            let before = normals(&mut rng, blocks * self.ty.info().block_len, 1.0);
            let equal = |w: [&[u8]; 4], len: usize| {
                let a = [1.0, -0.37, 0.0, 7e3];
                let mut one = before[..len].to_vec();
                w.into_iter().zip(a).for_each(|(w, a)| (self.f.axpy)(w, a, &mut one));
                for next in nexts(w) {
                    let mut four = before[..len].to_vec();
                    axpy4(w, next, a, &mut four);
                    if four.iter().zip(&one).any(|(a, b)| a.to_bits() != b.to_bits()) {
                        return self.fail(format!("four scaled rows of {blocks} blocks differ from one at a time"));
                    }
                }
                Ok(())
            };
            equal(w, before.len())?;
            equal(w, before.len() / 2)?;
            w[2] = &w[2][..w[2].len() / 2];
            equal(w, before.len())?;
        }
        Ok(())
    }

    /// To the bit, except that any NaN is as good as another.
    fn decoding(&self) -> Result<(), String> {
        let mut rng = Random(3);
        for blocks in self.block_counts() {
            for offset in 0..4 {
                // any bytes: scales may be subnormal, infinite or NaN
                let w = Unaligned::new(&bytes(&mut rng, blocks * self.ty.info().block_bytes), offset);
                let mut got = vec![7.0; blocks * self.ty.info().block_len];
                (self.f.decode)(w.row(), &mut got);
                for (i, (g, w)) in got.iter().zip(decode(self.ty, w.row())).enumerate() {
                    if g.to_bits() != w.to_bits() && !(g.is_nan() && w.is_nan()) {
                        return self.fail(format!("number {i} of {blocks} blocks decoded: {g} instead of {w}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Within three roundings of f32.
    fn scaled_rows(&self) -> Result<(), String> {
        let mut rng = Random(4);
        for blocks in self.block_counts() {
            for a in [1.0, -0.37, 1e-20, 0.0, 7e4] {
                let w = Unaligned::new(&random_row(self.ty, blocks, &mut rng), blocks % 4);
                let before = normals(&mut rng, blocks * self.ty.info().block_len, 1.0);
                let mut y = before.clone();
                (self.f.axpy)(w.row(), a, &mut y);
                for ((got, y), w) in y.iter().zip(before).zip(decode(self.ty, w.row())) {
                    let want = f64::from(y) + f64::from(a) * f64::from(w);
                    let tolerance = f64::from(y.abs() + (a * w).abs()) * 1.8e-7;
                    if !within(f64::from(*got), want, tolerance) {
                        return self.fail(format!("{y} + {a} · {w}: {got} instead of {want}"));
                    }
                }
            }
        }
        Ok(())
    }

    fn encoding(&self) -> Result<(), String> {
        const ODD: [f32; 15] = [
            0.0,
            -0.0,
            1e-45,
            -1e-45,
            1e-40,
            1e-38,
            1e-30,
            6e-8,
            65504.0,
            1e30,
            f32::MAX,
            f32::MIN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        let mut rng = Random(5);
        let equal = |x: &[f32]| {
            let got = self.activations(x);
            let mut want = vec![0x5a; got.len()];
            (self.f.plain_encode)(x, &mut want);
            if got == want { Ok(()) } else { self.fail(format!("other bytes for activations: {x:?}")) }
        };
        for round in 0..200 {
            let mut x = normals(&mut rng, round % 4 * 256, [1.0, 1e-3, 1e5, 1e-37, 1e-41][round % 5]);
            equal(&x)?;
            // with 127 as the largest, halves are ties
            for (i, x) in x.iter_mut().enumerate() {
                *x = if i % 32 == 5 { 127.0 } else { rng.below(509) as f32 / 2.0 - 127.0 };
            }
            equal(&x)?;
            for x in &mut x {
                if rng.below(40) == 0 {
                    *x = ODD[rng.below(ODD.len())];
                }
            }
            equal(&x)?;
            for x in &mut x {
                *x = f32::from_bits(rng.bits() as u32);
            }
            equal(&x)?;
        }
        ODD.into_iter().try_for_each(|v| equal(&[v; 512]))
    }

    /// Slices that end within a block are cut to whole blocks, and nothing is written beyond.
    fn cuts(&self) -> Result<(), String> {
        let mut rng = Random(6);
        let (info, act) = (self.ty.info(), &self.f.activations);
        let w = random_row(self.ty, 768 / info.block_len, &mut rng);
        let a = self.activations(&normals(&mut rng, 768, 1.0));
        for _ in 0..60 {
            let (wn, an, yn) = (rng.below(w.len() + 1), rng.below(a.len() + 1), rng.below(800));
            let n = (wn / info.block_bytes * info.block_len).min(an / act.block_bytes * act.block_len);
            let n = n - n % info.block_len;
            let got = (self.f.dot)(&w[..wn], &a[..an]);
            let whole =
                (&w[..n / info.block_len * info.block_bytes], &a[..n.div_ceil(act.block_len) * act.block_bytes]);
            let want = (self.f.dot)(whole.0, whole.1);
            if got.to_bits() != want.to_bits() {
                return self.fail(format!("the product of {wn} and {an} bytes: {got} instead of {want}"));
            }
            type Update<'a> = &'a dyn Fn(&[u8], &mut [f32]);
            let blocks = (wn / info.block_bytes).min(yn / info.block_len);
            let updates: [(&str, Update<'_>); 2] =
                [("decode", &|w, y| (self.f.decode)(w, y)), ("axpy", &|w, y| (self.f.axpy)(w, 2.0, y))];
            for (name, update) in updates {
                let (mut y, mut whole) = (vec![7.0; yn], vec![7.0; blocks * info.block_len]);
                update(&w[..wn], &mut y);
                update(&w[..blocks * info.block_bytes], &mut whole);
                let (filled, rest) = y.split_at(whole.len());
                if filled != whole || rest.iter().any(|v| *v != 7.0) {
                    return self.fail(format!("{name} of {wn} bytes into {yn} numbers: not its whole blocks alone"));
                }
            }
        }
        (self.f.dot4)([&w, &[], &w[..1], &w], [&w, &[], &w[..1], &w], &a);
        Ok(())
    }
}
