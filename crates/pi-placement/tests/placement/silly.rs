//! Problems that cannot be meant, limits that leave nothing to choose, and machines that do not pay: an answer, never a panic.

use pi_core::NeuronSet;
use pi_placement::{
    Error, Exact, Frequency, InOrder, LayerSpec, Memory, Nothing, Objective, PerNeuron, Placement, Problem, Random,
    Remark, Solver, SyncTime,
};

fn layer(neurons: usize) -> LayerSpec {
    LayerSpec {
        neurons,
        frequency: (0..neurons).map(|i| (1 + i % 10) as f32 / 20.0).collect(),
        device: PerNeuron { bytes: 100, seconds: 1e-9 },
        host: PerNeuron { bytes: 90, seconds: 1e-8 },
        sync: SyncTime::host_layer(9e-8), // pays from ten neurons on
    }
}

fn problem(memory: Memory) -> Problem {
    Problem::new(vec![layer(100), layer(50)], memory, 8).expect("valid")
}

fn solvers() -> Vec<Box<dyn Solver>> {
    vec![
        Box::new(Exact::impact()),
        Box::new(Exact::time()),
        Box::new(Nothing),
        Box::new(InOrder),
        Box::new(Random { seed: 1 }),
        Box::new(Frequency),
        #[cfg(feature = "ilp")]
        Box::new(pi_placement::Ilp::default()),
    ]
}

fn with(change: impl Fn(&mut LayerSpec)) -> Result<Problem, Error> {
    let mut layers = vec![layer(4), layer(4)];
    change(&mut layers[1]);
    Problem::new(layers, Memory::device(1000), 1)
}

#[test]
fn numbers_that_are_none_are_refused_with_their_place() {
    let says = |problem: Result<Problem, Error>, parts: &[&str]| {
        let message = problem.expect_err("must be refused").to_string();
        parts.iter().for_each(|part| assert!(message.contains(part), "'{message}' does not say '{part}'"));
    };
    says(with(|l| l.frequency[2] = f32::NAN), &["neuron 2 of layer 1", "frequency", "NaN"]);
    says(with(|l| l.frequency[0] = -0.5), &["neuron 0 of layer 1", "-0.5"]);
    says(with(|l| l.frequency[3] = 1.5), &["neuron 3 of layer 1", "0..=1", "1.5"]);
    says(with(|l| l.frequency.truncate(3)), &["layer 1", "4 neurons", "statistics of 3"]);
    says(with(|l| l.host.seconds = f64::INFINITY), &["layer 1", "time on the host", "inf"]);
    says(with(|l| l.device = PerNeuron::read_at(100, 0.0)), &["layer 1", "time on the device", "inf"]);
    says(with(|l| l.device.seconds = -1.0), &["layer 1", "time on the device", "-1"]);
    says(with(|l| l.sync.split = f64::NAN), &["layer 1", "synchronisation", "NaN"]);
    says(with(|l| l.device.bytes = u64::MAX / 4), &["bytes on the device", "layer 1"]);
    says(with(|l| l.host.bytes = u64::MAX), &["bytes on the host", "layer 1"]);
    says(Problem::new(vec![layer(4)], Memory::device(1), 0), &["batch", "got 0"]);
    assert!(Memory::gib(f64::NAN).is_err() && Memory::gib(-1.0).is_err());
    assert_eq!((Memory::gib(0.5).unwrap(), Memory::gib(f64::INFINITY).unwrap()), (1 << 29, u64::MAX));
}

#[test]
fn without_memory_nothing_is_placed_and_it_is_said_why() {
    for budget in [0, 1, 99, 100, 799, 1599] {
        let problem = problem(Memory::device(budget));
        let placement = Exact::impact().solve(&problem).expect("nothing is a placement");
        assert_eq!((placement.hot(), placement.value, placement.gap()), (0, 0.0, Some(0.0)), "{budget}");
        // C_l is 10, and batches have 8.
        assert_eq!(placement.remarks, [Remark::TooSmall { budget, smallest: 1600 }]);
    }
    assert_eq!(Exact::impact().solve(&problem(Memory::device(1600))).expect("a placement").hot(), 16);
    for solver in solvers() {
        let placement = solver.solve(&problem(Memory::device(99))).expect("nothing is a placement");
        assert_eq!(
            (placement.hot(), placement.device_bytes, placement.host_bytes),
            (0, 0, 150 * 90),
            "{}",
            solver.name()
        );
    }
}

