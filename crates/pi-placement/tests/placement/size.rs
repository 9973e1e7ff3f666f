//! The sizes of large models: certified within 0.1 %, in little time.

use crate::models::{LLAMA_70B, OPT_175B, Shape};
use pi_placement::{Error, Exact, Memory, PerNeuron, Placement, Problem, Solver};
use std::time::Instant;

/// Solves all objectives for some budgets; every answer must be within 0.1 % of its bound. Returns the longest time in seconds,
/// from the frequencies to the sets of neurons.
fn longest(name: &str, shape: Shape, change: impl Fn(usize, &mut pi_placement::LayerSpec)) -> f64 {
    let mut longest: f64 = 0.0;
    for share in [0.02, 0.1, 0.3, 0.7] {
        let mut layers = crate::models::layers(shape, 50e-6, 7);
        layers.iter_mut().enumerate().for_each(|(i, l)| change(i, l));
        let start = Instant::now();
        let problem = crate::models::problem(layers, share);
        let ranking = start.elapsed().as_secs_f64();
        for solver in [Exact::impact(), Exact::time()] {
            let placement = certified(&problem, &solver);
            let seconds = ranking + placement.elapsed.as_secs_f64();
            println!("{name}, {:.0} %: {placement} + {ranking:.3} s for ranking", share * 100.0);
            longest = longest.max(seconds);
        }
    }
    longest
}

fn certified(problem: &Problem, solver: &Exact) -> Placement {
    let placement = solver.solve(problem).expect("a placement");
    assert!(placement.gap().is_some_and(|g| g <= 1e-3), "{placement}");
    assert!(placement.device_bytes <= problem.memory().device, "{placement}");
    placement
}

/// Layers of three number types, as in files of mixed quantisation, and of three synchronisation times.
fn mixed(i: usize, layer: &mut pi_placement::LayerSpec) {
    let bytes = layer.device.bytes * [16, 18, 27][i % 3] / 16 + i as u64 % 7;
    (layer.device, layer.host) = crate::models::sides(bytes);
    layer.sync.split *= [1.0, 0.3, 4.0][i / 3 % 3];
}

// The limits are generous: the goal is 1 s and 0.3 s in a release build on an idle core.
#[test]
fn opt_175b_is_placed_within_a_thousandth_in_seconds() {
    let seconds = longest("OPT-175B", OPT_175B, |_, _| {});
    assert!(seconds < 10.0, "{seconds} s");
}

#[test]
fn opt_175b_of_mixed_types_is_placed_within_a_thousandth_in_seconds() {
    let seconds = longest("OPT-175B mixed", OPT_175B, mixed);
    assert!(seconds < 10.0, "{seconds} s");
}

#[test]
fn llama_70b_is_placed_within_a_thousandth_in_seconds() {
    let seconds = longest("LLaMA-70B", LLAMA_70B, |_, _| {});
    let mixed = longest("LLaMA-70B mixed", LLAMA_70B, mixed);
    assert!(seconds.max(mixed) < 5.0, "{seconds} s, {mixed} s");
}

#[test]
fn layers_without_statistics_are_placed_within_a_thousandth() {
    let seconds = longest("LLaMA-70B uniform", LLAMA_70B, |_, l| l.frequency.fill(0.1));
    assert!(seconds < 5.0, "{seconds} s");
}

#[test]
fn a_host_limit_that_binds_is_kept_and_certified_too() {
    // A device of about the host's speed: what does not fit on the host has to go there, and no more. The cost of a layer bends the
    // wrong way then, which costs the bound up to a part of one layer's time.
    for (speed, worst) in [(1.5, 2e-3), (1.0 / 3.0, 1e-2)] {
        let mut layers = crate::models::layers(LLAMA_70B, 1e-6, 3);
        for (i, l) in layers.iter_mut().enumerate() {
            mixed(i, l);
            l.device.seconds = l.host.seconds / speed;
            l.host.bytes += 64;
        }
        let total = |bytes: fn(&pi_placement::LayerSpec) -> u64| {
            layers.iter().map(|l| bytes(l) * l.neurons as u64).sum::<u64>() as f64
        };
        let (device, host) = (total(|l| l.device.bytes), total(|l| l.host.bytes));
        let limits = [1.0, 0.8, 0.75].map(|s| Memory { device: (device * s) as u64, host: (host * 0.3) as u64 });
        let problem = Problem::new(layers, limits[0], 64).expect("valid");
        for memory in limits {
            let problem = problem.with_memory(memory);
            let placement = Exact::time().solve(&problem).expect("a placement");
            println!("{placement}");
            assert!(placement.gap().is_some_and(|g| g <= worst), "{placement}");
            assert!(
                placement.host_bytes <= memory.host && placement.host_bytes > memory.host / 100 * 99,
                "{placement}"
            );
            assert!(placement.device_bytes <= memory.device, "{placement}");
        }
        let impact = Exact::impact().solve(&problem);
        if speed > 1.0 {
            // The most impact fills the device, which leaves the host less than it could take.
            assert!(impact.expect("a placement").host_bytes < limits[0].host);
        } else {
            // By eq. 4 no neuron may be on a device that is slower.
            assert!(matches!(impact, Err(Error::Infeasible { .. })));
        }
    }
}

#[test]
fn a_device_that_is_hardly_faster_is_used_for_part_of_the_work_by_the_time_objective() {
    let mut layers = crate::models::layers(LLAMA_70B, 1e-6, 3);
    layers.iter_mut().for_each(|l| l.device = PerNeuron { seconds: l.host.seconds / 1.5, ..l.device });
    let problem = crate::models::problem(layers, 1.0);
    let (impact, time) = (certified(&problem, &Exact::impact()), certified(&problem, &Exact::time()));
    let eq2 = problem.expected_time(&impact.layers).expect("same layers");
    assert_eq!(impact.hot(), problem.neurons());
    assert!(time.value < 0.7 * eq2, "{} instead of {eq2}", time.value);
}
