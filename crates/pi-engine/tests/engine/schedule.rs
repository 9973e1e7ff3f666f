//! The schedule: it is valid as a graph, it says what moves, and it keeps the accelerator busy.

use crate::common::{
    exact, ids,
    placed::{ALL, Hot, any_plan, plan, sim},
    predicted_models,
};
use pi_engine::{
    Engine, Plan, Predictors, Schedule, SessionOptions, Side, Sparsity, StepToken,
    schedule::{Node, Operation},
};
use pi_testkit::{Random, TinyModel, sim::SimOptions, synth::Family};
use std::collections::BTreeSet;

/// Models with and without predictors, of all orders of calls.
fn models() -> Vec<(String, TinyModel, Sparsity, Predictors)> {
    let mut all = Vec::new();
    for (name, model) in predicted_models() {
        for (sparsity, predictors) in [
            (Sparsity::Exact, Predictors::default()),
            (Sparsity::Predictor, Predictors::default()),
            (Sparsity::Predictor, Predictors::Oracle),
            (Sparsity::Predictor, Predictors::Sign { margin: 0.0 }),
        ] {
            all.push((format!("{name}, {sparsity:?}, {predictors:?}"), model.clone(), sparsity, predictors));
        }
    }
    all
}

fn of(engine: &Engine, layer: usize) -> Vec<&Node> {
    engine.schedule().nodes().iter().filter(|n| n.layer == Some(layer)).collect()
}

#[test]
fn what_the_schedule_says_moves_is_what_moves() {
    let mut random = Random(3);
    for (name, model, sparsity, predictors) in models() {
        let file = TinyModel { layers: 3, ..model }.file();
        let settings = || exact().sparsity(sparsity).predictors(predictors.clone());
        let cpu = settings().load(&file).unwrap();
        assert_eq!(cpu.schedule().moves(), (0, 0));
        let plans = ALL.iter().flat_map(|&hot| [Side::Cpu, Side::Accelerator].map(|side| plan(&cpu, hot, side)));
        let random_plans: Vec<Plan> = (0..8).map(|_| any_plan(&cpu, &mut random)).collect();
        for plan in plans.chain(random_plans) {
            let device = sim(SimOptions::default());
            let engine = settings().accelerator(device.clone(), plan.clone()).load(&file).unwrap();
            let (up, down) = engine.schedule().moves();
            let mut s = engine.session(&SessionOptions { batch: 5, logits: 5, ..Default::default() }).unwrap();
            for tokens in [1, 5, 1] {
                let before = device.counts();
                let step: Vec<_> = (0..tokens).map(|token| StepToken { token, seq: 0, logits: true }).collect();
                s.step(&step).unwrap();
                let now = device.counts();
                let moved = (now.uploads - before.uploads, now.downloads - before.downloads);
                assert_eq!(moved, (up as u64, down as u64), "{name}, {plan:?}\n{}", engine.schedule());
            }
        }
    }
}

#[test]
fn the_schedule_of_a_file_is_that_of_the_loaded_model() {
    let mut random = Random(4);
    for (name, model, sparsity, predictors) in models() {
        let file = TinyModel { layers: 3, ..model }.file();
        let settings = || exact().sparsity(sparsity).predictors(predictors.clone());
        let cpu = settings().load(&file).unwrap();
        for lacking in [vec![], vec![pi_core::QuantType::F32]] {
            for _ in 0..6 {
                let plan = any_plan(&cpu, &mut random);
                let device = sim(SimOptions { lacking: lacking.clone(), ..SimOptions::default() });
                let engine = settings().accelerator(device.clone(), plan.clone()).load(&file).unwrap();
                let said = Schedule::of_file(&file, &plan, sparsity, &predictors, &*device).unwrap();
                assert_eq!(&said, engine.schedule(), "{name}, {plan:?}");
            }
        }
    }
}

