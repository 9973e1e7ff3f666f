//! No slice length and no number makes a quant function panic, and nothing is written past the last whole block.

use pi_core::QuantType;
use proptest::prelude::*;

/// Numbers that quantisers meet in broken models, besides ordinary ones.
fn odd_number() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -4.0f32..4.0,
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => prop::sample::select(vec![
            0.0, -0.0, 1e-45, -1e-45, 1e-38, 1e-20, 6e-8, 65504.0, 70000.0, 3e38, -3e38,
            f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN,
        ]),
    ]
}

/// Groups of one kind of number, so that whole blocks are tiny, huge or not finite.
fn row() -> impl Strategy<Value = Vec<f32>> {
    let uniform = (odd_number(), 0usize..300).prop_map(|(v, n)| vec![v; n]);
    prop_oneof![prop::collection::vec(odd_number(), 0..700), uniform]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_numbers_can_be_encoded_decoded_and_multiplied(x in row(), y in row(), spare in 0usize..40) {
        for ty in QuantType::ALL {
            let info = ty.info();
            let blocks = x.len() / info.block_len;
            let mut w = vec![0xa5; blocks * info.block_bytes + spare];
            (info.encode)(&x, &mut w);
            let mut back = vec![7.0; x.len() + spare];
            (info.decode)(&w, &mut back);
            let act = info.activation.info();
            let mut a = vec![0; y.len() / act.block_len * act.block_bytes + spare];
            (act.encode)(&y, &mut a);
            (info.dot)(&w, &a);
        }
    }

    #[test]
    fn any_bytes_can_be_decoded_and_multiplied(w in prop::collection::vec(any::<u8>(), 0..700), x in prop::collection::vec(any::<u8>(), 0..1300)) {
        for ty in QuantType::ALL {
            (ty.info().decode)(&w, &mut [0.0; 513]);
            (ty.info().dot)(&w, &x);
            (ty.info().dot)(&x, &w);
        }
    }

    #[test]
    fn surplus_is_left_alone(blocks in 0usize..3, spare_bytes in 0usize..17, spare_numbers in 0usize..31) {
        for ty in QuantType::ALL {
            let info = ty.info();
            if info.block_len == 1 {
                continue;
            }
            let x = vec![0.5; blocks * info.block_len + spare_numbers];
            let mut w = vec![0xa5; blocks * info.block_bytes + spare_bytes];
            (info.encode)(&x, &mut w);
            prop_assert!(w[blocks * info.block_bytes..].iter().all(|b| *b == 0xa5), "{} encode", ty);
            let mut back = vec![7.0; blocks * info.block_len + spare_numbers];
            (info.decode)(&w, &mut back);
            prop_assert!(back[blocks * info.block_len..].iter().all(|v| *v == 7.0), "{} decode", ty);
            prop_assert!(back[..blocks * info.block_len].iter().all(|v| (v - 0.5).abs() < 0.01), "{} round trip", ty);
        }
    }
}

#[test]
fn empty_slices_are_fine() {
    for ty in QuantType::ALL {
        (ty.info().encode)(&[], &mut []);
        (ty.info().decode)(&[], &mut []);
        assert_eq!((ty.info().dot)(&[], &[]), 0.0, "{ty}");
    }
}

#[test]
fn codes_at_their_limits_do_not_overflow() {
    for ty in QuantType::ALL {
        let act = ty.info().activation;
        for (a, b) in [(0x80, 0x80), (0xff, 0x80), (0x7f, 0x80), (0x80, 0x7f), (0xff, 0xff)] {
            (ty.info().dot)(&vec![a; ty.info().block_bytes * 4], &vec![b; act.info().block_bytes * 4]);
        }
    }
}

#[test]
fn numbers_that_are_not_finite_stay_visible_in_activations() {
    for ty in [QuantType::Q8_0, QuantType::Q8_1, QuantType::Q8_K] {
        let info = ty.info();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 13, info.block_len - 1] {
                let mut x = vec![1.0; info.block_len];
                x[at] = bad;
                let mut q = vec![0; info.block_bytes];
                (info.encode)(&x, &mut q);
                (info.decode)(&q, &mut x);
                assert!(!x[at].is_finite(), "{ty}: {bad} at {at} became {}", x[at]);
            }
        }
    }
}
