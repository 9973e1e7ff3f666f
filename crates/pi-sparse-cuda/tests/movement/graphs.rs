//! Kernels that are launched many at a time.

use crate::{MEMORY, alone, calls, counting::requests, third};
use pi_cuda_emu::{Driver, GraphStep, driver};
use pi_engine::{
    Engine, LayerPlan, Plan, Session, SessionOptions, Side, Sparsity, StepToken,
    pi_core::{KvType, NeuronSet},
    pi_sparse_cpu::Kernels,
};
use pi_sparse_cuda::{Cuda, CudaOptions, GraphUse, Launches};
use pi_testkit::TinyModel;
use std::sync::Arc;

fn emulated() -> &'static Driver {
    driver().unwrap().expect("`alone` asked for it")
}

/// A model with so many layers, its device, and what chooses its neurons.
fn engine(layers: usize, hot: &dyn Fn(usize) -> NeuronSet, dense: Side, graphs: GraphUse) -> (Engine, Cuda) {
    let model = TinyModel { neuron_major: true, layers, ..TinyModel::default() };
    let layer = LayerPlan { dense, hot: hot(model.neurons) };
    let plan = Plan { layers: vec![layer; layers], head: dense };
    let exact = Engine::builder().kernels(Kernels::reference()).threads(1).kv(KvType::F32).sparsity(Sparsity::Exact);
    let cuda = Cuda::open_with(0, &CudaOptions::default().graphs(graphs)).unwrap();
    (exact.accelerator(Arc::new(cuda.clone()), plan).load(&model.file()).unwrap(), cuda)
}

fn open(engine: &Engine, batch: usize) -> Session {
    engine.session(&SessionOptions { batch, logits: batch, sequences: 4, ..Default::default() }).unwrap()
}

/// The logits of a step of one token for each of the sequences.
fn step(session: &mut Session, seqs: &[u32], token: u32) -> Vec<u32> {
    let tokens: Vec<_> = seqs.iter().map(|&seq| StepToken { token: token + 3 * seq, seq, logits: true }).collect();
    session.step(&tokens).unwrap();
    (0..seqs.len()).flat_map(|i| session.logits(i).unwrap().iter().map(|v| v.to_bits()).collect::<Vec<_>>()).collect()
}

#[test]
fn graphs_give_the_same_logits_to_the_bit() {
    let Some(_guard) = alone() else { return };
    let left = || calls(&["cuGraphInstantiateWithFlags"]) - calls(&["cuGraphExecDestroy"]);
    let there = left();
    for (hot, dense) in [
        (&NeuronSet::all as &dyn Fn(usize) -> NeuronSet, Side::Accelerator),
        (&third, Side::Accelerator),
        (&third, Side::Cpu),
        (&NeuronSet::none, Side::Accelerator),
    ] {
        for seqs in [&[0][..], &[0, 1, 2]] {
            let run = |graphs| {
                let (engine, cuda) = engine(2, hot, dense, graphs);
                let mut session = open(&engine, 4);
                let all: Vec<_> = (0..8).map(|i| step(&mut session, seqs, 5 + 11 * i)).collect();
                (all, cuda.launches())
            };
            let before = calls(&["cuLaunchKernel"]);
            let (want, without) = run(GraphUse::Off);
            assert_eq!(without.calls, calls(&["cuLaunchKernel"]) - before);
            assert_eq!((without.calls, without.graphs, without.replays), (without.kernels, 0, 0));
            let before = calls(&["cuLaunchKernel", "cuGraphLaunch"]);
            let (got, with) = run(GraphUse::Auto);
            assert_eq!(with.calls, calls(&["cuLaunchKernel", "cuGraphLaunch"]) - before);
            assert_eq!(got, want, "{seqs:?}, dense on {dense:?}");
            assert_eq!(with.kernels, without.kernels);
            assert!(with.graphs > 0 && with.replays > 3 && with.calls < with.kernels, "{with:?}");
        }
    }
    assert_eq!(left(), there, "all graphs are freed");
}

/// Kernels of a decoded token, and calls of the driver that launch them.
fn per_token(layers: usize, hot: &dyn Fn(usize) -> NeuronSet, dense: Side, graphs: GraphUse) -> [u64; 2] {
    let (engine, cuda) = engine(layers, hot, dense, graphs);
    let mut session = open(&engine, 1);
    (0..4).for_each(|i| drop(step(&mut session, &[0], i)));
    let before = cuda.launches();
    (0..5).for_each(|i| drop(step(&mut session, &[0], 20 + i)));
    let after = cuda.launches();
    assert_eq!(after.graphs, before.graphs, "they were made before");
    [(after.kernels - before.kernels) / 5, (after.calls - before.calls) / 5]
}

#[test]
fn a_decoded_token_is_launched_in_a_few_calls() {
    let Some(_guard) = alone() else { return };
    for (what, hot, dense, most) in [
        ("all hot", &NeuronSet::all as &dyn Fn(usize) -> NeuronSet, Side::Accelerator, 0.0),
        // up to where the CPU's input is sent; the neurons; from their sum on
        ("hybrid", &third, Side::Accelerator, 3.0),
        ("neurons only", &third, Side::Cpu, 2.0),
    ] {
        let [two, six] = [2, 6].map(|layers| per_token(layers, hot, dense, GraphUse::Auto));
        let plain = per_token(6, hot, dense, GraphUse::Off);
        println!("{what}, 6 layers: {} kernels of a token in {} calls, {} without graphs", six[0], six[1], plain[1]);
        assert_eq!((plain[0], plain[1]), (six[0], six[0]));
        let each = (six[1] - two[1]) as f64 / 4.0;
        assert!(each <= most, "{what}: {each} calls for each layer more");
        assert!(six[1] * 3 <= six[0] * 2, "{what}: {six:?}");
    }
}

