//! Every kernel of every instruction set that this CPU has, against the plain functions of `pi_core`.

use half::f16;
use pi_core::{Error, QuantType};
use pi_sparse_cpu::{Isa, Kernels, TypeKernels};

/// A small generator of numbers (splitmix64), so that a failure can be repeated.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// Nearly normal, by adding uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..4).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32 - 0.5).sum::<f32>() * 1.7
    }

    fn normals(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * size).collect()
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
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

fn all() -> impl Iterator<Item = (Kernels, QuantType, TypeKernels)> {
    Isa::available().into_iter().flat_map(|isa| {
        let kernels = Kernels::for_isa(isa).expect("available");
        QuantType::ALL.map(|ty| (kernels.clone(), ty, *kernels.get(ty)))
    })
}

fn decode(ty: QuantType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / ty.info().block_bytes * ty.info().block_len];
    (ty.info().decode)(bytes, &mut out);
    out
}

fn encode(ty: QuantType, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0; x.len() / ty.info().block_len * ty.info().block_bytes];
    (ty.info().encode)(x, &mut out);
    out
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
fn random_row(ty: QuantType, blocks: usize, rng: &mut Rng) -> Vec<u8> {
    if ty.is_float() {
        return encode(ty, &rng.normals(blocks, 1.0));
    }
    let mut row = rng.bytes(blocks * ty.info().block_bytes);
    set_scales(ty, &mut row, || rng.normal());
    row
}