#[test]
fn every_layer_is_computed_once_and_after_what_it_needs() {
    let mut random = Random(5);
    for (name, model, sparsity, predictors) in models() {
        let file = model.file();
        let settings = || exact().sparsity(sparsity).predictors(predictors.clone());
        let cpu = settings().load(&file).unwrap();
        for _ in 0..10 {
            let plan = any_plan(&cpu, &mut random);
            let engine = settings().accelerator(sim(SimOptions::default()), plan.clone()).load(&file).unwrap();
            let nodes = engine.schedule().nodes();
            for (i, node) in nodes.iter().enumerate() {
                assert!(node.needs.iter().all(|&n| n < i), "{name}: {node:?}");
                assert!(node.needs.is_sorted() && (i == 0) == node.needs.is_empty(), "{name}: {node:?}");
            }
            // nothing but the last is without a successor
            let needed: BTreeSet<usize> = nodes.iter().flat_map(|n| n.needs.iter().copied()).collect();
            assert_eq!(needed, (0..nodes.len() - 1).collect(), "{name}\n{}", engine.schedule());
            for (i, planned) in plan.layers.iter().enumerate() {
                let layer = of(&engine, i);
                let count = |op| layer.iter().filter(|n| n.operation == op).count();
                for op in [Operation::Attention, Operation::FfnNorm, Operation::Mark, Operation::Merge] {
                    assert_eq!(count(op), 1, "{name}, {op:?}");
                }
                let ffn = layer.iter().filter(|n| n.operation == Operation::Ffn);
                assert_eq!(ffn.map(|n| n.neurons).sum::<usize>(), engine.config().neurons);
                for node in &layer {
                    match node.operation {
                        Operation::Attention | Operation::Merge => assert_eq!(node.side, planned.dense),
                        Operation::Ffn if node.side == Side::Accelerator => {
                            assert_eq!(node.neurons, planned.hot.len());
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

/// The CPU begins with its part of a layer when nothing more can be put into the accelerator's queue.
#[test]
fn the_accelerator_gets_its_work_before_the_cpu_begins() {
    for two_norms in [false, true] {
        let (_, base) = predicted_models().next().unwrap();
        let file = TinyModel { family: Family::Falcon, two_norms, ..base }.file();
        let cpu = exact().load(&file).unwrap();
        let engine = exact()
            .sparsity(Sparsity::Predictor)
            .accelerator(sim(SimOptions::default()), plan(&cpu, Hot::Half, Side::Accelerator))
            .load(&file)
            .unwrap();
        let order: Vec<_> = of(&engine, 0).iter().map(|n| (n.operation, n.side)).collect();
        let at = |op, side| order.iter().position(|n| *n == (op, side)).unwrap();
        let cold = at(Operation::Ffn, Side::Cpu);
        assert!(at(Operation::Fetch, Side::Accelerator) < at(Operation::Ffn, Side::Accelerator));
        assert!(at(Operation::Ffn, Side::Accelerator) < cold);
        // with a norm of its own attention overwrites what the cold neurons still have to read
        assert_eq!(at(Operation::Attention, Side::Accelerator) < cold, !two_norms, "{}", engine.schedule());
    }
}

/// The words of a graph's text: names, and texts between double quotes as one.
fn words(text: &str, escape: Option<char>) -> Vec<String> {
    let (mut all, mut chars) = (vec![String::new()], text.chars());
    while let Some(c) = chars.next() {
        let last = all.len() - 1;
        match c {
            '"' => {
                let mut quoted = String::from('"');
                loop {
                    match chars.next().expect("a closing quote") {
                        '"' => break,
                        c if Some(c) == escape => quoted.extend([c, chars.next().expect("what is escaped")]),
                        '\n' => panic!("a line ends within quotes: {quoted}"),
                        c => quoted.push(c),
                    }
                }
                all.extend([quoted, String::new()]);
            }
            c if c.is_alphanumeric() || c == '_' => all[last].push(c),
            c if c.is_whitespace() => all.push(String::new()),
            c => all.extend([c.to_string(), String::new()]),
        }
    }
    all.retain(|w| !w.is_empty());
    all
}

/// Names of nodes, and the arrows between them, of either language.
fn graph(text: &str, escape: Option<char>) -> (Vec<usize>, Vec<(usize, usize)>) {
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    let number = |w: &String| w.strip_prefix('n').and_then(|n| n.parse().ok());
    for line in text.lines() {
        let words = words(line, escape);
        let names: Vec<usize> = words.iter().filter_map(number).collect();
        match (words.iter().any(|w| w == ">"), &names[..]) {
            (true, [from, to]) => edges.push((*from, *to)),
            (false, [node]) => nodes.push(*node),
            (false, []) => {}
            _ => panic!("{line}"),
        }
    }
    (nodes, edges)
}

#[test]
fn graphs_are_valid_whatever_the_device_is_called() {
    let (_, model) = predicted_models().next().unwrap();
    let file = model.file();
    let cpu = exact().load(&file).unwrap();
    for name in ["sim:0", "we\"ird\\", "<b>#35;&\n`x`", "end", "模型"] {
        let device = sim(SimOptions { name: name.into(), ..SimOptions::default() });
        let engine = exact()
            .sparsity(Sparsity::Predictor)
            .accelerator(device, plan(&cpu, Hot::Half, Side::Accelerator))
            .load(&file)
            .unwrap();
        let schedule = engine.schedule();
        let n = schedule.nodes().len();
        let want: Vec<(usize, usize)> =
            (0..n).flat_map(|i| schedule.nodes()[i].needs.iter().map(move |&need| (need, i))).collect();
        let (mermaid, dot) = (schedule.mermaid(), schedule.dot());
        for (text, escape) in [(&mermaid, None), (&dot, Some('\\'))] {
            let (nodes, edges) = graph(text, escape);
            assert_eq!(nodes, (0..n).collect::<Vec<_>>(), "{text}");
            assert_eq!(edges, want, "{text}");
        }
        let count = |text: &str, escape, word: &str| words(text, escape).iter().filter(|w| *w == word).count();
        assert!(mermaid.starts_with("flowchart TD\n") && dot.starts_with("digraph schedule {\n"));
        assert_eq!(count(&mermaid, None, "subgraph"), count(&mermaid, None, "end"));
        assert_eq!(count(&dot, Some('\\'), "{"), count(&dot, Some('\\'), "}"));
        for hot in ["hot FFN, 48 neurons", "cold FFN, 48 neurons", "mark neurons (mlp)", "cold part to the device"] {
            assert!(mermaid.contains(hot) && dot.contains(hot) && schedule.to_string().contains(hot), "{hot}");
        }
    }
    // nothing of Mermaid's own may come from a name
    let device = sim(SimOptions { name: "a\"b<c>#".into(), ..SimOptions::default() });
    let engine = exact().accelerator(device, plan(&cpu, Hot::All, Side::Accelerator)).load(&file).unwrap();
    assert!(engine.schedule().mermaid().contains("a#34;b#60;c#62;#35;"));
}

#[test]
fn the_text_has_a_line_for_each_node() {
    let file = TinyModel::default().file();
    let engine = exact().load(&file).unwrap();
    let text = engine.schedule().to_string();
    assert_eq!(text.lines().count(), engine.schedule().nodes().len());
    assert!(text.contains("FFN, 96 neurons") && !text.contains("cold") && !text.contains("moves"), "{text}");
    assert_eq!((engine.schedule().layers(), engine.schedule().device(Side::Cpu)), (2, "cpu"));
    // what is printed is what runs
    engine.session(&SessionOptions::default()).unwrap().feed(0, &ids(3, 1)).unwrap();
}
