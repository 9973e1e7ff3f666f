//! Operators of the CPU device: the cases that `pi bench` times, too. Each is compared with the reference before it is timed;
//! criterion prints bytes read per second. Weights come from memory, not from the caches.

use criterion::{BenchmarkId, Criterion, Throughput};
use pi_sparse_cpu::{CpuDevice, Isa, Kernels, Pool};
use pi_testkit::cases::{self, Case};
use std::sync::Arc;

/// Bytes that are read between two uses of the same weights.
const COLD: u64 = 128 << 20;

fn group(c: &mut Criterion, name: &str, cases: &[Case]) {
    let pool = Arc::new(Pool::new(Pool::default_width()).expect("threads"));
    let device = |isa| CpuDevice::new(Kernels::for_isa(isa).expect("available"), pool.clone());
    // The reference is there to be right, not to be fast: it is timed only where there is nothing else.
    let mut isas = Isa::available();
    isas.retain(|&isa| isa != Isa::Reference);
    if isas.is_empty() {
        isas.push(Isa::Reference);
    }
    let mut group = c.benchmark_group(name);
    for case in cases {
        for &isa in &isas {
            let device = device(isa);
            // Checked only if it is going to be timed, which criterion tells by calling this.
            let mut prepared = None;
            let bytes = {
                let mut once = case.prepare(&device, 0).expect("a case");
                once.counted_step().expect("a step").bytes
            };
            group.throughput(Throughput::Bytes(bytes));
            group.bench_function(BenchmarkId::new(case.to_string(), isa), |b| {
                let prepared = prepared.get_or_insert_with(|| {
                    let reference = CpuDevice::new(Kernels::reference(), pool.clone());
                    case.check(&device, &reference).expect("the reference's result");
                    case.prepare(&device, COLD).expect("a case")
                });
                b.iter(|| prepared.step().expect("a step"));
            });
        }
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args().sample_size(20);
    group(&mut criterion, "gemv", &cases::gemv());
    group(&mut criterion, "gemm", &cases::gemm());
    group(&mut criterion, "ffn", &cases::ffn());
    group(&mut criterion, "attention", &cases::attention());
    criterion.final_summary();
}