#[test]
fn with_memory_for_everything_everything_is_placed() {
    for budget in [15_000, 15_001, u64::MAX / 2, u64::MAX] {
        for solver in solvers().into_iter().filter(|s| !matches!(s.name(), "nothing" | "exact-time")) {
            let placement = solver.solve(&problem(Memory::device(budget))).expect("a placement");
            assert!(placement.layers.iter().all(NeuronSet::is_all), "{} with {budget}", solver.name());
            assert_eq!(placement.remarks, [Remark::Everything]);
            assert_eq!((placement.device_bytes, placement.host_bytes), (15_000, 0));
        }
    }
    let one_less = Exact::impact().solve(&problem(Memory::device(14_999))).expect("a placement");
    assert!(one_less.hot() < 150 && one_less.device_bytes < 15_000);
}

#[test]
fn a_device_that_never_pays_is_left_alone() {
    type Change = fn(&mut LayerSpec);
    let cases: [(&str, Change); 4] = [
        ("infinite synchronisation", |l| l.sync = SyncTime::host_layer(f64::INFINITY)),
        ("a faster host", |l| l.host.seconds = 1e-10),
        ("equal sides", |l| l.host.seconds = l.device.seconds),
        ("more than a layer gains", |l| l.sync = SyncTime::host_layer(1.0)),
    ];
    for (what, change) in cases {
        let mut layers = vec![layer(100), layer(50)];
        layers.iter_mut().for_each(change);
        let problem = Problem::new(layers, Memory::device(u64::MAX), 8).expect("valid");
        assert!(problem.layers().iter().all(|l| l.min_hot().is_none()), "{what}");
        let impact = Exact::impact().solve(&problem).expect("a placement");
        assert_eq!((impact.hot(), impact.remarks), (0, vec![Remark::NeverPays { layers: 2 }]), "{what}");
        let time = Exact::time().solve(&problem).expect("a placement");
        assert_eq!((time.hot(), time.remarks), (0, vec![Remark::NothingIsFaster]), "{what}");
        #[cfg(feature = "ilp")]
        assert_eq!(pi_placement::Ilp::default().solve(&problem).expect("a placement").hot(), 0, "{what}");
    }
}

#[test]
fn limits_that_contradict_each_other_are_infeasible() {
    // 150 neurons, 100 bytes on the device, 90 on the host: 50 fit there, 50 here.
    let memory = Memory { device: 5_000, host: 4_500 };
    for solver in [&Exact::impact() as &dyn Solver, &Exact::time()] {
        let error = solver.solve(&problem(memory)).expect_err("must be refused");
        assert!(matches!(error, Error::Infeasible { .. }), "{error}");
    }
    for solver in solvers().into_iter().skip(2) {
        let error = solver.solve(&problem(memory)).expect_err("must be refused");
        assert!(matches!(error, Error::Infeasible { .. } | Error::Exceeds { .. }), "{}: {error}", solver.name());
    }
    // Where no neuron may be on the device and the host is too small, too.
    let mut alone = layer(10);
    alone.sync = SyncTime::host_layer(f64::INFINITY);
    let problem = Problem::new(vec![alone], Memory { device: u64::MAX, host: 899 }, 1).expect("valid");
    assert!(matches!(Exact::impact().solve(&problem), Err(Error::Infeasible { .. })));
}

#[test]
fn the_host_limit_moves_neurons_to_the_device_that_are_not_worth_it() {
    let mut slow = vec![layer(100), layer(50)];
    slow.iter_mut().for_each(|l| l.device.seconds = 1e-7); // ten times slower than the host
    let problem = Problem::new(slow, Memory { device: u64::MAX, host: 9_000 }, 1).expect("valid");
    let placement = Exact::time().solve(&problem).expect("a placement");
    assert_eq!((placement.hot(), placement.host_bytes, placement.gap()), (50, 9_000, Some(0.0)), "{placement}");
}

