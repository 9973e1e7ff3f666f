//! Every kernel of every instruction set that this CPU has.

use pi_core::{Activation, Error, Form, QuantType, SignKernels};
use pi_sparse_cpu::{Activations, Isa, Kernels, TypeKernels};
use pi_testkit::{
    Random,
    kernels::{Functions, check, random_row},
};

fn functions(k: &TypeKernels) -> Functions {
    let &TypeKernels { activations: a, dot, dot4, tile, axpy, axpy4, decode, .. } = k;
    let forms = [Activations::F32, Activations::SPLIT15, Activations::PAIRS15, Activations::LANES15];
    let plain = forms.into_iter().find(|p| p.form == a.form).expect("a known form");
    let activations = pi_testkit::kernels::Activations {
        block_len: a.block_len,
        block_bytes: a.block_bytes,
        encode: a.encode,
        decode: a.decode,
    };
    Functions { activations, plain_encode: plain.encode, dot, dot4, tile, axpy, axpy4, decode }
}

#[test]
fn the_kernels_of_every_instruction_set_compute_every_type() {
    for isa in Isa::available() {
        let kernels = Kernels::for_isa(isa).expect("available");
        for ty in QuantType::ALL {
            check(ty, &functions(kernels.get(ty))).unwrap_or_else(|e| panic!("{isa}: {e}"));
        }
    }
}

/// The kernels of a repacked type as functions of rows as files have them: without captures, as the checks want it.
macro_rules! repacked {
    ($ty:ident, $isa:expr) => {{
        fn with<T>(rows: &[&[u8]], f: impl FnOnce(&TypeKernels, &[&[u8]]) -> T) -> T {
            let kernels = Kernels::for_isa($isa).expect("available");
            let packed = kernels.packed(QuantType::$ty).expect("a packed layout");
            // at an odd address
            let rows: Vec<Vec<u8>> = rows
                .iter()
                .map(|row| {
                    let mut out = vec![0xa5; row.len() + 1];
                    (packed.pack)(row, &mut out[1..]);
                    out
                })
                .collect();
            let rows: Vec<&[u8]> = rows.iter().map(|row| &row[1..]).collect();
            f(&packed.kernels, &rows)
        }
        let kernels = Kernels::for_isa($isa).expect("available");
        Functions {
            dot: |w, x| with(&[w], |k, w| (k.dot)(w[0], x)),
            dot4: |w, next, x| with(&w, |k, w| (k.dot4)([w[0], w[1], w[2], w[3]], next, x)),
            tile: Some(|w, x, row_bytes, y| with(w, |k, w| k.tile.expect("a tile")(w, x, row_bytes, y))),
            axpy: |w, a, y| with(&[w], |k, w| (k.axpy)(w[0], a, y)),
            axpy4: Some(|w, next, a, y| {
                with(&w, |k, w| k.axpy4.expect("four rows")([w[0], w[1], w[2], w[3]], next, a, y));
            }),
            decode: |w, out| with(&[w], |k, w| (k.decode)(w[0], out)),
            ..functions(&kernels.packed(QuantType::$ty).expect("a packed layout").kernels)
        }
    }};
}

/// Calls [`check`] with every repacked type of an instruction set, if this CPU has that.
macro_rules! check_repacked {
    ($isa:expr; $($ty:ident),*) => {
        if Isa::available().contains(&$isa) {
            let known = [$(QuantType::$ty),*];
            let kernels = Kernels::for_isa($isa).expect("available");
            for ty in QuantType::ALL {
                assert_eq!(kernels.packed(ty).is_some(), known.contains(&ty), "{ty} is not checked");
            }
            $( check(QuantType::$ty, &repacked!($ty, $isa)).unwrap_or_else(|e| panic!("{}, repacked: {e}", $isa)); )*
        }
    };
}

#[test]
fn repacked_rows_are_computed_as_well() {
    check_repacked!(Isa::Avx2; Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL);
    check_repacked!(Isa::Avx512; Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL);
    check_repacked!(Isa::Reference; );
}

/// Rows of results that are not whole are left alone, whatever the number of whole ones.
#[test]
fn tiles_leave_alone_what_is_no_whole_row() {
    let mut random = Random(7);
    for (ty, k) in Isa::available().into_iter().flat_map(|isa| {
        let kernels = Kernels::for_isa(isa).expect("available");
        QuantType::ALL.map(|ty| (ty, *kernels.get(ty)))
    }) {
        let Some(tile) = k.tile else { continue };
        let cols = 256;
        let rows: Vec<Vec<u8>> = (0..4).map(|_| random_row(ty, cols / ty.info().block_len, &mut random)).collect();
        let w: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let row_bytes = k.activations.row_bytes(cols);
        let mut x = vec![0; 9 * row_bytes];
        let numbers: Vec<f32> = (0..cols).map(|_| random.normal()).collect();
        x.chunks_exact_mut(row_bytes).for_each(|x| (k.activations.encode)(&numbers, x));
        for whole in 1..=9 {
            let mut y = vec![7.0; 4 * whole + 3];
            tile(&w, &x, row_bytes, &mut y);
            let (y, rest) = y.split_at(4 * whole);
            assert!(y.chunks_exact(4).all(|y| (0..4).all(|r| y[r] == (k.dot)(w[r], &x))), "{ty}, {whole} rows");
            assert_eq!(rest, [7.0; 3], "{ty}, {whole} rows");
        }
    }
}