#[test]
fn a_long_prompt_makes_no_graphs() {
    let Some(_guard) = alone() else { return };
    let (engine, cuda) = engine(2, &NeuronSet::all, Side::Accelerator, GraphUse::Auto);
    let mut session = engine.session(&SessionOptions { batch: 20, ..Default::default() }).unwrap();
    let prompt: Vec<u32> = (0..80).map(|i| 3 + i * 7 % 200).collect();
    session.feed(0, &prompt).unwrap();
    let Launches { kernels, calls, graphs, .. } = cuda.launches();
    assert_eq!((graphs, calls), (0, kernels));
}

/// Arrays come and go, batches grow and shrink, sequences begin anew: whatever is launched is what was meant.
#[test]
fn graphs_follow_sessions_batches_and_positions() {
    let Some(_guard) = alone() else { return };
    let run = |graphs| {
        let (engine, cuda) = engine(2, &third, Side::Accelerator, graphs);
        let mut all = Vec::new();
        let mut first = open(&engine, 4);
        for round in 0..3 {
            // a session whose arrays may be where those of the one before were
            let mut second = open(&engine, 1 + round as usize);
            for i in 0..4 {
                all.push(step(&mut first, &[0], 7 * i + round));
                all.push(step(&mut second, &[0], 3 * i + round));
                all.push(step(&mut first, &[0, 1, 3][..1 + i as usize % 3], 50 + i));
            }
            first.truncate(0, 3);
            all.push(step(&mut first, &[0], 9));
            // past the first tile of positions
            if round == 1 {
                let long: Vec<u32> = (0..30).map(|i| 3 + i * 7 % 200).collect();
                first.feed(2, &long).unwrap();
                (0..4).for_each(|i| all.push(step(&mut first, &[2], i)));
            }
        }
        drop(first);
        let made = cuda.launches();
        // with the last session the memory goes that graphs use
        let mut last = open(&engine, 2);
        (0..4).for_each(|i| all.push(step(&mut last, &[1], i)));
        (all, made)
    };
    let ((got, with), (want, _)) = (run(GraphUse::Auto), run(GraphUse::Off));
    assert!(with.graphs > 6 && with.replays > with.graphs, "{with:?}");
    assert!(got == want);
}

#[test]
fn a_driver_that_makes_no_graphs_launches_kernels_one_by_one() {
    let Some(_guard) = alone() else { return };
    let run = |step_refused| {
        emulated().refuse_graphs(step_refused);
        let (engine, cuda) = engine(2, &third, Side::Accelerator, GraphUse::Auto);
        let mut session = open(&engine, 1);
        let all: Vec<_> = (0..8).map(|i| step(&mut session, &[0], 5 + 11 * i)).collect();
        emulated().refuse_graphs(None);
        (all, cuda.launches(), cuda.note())
    };
    let (want, with, note) = run(None);
    assert!(with.replays > 0 && note.is_none(), "{with:?} {note:?}");
    for refused in [GraphStep::Capture, GraphStep::Instantiate, GraphStep::Launch] {
        let (got, without, note) = run(Some(refused));
        assert_eq!(got, want, "{refused:?}");
        assert_eq!((without.refused, without.replays, without.calls), (1, 0, with.kernels), "{refused:?}");
        assert!(note.is_some_and(|n| n.contains("one by one") && n.contains("refused a graph")), "{refused:?}");
    }
}

#[test]
fn a_decoded_token_allocates_nothing() {
    let Some(_guard) = alone() else { return };
    for graphs in [GraphUse::Auto, GraphUse::Off] {
        let (engine, _) = engine(2, &third, Side::Accelerator, graphs);
        let mut session = open(&engine, 1);
        let mut token = || {
            session.step(&[StepToken { token: 7, seq: 0, logits: true }]).unwrap();
            assert!(session.logits(0).unwrap().iter().all(|v| v.is_finite()));
        };
        (0..5).for_each(|_| token());
        let before = (calls(&MEMORY), requests());
        (0..5).for_each(|_| token());
        // the emulated driver has an allocator of its own, which does not count
        let asked = requests() - before.1;
        assert_eq!((calls(&MEMORY) - before.0, asked), (0, 0), "{graphs:?}");
    }
}

/// Sessions share scratch and tables of steps, which grow for who needs more.
#[test]
fn a_session_that_finds_no_memory_leaves_those_that_are_open_as_they_were() {
    let Some(_guard) = alone() else { return };
    let hot = |_| NeuronSet::all(TinyModel::default().neurons);
    let make = || engine(2, &hot, Side::Accelerator, GraphUse::Auto);
    let needed = {
        let (engine, cuda) = make();
        let _both = (open(&engine, 1), open(&engine, 300));
        cuda.allocated()
    };
    let ((one, cuda), (other, another)) = (make(), make());
    let (mut first, mut alone) = (open(&one, 1), open(&other, 1));
    let more = needed - cuda.allocated();
    assert!(more > 100_000, "{more}");
    let mut refused = 0;
    for i in 0..24 {
        // as if so much were left
        let left = more * i / 24;
        emulated().set_memory((cuda.allocated() + another.allocated() + left) as usize);
        let second = one.session(&SessionOptions { batch: 300, logits: 300, sequences: 4, ..Default::default() });
        refused += usize::from(second.is_err());
        emulated().set_memory(1 << 30);
        drop(second);
        let token = 5 + i as u32;
        assert_eq!(step(&mut first, &[0], token), step(&mut alone, &[0], token), "{left} bytes were left");
    }
    assert!(refused > 12, "{refused}");
}
