//! Random small problems: the structured solver, the integer program and brute force agree.

use crate::common::{best_impact, best_subset, best_time, near, random_problem};
use fastrand::Rng;
use pi_core::NeuronSet;
use pi_placement::{Error, Exact, LayerSpec, Memory, Placement, Problem, Result, Solver};

/// Checks that `got` is worth `best`, claims to be optimal, and keeps the rules.
fn check(what: &str, problem: &Problem, got: Result<Placement>, best: Option<f64>) {
    let (placement, best) = match (got, best) {
        (Ok(p), Some(best)) => (p, best),
        (Err(Error::Infeasible { .. }), None) => return,
        (got, best) => panic!("{what}: {got:?}, but brute force says {best:?} for {problem:?}"),
    };
    assert!(near(placement.value, best), "{what}: {} instead of {best} for {problem:?}", placement.value);
    let bound = placement.bound.expect("a bound");
    assert!(near(bound, best), "{what}: bound {bound} instead of {best} for {problem:?}");
    let bytes = |f: fn(&LayerSpec) -> u64, hot: fn(&NeuronSet) -> usize| -> u64 {
        problem.layers().iter().zip(&placement.layers).map(|(l, h)| f(l.spec()) * hot(h) as u64).sum()
    };
    assert_eq!(placement.device_bytes, bytes(|s| s.device.bytes, NeuronSet::len));
    assert_eq!(placement.host_bytes, bytes(|s| s.host.bytes, |h| h.total() - h.len()));
    assert!(placement.device_bytes <= problem.memory().device && placement.host_bytes <= problem.memory().host);
}

#[test]
fn the_structured_solver_and_brute_force_agree_on_impact_and_on_time() {
    let mut random = Rng::with_seed(1);
    let (mut infeasible, mut split) = (0, 0);
    for _ in 0..6000 {
        let problem = random_problem(&mut random, 12);
        let best = best_impact(&problem);
        infeasible += usize::from(best.is_none());
        check("impact", &problem, Exact::impact().solve(&problem), best);
        let placement = Exact::time().solve(&problem);
        if let Ok(p) = &placement {
            split += usize::from(p.layers.iter().any(|l| !l.is_all() && !l.is_empty()));
        }
        check("time", &problem, placement, best_time(&problem));
    }
    assert!(infeasible > 200 && split > 1000, "{infeasible} problems without and {split} with an interesting answer");
}

#[test]
#[cfg(feature = "ilp")]
fn the_integer_program_gives_the_same_value() {
    let mut random = Rng::with_seed(2);
    for _ in 0..3000 {
        let problem = random_problem(&mut random, 12);
        let best = best_impact(&problem);
        check("ilp", &problem, pi_placement::Ilp::default().solve(&problem), best);
        check("impact", &problem, Exact::impact().solve(&problem), best);
    }
}

#[test]
#[cfg(feature = "ilp")]
fn the_integer_program_agrees_where_brute_force_cannot_follow() {
    let mut random = Rng::with_seed(6);
    for round in 0..30 {
        // Some hundred batches in layers of two number types, of which some end with less than a batch.
        let shape = crate::models::Shape {
            layers: random.usize(2..8),
            neurons: 64 * random.usize(4..20) + round % 3 * 10,
            bytes: 3000,
        };
        let mut layers = crate::models::layers(shape, 3e-7 * random.f64(), round as u64);
        layers.iter_mut().skip(1).step_by(2).for_each(|l| (l.device, l.host) = crate::models::sides(4096));
        let problem = crate::models::problem(layers, 0.05 + 0.9 * random.f64());
        let exact = Exact::impact().solve(&problem).expect("a placement");
        let ilp = pi_placement::Ilp { gap: 1e-5, ..Default::default() }.solve(&problem).expect("a placement");
        let (exact_bound, ilp_bound) = (exact.bound.expect("a bound"), ilp.bound.expect("a bound"));
        assert!(ilp.value <= exact_bound * (1.0 + 1e-9) && exact.value <= ilp_bound * (1.0 + 1e-9), "{exact} | {ilp}");
        assert!((exact.value - ilp.value).abs() <= 2e-5 * exact.value, "{exact} | {ilp}");
        assert!(exact.gap() < Some(1e-4), "{exact}");
    }
}

#[test]
#[cfg(feature = "highs")]
fn highs_gives_the_same_value() {
    let mut random = Rng::with_seed(3);
    let ilp = pi_placement::Ilp { backend: pi_placement::Backend::Highs, ..Default::default() };
    for _ in 0..300 {
        let problem = random_problem(&mut random, 12);
        check("ilp", &problem, ilp.solve(&problem), best_impact(&problem));
    }
}

#[test]
fn no_subset_of_neurons_has_more_impact_than_the_best_prefixes() {
    let mut random = Rng::with_seed(4);
    for _ in 0..1000 {
        let problem = random_problem(&mut random, 4);
        let specs = problem.layers().iter().map(|l| l.spec().clone()).collect();
        let problem = Problem::new(specs, problem.memory(), 1).expect("valid");
        check("subsets", &problem, Exact::impact().solve(&problem), best_subset(&problem));
    }
}

#[test]
fn a_search_that_is_cut_short_still_gives_a_valid_bound() {
    let mut random = Rng::with_seed(5);
    let mut open = 0;
    for _ in 0..1000 {
        let mut problem = random_problem(&mut random, 12);
        if problem.memory().host == u64::MAX {
            problem = problem.with_memory(Memory::device(random.u64(0..100)));
        }
        for objective in [Exact::impact(), Exact::time()] {
            let (hurried, thorough) =
                (Exact { effort: 1, ..objective.clone() }.solve(&problem), objective.solve(&problem));
            let (Ok(hurried), Ok(thorough)) = (hurried, thorough) else { continue };
            let (low, high) = (hurried.value.min(hurried.bound.unwrap()), hurried.value.max(hurried.bound.unwrap()));
            assert!(low <= thorough.value + 1e-9 && thorough.value <= high + 1e-9, "{hurried:?} {thorough:?}");
            open += usize::from(hurried.gap() > Some(0.0));
        }
    }
    assert!(open > 20, "{open} of 2000 searches were left open");
}
