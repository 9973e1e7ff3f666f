//! Placement of the neurons of OPT-175B and LLaMA-70B: ranking them, and each objective. Certified within 0.1 % before it is timed.

#[path = "../crates/pi-placement/tests/placement/models.rs"]
mod models;

use criterion::{BatchSize, Criterion};
use models::{LLAMA_70B, OPT_175B, Shape};
use pi_placement::{Exact, Solver};

fn placement(c: &mut Criterion, name: &str, shape: Shape, mixed: bool) {
    let mut layers = models::layers(shape, 50e-6, 7);
    if mixed {
        // Three number types and some padding, so that no common unit of memory helps.
        for (i, l) in layers.iter_mut().enumerate() {
            (l.device, l.host) = models::sides(l.device.bytes * [16, 18, 27][i % 3] / 16 + i as u64 % 7);
        }
    }
    let mut group = c.benchmark_group(name);
    group.sample_size(10);
    group.bench_function("ranking", |b| {
        b.iter_batched(|| layers.clone(), |layers| models::problem(layers, 0.1), BatchSize::PerIteration)
    });
    let problem = models::problem(layers, 0.1);
    for solver in [Exact::impact(), Exact::time()] {
        let placement = solver.solve(&problem).expect("a placement");
        assert!(placement.gap().is_some_and(|gap| gap <= 1e-3), "{placement}");
        println!("{name}: {placement}");
        group.bench_function(solver.name(), |b| b.iter(|| solver.solve(&problem)));
    }
}

fn main() {
    let mut c = Criterion::default().configure_from_args();
    placement(&mut c, "placement OPT-175B", OPT_175B, false);
    placement(&mut c, "placement OPT-175B, mixed types", OPT_175B, true);
    placement(&mut c, "placement LLaMA-70B", LLAMA_70B, false);
    placement(&mut c, "placement LLaMA-70B, mixed types", LLAMA_70B, true);
    c.final_summary();
}