#[test]
fn models_without_layers_or_neurons_have_an_empty_placement() {
    for layers in [vec![], vec![layer(0)], vec![layer(0), layer(0)]] {
        let n = layers.len();
        let problem = Problem::new(layers, Memory { device: 0, host: 0 }, 64).expect("valid");
        for solver in solvers() {
            let placement = solver.solve(&problem).expect("a placement");
            assert_eq!((placement.layers.len(), placement.hot(), placement.gap().unwrap_or(0.0)), (n, 0, 0.0));
        }
    }
}

#[test]
fn neurons_that_never_fire_take_no_memory_from_those_that_do() {
    let mut idle = layer(64);
    idle.frequency.fill(0.0);
    let problem = Problem::new(vec![idle, layer(50)], Memory::device(5_000), 1).expect("valid");
    let placement = Exact::impact().solve(&problem).expect("a placement");
    let busy = problem.layers()[1].spec().frequency.iter().map(|&f| f64::from(f)).sum::<f64>();
    assert!((placement.value - busy).abs() < 1e-9, "{placement}");
    // With room to spare they are placed too.
    let placement = Exact::impact().solve(&problem.with_memory(Memory::device(11_400))).expect("a placement");
    assert_eq!(placement.remarks, [Remark::Everything]);
}

#[test]
fn a_sum_of_impacts_belongs_to_the_problem_it_is_asked_of() {
    let problem = problem(Memory::device(0));
    assert!(matches!(problem.impact(&[NeuronSet::all(100)]), Err(Error::Sets { expected: 2, got: 1, .. })));
    let wrong = [NeuronSet::all(100), NeuronSet::all(51)];
    assert!(matches!(problem.expected_time(&wrong), Err(Error::Sets { expected: 50, got: 51, .. })));
    let all = [NeuronSet::all(100), NeuronSet::all(50)];
    assert!((problem.impact(&all).unwrap() - problem.total_impact()).abs() < 1e-9);
    assert!(matches!(Placement::new(&problem, all.into(), Objective::Impact, "mine"), Err(Error::Exceeds { .. })));
}

#[test]
fn a_random_placement_depends_on_its_seed_alone() {
    let problem = problem(Memory::device(7_000));
    let hot = |seed| Random { seed }.solve(&problem).expect("a placement").layers;
    assert_eq!(hot(1), hot(1));
    assert_ne!(hot(1), hot(2));
}

#[test]
fn numbers_of_any_size_give_an_answer_and_a_bound_that_holds() {
    let mut random = fastrand::Rng::with_seed(11);
    let mut answers = 0;
    for _ in 0..3000 {
        let mut seconds = || 10f64.powi(random.i32(-300..300)) * f64::from(random.u8(0..3));
        let mut layers = vec![layer(100), layer(64), layer(3)];
        for l in &mut layers {
            (l.device.seconds, l.host.seconds) = (seconds(), seconds());
            l.sync = SyncTime { none: seconds(), split: seconds(), all: seconds() };
        }
        for l in &mut layers {
            (l.device.bytes, l.host.bytes) =
                (random.u64(..) >> random.u32(10..64), random.u64(..) >> random.u32(10..64));
            let scale = 10f32.powi(random.i32(-45..1));
            l.frequency.iter_mut().for_each(|f| *f *= scale);
        }
        let memory = Memory { device: random.u64(..) >> random.u32(0..64), host: u64::MAX >> random.u32(0..20) };
        let problem = Problem::new(layers, memory, random.usize(1..100)).expect("valid");
        for solver in solvers().into_iter().take(6) {
            let Ok(p) = solver.solve(&problem) else { continue };
            assert!(p.device_bytes <= memory.device && p.host_bytes <= memory.host, "{p}");
            let Some(bound) = p.bound else { continue };
            answers += 1;
            let gap = p.gap().expect("a bound");
            assert!(
                p.value.is_finite() && bound.is_finite() && (0.0..=2.0).contains(&gap),
                "{p} {bound} {gap} {problem:?}"
            );
        }
    }
    assert!(answers > 1000, "{answers}");
}
