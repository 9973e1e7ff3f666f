//! The cases that benches time, on the CPU device: they do what they say, and a wrong result is found out.

use pi_core::{KvType, QuantType, Serial};
use pi_sparse_cpu::{CpuDevice, Isa, Kernels};
use pi_testkit::cases::{Attention, Case, Ffn, Product, Select};
use std::sync::Arc;

fn device(isa: Isa) -> CpuDevice {
    CpuDevice::new(Kernels::for_isa(isa).expect("available"), Arc::new(Serial))
}

fn small() -> Vec<Case> {
    let mut cases = Vec::new();
    for ty in QuantType::ALL {
        cases.push(Case::Product(Product { ty, rows: 40, cols: 256, tokens: 3 }));
        for select in [Select::Marks, Select::Gate, Select::Dense] {
            cases.push(Case::Ffn(Ffn { ty, dim: 256, neurons: 100, tokens: 2, active: 0.25, select }));
        }
    }
    for (context, tokens, kv) in [(0, 1, KvType::F32), (70, 1, KvType::F16), (600, 3, KvType::F32)] {
        let (heads, kv_heads, head_dim) = (4, 2, 16);
        let usual = Attention::default();
        cases.push(Case::Attention(Attention { heads, kv_heads, head_dim, context, tokens, kv, ..usual }));
    }
    cases
}

#[test]
fn every_case_agrees_with_the_reference_on_every_instruction_set() {
    let reference = device(Isa::Reference);
    for isa in Isa::available() {
        for case in small() {
            case.fit().unwrap_or_else(|e| panic!("{case}: {e}"));
            let error = case.check(&device(isa), &reference).unwrap_or_else(|e| panic!("{isa}: {e}"));
            assert!(isa != Isa::Reference || error == 0.0, "{case}: {error}");
        }
    }
}

#[test]
fn wrong_kernels_are_found_out() {
    let reference = device(Isa::Reference);
    let mut kernels = *Kernels::reference().get(QuantType::Q4_0);
    kernels.dot = |w, x| 1.1 * (Kernels::reference().get(QuantType::Q4_0).dot)(w, x);
    kernels.dot4 = |w, next, x| (Kernels::reference().get(QuantType::Q4_0).dot4)(w, next, x).map(|v| 1.1 * v);
    (kernels.tile, kernels.axpy4) = (None, None);
    let wrong = CpuDevice::new(Kernels::reference().with(QuantType::Q4_0, kernels), Arc::new(Serial));
    for case in small().into_iter().filter(|c| c.ty() == QuantType::Q4_0) {
        let e = case.check(&wrong, &reference).expect_err("ten per cent off");
        assert!(e.contains(&case.to_string()) && e.contains("off by"), "{e}");
    }
}

#[test]
fn the_share_that_was_asked_for_is_active_and_what_is_read_is_counted() {
    let row = QuantType::F16.row_bytes(64).expect("floats") as u64;
    for (active, count) in [(0.0, 0), (0.1, 20), (0.25, 50), (1.0, 200)] {
        for (select, bytes) in
            [(Select::Marks, 3 * count * row), (Select::Gate, (200 + 2 * count) * row), (Select::Dense, 600 * row)]
        {
            let ffn = Ffn { ty: QuantType::F16, dim: 64, neurons: 200, tokens: 1, active, select };
            let mut prepared = Case::Ffn(ffn.clone()).prepare(&device(Isa::Reference), 0).expect("a case");
            let stats = prepared.counted_step().expect("a step");
            let want = if select == Select::Dense { 200 } else { count };
            assert_eq!((stats.active, stats.bytes), (want, bytes), "{ffn}");
            assert_eq!(prepared.macs(), bytes / 2, "{ffn}: a number of 16 bits each");
        }
    }
}

#[test]
fn copies_take_turns_so_that_as_many_bytes_as_wanted_lie_between_two_reads() {
    let cold = 1 << 20;
    for case in small() {
        let mut prepared = case.prepare(&device(Isa::Reference), cold).expect("a case");
        for _ in 0..3 {
            prepared.step().expect("a step");
        }
        assert!(prepared.turns() > 1 && prepared.working_set() > cold * 8 / 10, "{case}: {}", prepared.working_set());
    }
}

#[test]
fn shapes_that_cannot_be_are_refused_by_name() {
    let usual = Attention::default();
    for (case, what) in [
        (Case::Product(Product { cols: 33, ..Product::default() }), "rows of 33 numbers"),
        (Case::Ffn(Ffn { dim: 100, ..Ffn::default() }), "rows of 100 numbers"),
        (Case::Attention(Attention { heads: 5, kv_heads: 2, ..usual.clone() }), "heads"),
        (Case::Attention(Attention { kv_heads: 0, ..usual.clone() }), "heads"),
        (Case::Attention(Attention { dim: 33, ..usual }), "rows of 33 numbers"),
    ] {
        let e = case.fit().expect_err(what).to_string();
        assert!(e.contains(what), "{e}");
    }
}