fn activations(kernels: &Kernels, k: &TypeKernels, x: &[f32]) -> Vec<u8> {
    let mut a = vec![0; k.activation.row_bytes(x.len()).expect("whole blocks")];
    kernels.encode(k.activation)(x, &mut a);
    a
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

/// The product, in f64 where activations are F32.
fn plain_dot(ty: QuantType, activation: QuantType, w: &[u8], x: &[u8]) -> f64 {
    if activation == ty.info().activation {
        return f64::from((ty.info().dot)(w, x));
    }
    let pairs = decode(ty, w).into_iter().zip(decode(activation, x));
    pairs.map(|(w, x)| f64::from(w) * f64::from(x)).sum()
}

fn block_counts(ty: QuantType) -> Vec<usize> {
    match ty.info().block_len {
        1 => (0..35).chain([63, 255, 256, 257, 300, 513]).collect(),
        32 => (0..10).chain([17]).collect(),
        _ => vec![0, 1, 2, 3, 5],
    }
}

#[test]
fn products_equal_the_plain_ones() {
    let mut rng = Rng(1);
    for (kernels, ty, k) in all() {
        for blocks in block_counts(ty) {
            for (offset, size) in [(0, 1.0), (1, 1e-3), (2, 1e3), (3, 1e-7)] {
                let w = Unaligned::new(&random_row(ty, blocks, &mut rng), offset);
                let x = rng.normals(blocks * ty.info().block_len, size);
                let a = Unaligned::new(&activations(&kernels, &k, &x), 3 - offset);
                let (got, want) = ((k.dot)(w.row(), a.row()), plain_dot(ty, k.activation, w.row(), a.row()));
                let tolerance = tolerance(&decode(ty, w.row()), &decode(k.activation, a.row()));
                let off = (f64::from(got) - want).abs();
                assert!(off <= tolerance, "{ty} {} of {blocks}: {got} instead of {want} ± {tolerance}", k.isa);
            }
        }
    }
}

/// The smallest and largest scales that half precision has, and zero.
#[test]
fn scales_may_be_subnormal_large_or_zero() {
    let mut rng = Rng(8);
    for (kernels, ty, k) in all() {
        for scale in [0.0, 6e-8, -6e-8, 3e-6, 65504.0, -65504.0] {
            let blocks = 2 * 256 / ty.info().block_len;
            let mut w = random_row(ty, blocks, &mut rng);
            set_scales(ty, &mut w, || scale);
            let a = activations(&kernels, &k, &rng.normals(512, 1.0));
            let (got, want) = ((k.dot)(&w, &a), plain_dot(ty, k.activation, &w, &a));
            let tolerance = tolerance(&decode(ty, &w), &decode(k.activation, &a));
            let off = (f64::from(got) - want).abs();
            assert!(off <= tolerance, "{ty} {} by {scale}: {got} instead of {want} ± {tolerance}", k.isa);
        }
    }
}

#[test]
fn codes_and_activations_at_their_limits_do_not_overflow() {
    let mut rng = Rng(7);
    for (_, ty, k) in all().filter(|(_, _, k)| k.activation != QuantType::F32) {
        let act = k.activation;
        let act_bytes = act.info().block_bytes * (512 / act.info().block_len);
        let w_bytes = ty.info().block_bytes * (512 / ty.info().block_len);
        for byte in [0x00, 0x7f, 0x80, 0x88, 0xff] {
            let mut w = vec![byte; w_bytes];
            set_scales(ty, &mut w, || 1.0);
            for byte in [0x00, 0x01, 0x7f, 0x80, 0xff] {
                let mut a = vec![byte; act_bytes];
                set_scales(act, &mut a, || 1.0);
                let (got, want) = (f64::from((k.dot)(&w, &a)), f64::from((ty.info().dot)(&w, &a)));
                assert!((got - want).abs() <= want.abs() * 1e-6, "{ty} {}: {got} instead of {want}", k.isa);
            }
        }
        // codes and sums that no encoder writes: sums reach 32767, where those of 16 codes cannot pass 2032
        for _ in 0..50 {
            let w = random_row(ty, 512 / ty.info().block_len, &mut rng);
            let a = random_row(act, 512 / act.info().block_len, &mut rng);
            let (got, want) = (f64::from((k.dot)(&w, &a)), f64::from((ty.info().dot)(&w, &a)));
            let tolerance = 40.0 * tolerance(&decode(ty, &w), &decode(act, &a));
            assert!((got - want).abs() <= tolerance, "{ty} {}: {got} instead of {want} ± {tolerance}", k.isa);
        }
    }
}

#[test]
fn four_rows_equal_one_at_a_time_to_the_bit() {
    let mut rng = Rng(2);
    for (kernels, ty, k) in all() {
        for blocks in block_counts(ty) {
            let rows: [_; 4] = std::array::from_fn(|i| Unaligned::new(&random_row(ty, blocks, &mut rng), i));
            let mut w = [0, 1, 2, 3].map(|i| rows[i].row());
            let a = activations(&kernels, &k, &rng.normals(blocks * ty.info().block_len, 1.0));
            let check = |w: [&[u8]; 4], a: &[u8]| {
                let (four, one) = ((k.dot4)(w, a), w.map(|w| (k.dot)(w, a)));
                assert_eq!(
                    four.map(f32::to_bits),
                    one.map(f32::to_bits),
                    "{ty} {} of {blocks}: {four:?} {one:?}",
                    k.isa
                );
            };
            check(w, &a);
            check(w, &a[..a.len() / 2]);
            w[2] = &w[2][..w[2].len() / 2];
            check(w, &a);
        }
    }
}

/// To the bit, except that any NaN is as good as another.
#[test]
fn decoding_is_exact() {
    let mut rng = Rng(3);
    for (_, ty, k) in all() {
        for blocks in block_counts(ty) {
            for offset in 0..4 {
                // any bytes: scales may be subnormal, infinite or NaN
                let w = Unaligned::new(&rng.bytes(blocks * ty.info().block_bytes), offset);
                let mut got = vec![7.0; blocks * ty.info().block_len];
                (k.decode)(w.row(), &mut got);
                for (i, (g, w)) in got.iter().zip(decode(ty, w.row())).enumerate() {
                    assert!(g.to_bits() == w.to_bits() || g.is_nan() && w.is_nan(), "{ty} {} at {i}: {g} {w}", k.isa);
                }
            }
        }
    }
}

/// Within three roundings of f32.
#[test]
fn scaled_rows_are_added() {
    let mut rng = Rng(4);
    for (_, ty, k) in all() {
        for blocks in block_counts(ty) {
            for a in [1.0, -0.37, 1e-20, 0.0] {
                let w = Unaligned::new(&random_row(ty, blocks, &mut rng), blocks % 4);
                let before = rng.normals(blocks * ty.info().block_len, 1.0);
                let mut y = before.clone();
                (k.axpy)(w.row(), a, &mut y);
                for ((got, y), w) in y.iter().zip(before).zip(decode(ty, w.row())) {
                    let want = f64::from(y) + f64::from(a) * f64::from(w);
                    let tolerance = f64::from(y.abs() + (a * w).abs()) * 1.8e-7;
                    assert!((f64::from(*got) - want).abs() <= tolerance, "{ty} {}: {got} instead of {want}", k.isa);
                }
            }
        }
    }
}

#[test]
fn encoders_write_the_bytes_of_the_plain_ones() {
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
    let mut rng = Rng(5);
    for isa in Isa::available() {
        let kernels = Kernels::for_isa(isa).expect("available");
        for ty in [QuantType::F32, QuantType::Q8_0, QuantType::Q8_1, QuantType::Q8_K] {
            let check = |x: &[f32]| {
                let want = encode(ty, x);
                let mut got = vec![0xa5; want.len()];
                kernels.encode(ty)(x, &mut got);
                assert!(got == want, "{ty} {isa}: {x:?}");
            };
            for round in 0..200 {
                let mut x = rng.normals(round % 4 * 256, [1.0, 1e-3, 1e5, 1e-37, 1e-41][round % 5]);
                check(&x);
                // with 127 as the largest, halves are ties
                for (i, x) in x.iter_mut().enumerate() {
                    *x = if i % 32 == 5 { 127.0 } else { rng.below(509) as f32 / 2.0 - 127.0 };
                }
                check(&x);
                for x in &mut x {
                    if rng.below(40) == 0 {
                        *x = ODD[rng.below(ODD.len())];
                    }
                }
                check(&x);
                for x in &mut x {
                    *x = f32::from_bits(rng.next() as u32);
                }
                check(&x);
            }
            ODD.into_iter().for_each(|v| check(&[v; 512]));
        }
    }
}

#[test]
fn ragged_and_unequal_slices_are_cut_to_whole_blocks() {
    type Update<'a> = &'a dyn Fn(&[u8], &mut [f32]);
    let mut rng = Rng(6);
    for (kernels, ty, k) in all() {
        let (info, act) = (ty.info(), k.activation.info());
        let w = random_row(ty, 768 / info.block_len, &mut rng);
        let a = activations(&kernels, &k, &rng.normals(768, 1.0));
        for _ in 0..60 {
            let (wn, an, yn) = (rng.below(w.len() + 1), rng.below(a.len() + 1), rng.below(800));
            let n = (wn / info.block_bytes * info.block_len).min(an / act.block_bytes * act.block_len);
            let n = n - n % info.block_len;
            let got = (k.dot)(&w[..wn], &a[..an]);
            let want = (k.dot)(&w[..n / info.block_len * info.block_bytes], &a[..n / act.block_len * act.block_bytes]);
            assert_eq!(got.to_bits(), want.to_bits(), "{ty} {}: {wn} and {an} bytes", k.isa);

            let blocks = (wn / info.block_bytes).min(yn / info.block_len);
            let updates: [Update<'_>; 2] = [&|w, y| (k.decode)(w, y), &|w, y| (k.axpy)(w, 2.0, y)];
            for update in updates {
                let (mut y, mut whole) = (vec![7.0; yn], vec![7.0; blocks * info.block_len]);
                update(&w[..wn], &mut y);
                update(&w[..blocks * info.block_bytes], &mut whole);
                let (filled, rest) = y.split_at(whole.len());
                assert_eq!(filled, whole, "{ty} {}", k.isa);
                assert!(rest.iter().all(|v| *v == 7.0), "{ty} {}: wrote too much", k.isa);
            }
        }
        (k.dot4)([&w, &[], &w[..1], &w], &a);
    }
}

#[test]
fn instruction_sets_have_names_and_say_when_they_are_missing() {
    for isa in [Isa::Reference, Isa::Avx2] {
        assert_eq!(isa.to_string().parse::<Isa>(), Ok(isa));
        match Kernels::for_isa(isa) {
            Ok(kernels) => {
                assert!(Isa::available().contains(&isa));
                assert_eq!(kernels.isa(), isa);
            }
            Err(e) => {
                assert!(!Isa::available().contains(&isa));
                assert!(matches!(e, Error::Unsupported { .. }), "{e}");
            }
        }
    }
    let e = "sse9".parse::<Isa>().expect_err("no such set").to_string();
    assert!(e.contains("sse9") && e.contains("avx2"), "{e}");
    assert_eq!(Some(&Kernels::best().isa()), Isa::available().last());
}

#[test]
fn the_reference_is_exact_and_avx2_covers_every_type_of_weights() {
    for ty in QuantType::ALL {
        let k = *Kernels::reference().get(ty);
        assert_eq!((k.isa, k.activation), (Isa::Reference, QuantType::F32), "{ty}");
    }
    if let Ok(kernels) = Kernels::for_isa(Isa::Avx2) {
        for ty in QuantType::ALL {
            let activations_only = matches!(ty, QuantType::Q8_1 | QuantType::Q8_K);
            assert_eq!(kernels.get(ty).isa == Isa::Avx2, !activations_only, "{ty}");
        }
    }
}

#[test]
fn one_kernel_can_be_swapped() {
    let mine = TypeKernels { dot: |_, _| 42.0, ..*Kernels::reference().get(QuantType::Q4_0) };
    let kernels = Kernels::best().with(QuantType::Q4_0, mine);
    assert_eq!((kernels.get(QuantType::Q4_0).dot)(&[], &[]), 42.0);
    assert_eq!((kernels.get(QuantType::Q4_1).dot)(&[], &[]), 0.0);
}