#[test]
fn a_wrong_kernel_is_found_out() {
    let good = functions(Kernels::reference().get(QuantType::Q4_0));
    check(QuantType::Q4_0, &good).expect("the reference");
    let encode = |_: &[f32], out: &mut [u8]| out.fill(0);
    let wrong = [
        Functions { dot: |_, _| 0.0, ..good },
        Functions { dot4: |_, _, _| [1.0; 4], ..good },
        Functions { tile: Some(|_, _, _, y| y.fill(1.0)), ..good },
        Functions { axpy: |_, _, _| {}, ..good },
        Functions { axpy: |_, _, y| y.iter_mut().for_each(|y| *y += 1e-3), ..good },
        Functions { axpy4: Some(|_, _, _, _| {}), ..good },
        Functions { decode: |_, out| out.fill(0.0), ..good },
        Functions { activations: pi_testkit::kernels::Activations { encode, ..good.activations }, ..good },
    ];
    for (i, f) in wrong.iter().enumerate() {
        let e = check(QuantType::Q4_0, f).expect_err("it is wrong");
        assert!(e.starts_with("Q4_0: "), "case {i}: {e}");
    }
}

#[test]
fn instruction_sets_have_names_and_say_when_they_are_missing() {
    for isa in [Isa::Reference, Isa::Avx2, Isa::Avx512] {
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
fn the_reference_is_exact_and_every_other_set_covers_every_type_of_weights() {
    for ty in QuantType::ALL {
        let k = *Kernels::reference().get(ty);
        assert_eq!((k.isa, k.activations.form), (Isa::Reference, Form::F32), "{ty}");
    }
    for isa in Isa::available().into_iter().filter(|isa| *isa != Isa::Reference) {
        let kernels = Kernels::for_isa(isa).expect("available");
        for ty in QuantType::ALL {
            let activations_only = matches!(ty, QuantType::Q8_1 | QuantType::Q8_K);
            assert_eq!(kernels.get(ty).isa == isa, !activations_only, "{ty} {isa}");
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

#[test]
fn activations_of_rows_come_near_to_those_of_single_numbers_wherever_they_stand() {
    let numbers: Vec<f32> = (-4000..4000).map(|i| i as f32 * 0.01).chain([0.0, -0.0, 1e-30, -1e-30, 300.0]).collect();
    for isa in Isa::available() {
        let activate = Kernels::for_isa(isa).expect("available").activate();
        for act in [
            Activation::Silu,
            Activation::Gelu,
            Activation::GeluTanh,
            Activation::Relu,
            Activation::ReluSquared,
            Activation::FatRelu(0.5),
        ] {
            let mut all = numbers.clone();
            activate(act, &mut all);
            for (x, got) in numbers.iter().zip(&all) {
                let want = act.apply(*x);
                assert!((got - want).abs() <= 2e-6 * (1.0 + x.abs()), "{isa} {act} of {x}: {got} instead of {want}");
            }
            for n in 0..20 {
                let mut some = numbers[100..100 + n].to_vec();
                activate(act, &mut some);
                assert!(
                    some.iter().zip(&all[100..]).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{isa} {act}, {n} numbers"
                );
            }
            let mut odd = [f32::NAN, 1.0, f32::NAN];
            activate(act, &mut odd);
            assert!(odd[0].is_nan() && odd[2].is_nan() && !odd[1].is_nan(), "{isa} {act}");
        }
    }
}

/// Predictions from signs must not depend on the instruction set: lengths that fill words and vectors and those that do not, numbers of
/// both signs and of none.
#[test]
fn signs_are_packed_and_compared_alike_by_every_instruction_set() {
    let plain = SignKernels::PLAIN;
    let mut random = Random(7);
    for isa in Isa::available() {
        let k = Kernels::for_isa(isa).unwrap().signs();
        for words in [1, 2, 3, 4, 5, 8, 9, 15, 64, 65, 177] {
            for cut in [0, 1, 63] {
                let mut numbers: Vec<f32> = (0..64 * words - cut).map(|_| random.normal()).collect();
                numbers[0] = -0.0;
                numbers[words / 2] = -f32::NAN;
                let (mut x, mut want) = (vec![u64::MAX; words], vec![u64::MAX; words]);
                (k.pack)(&numbers, &mut x);
                (plain.pack)(&numbers, &mut want);
                assert_eq!(x, want, "{isa}: {words} words less {cut}");
                for (i, word) in want.iter().enumerate() {
                    for bit in 0..64 {
                        let negative = numbers.get(64 * i + bit).is_some_and(|v| v.is_sign_negative());
                        assert_eq!(word >> bit & 1 == 1, negative, "word {i}, bit {bit}");
                    }
                }
                for rows in [1, 7, 64, 70] {
                    let signs: Vec<u64> = (0..rows * words).map(|_| random.bits()).collect();
                    let count = |k: &SignKernels| {
                        let mut counts = vec![7; rows];
                        (k.differing)(&signs, &x, &mut counts);
                        counts
                    };
                    let differing = |row: &[u64]| row.iter().zip(&x).map(|(a, b)| (a ^ b).count_ones()).sum();
                    let one_by_one: Vec<u32> = signs.chunks(words).map(differing).collect();
                    assert_eq!(count(&k), one_by_one, "{isa}: {rows} rows of {words}");
                    assert_eq!(count(&plain), one_by_one);
                }
            }
        }
    }
}
