//! A device that fails in the middle of its work: the session goes on with the CPU if that is asked for, and gives the CPU's answer.

use crate::common::{
    difference, exact, ids,
    placed::{Hot, TOLERANCE, plan, sim},
    predicted_models, same_bits,
};
use pi_engine::{
    Engine, EngineBuilder, Error, GenerateOptions, Observer, OnDeviceLoss, Plan, SamplingParams, Session,
    SessionOptions, Side, Sparsity, StepToken,
};
use pi_gguf::File;
use pi_testkit::{
    TinyModel,
    sim::{SimDevice, SimOptions},
};
use std::{ops::ControlFlow, sync::Arc};

fn settings() -> EngineBuilder {
    exact().sparsity(Sparsity::Predictor).on_device_loss(OnDeviceLoss::Cpu)
}

fn model() -> File {
    predicted_models().next().unwrap().1.file()
}

fn with_device(file: &File, plan: Plan) -> (Engine, Arc<SimDevice>) {
    let device = sim(SimOptions::default());
    (settings().accelerator(device.clone(), plan).load(file).unwrap(), device)
}

fn open(engine: &Engine) -> Session {
    engine.session(&SessionOptions { sequences: 3, batch: 4, logits: 3, context: Some(40) }).unwrap()
}

/// Two prompts, steps of three sequences, a look back, and a generation: every logit, and the generated tokens.
fn work(s: &mut Session) -> Result<(Vec<Vec<f32>>, Vec<u32>), Error> {
    let mut seen = vec![s.feed(0, &ids(6, 1))?.to_vec(), s.feed(2, &ids(3, 2))?.to_vec()];
    for i in 0..2 {
        s.step(&[0, 1, 2].map(|seq| StepToken { token: 7 + 3 * i + seq, seq, logits: true }))?;
        for k in 0..3 {
            seen.push(s.logits(k)?.to_vec());
        }
    }
    s.truncate(0, 4);
    let sampling = SamplingParams::greedy();
    let options = GenerateOptions { max_tokens: Some(4), sampling, ignore_eos: true, ..Default::default() };
    let generated = s.generate(0, &ids(2, 3), &options, &mut |_: &str| ControlFlow::Continue(()))?;
    seen.push(s.logits(0)?.to_vec());
    Ok((seen, generated.tokens))
}

#[test]
fn a_loss_at_any_submission_changes_nothing_but_who_computes() {
    let file = model();
    let cpu = settings().load(&file).unwrap();
    let (want, text) = work(&mut open(&cpu)).unwrap();
    let mut mixed = Plan::whole(cpu.config(), Side::Accelerator);
    (mixed.layers[0].dense, mixed.layers[1].hot) = (Side::Cpu, Hot::Half.set(cpu.config().neurons));
    for plan in [plan(&cpu, Hot::Half, Side::Accelerator), plan(&cpu, Hot::All, Side::Cpu), mixed] {
        let (engine, device) = with_device(&file, plan.clone());
        let before = device.counts().launches;
        let (got, same) = work(&mut open(&engine)).unwrap();
        assert!(difference(&got, &want) <= TOLERANCE && same == text);
        let launches = device.counts().launches - before;
        assert!(launches > 10, "{launches}");
        for after in 0..launches {
            let (engine, device) = with_device(&file, plan.clone());
            let mut s = open(&engine);
            assert_eq!(s.device_loss(), None);
            device.lose_after(after);
            let (got, tokens) = work(&mut s).unwrap_or_else(|e| panic!("lost after {after}: {e}"));
            assert_eq!(tokens, text, "lost after {after}");
            assert!(difference(&got, &want) <= TOLERANCE, "lost after {after}");
            // from the loss on everything is the CPU's, to the last bit
            let last = got.len() - 1;
            assert!(same_bits(&got[last..], &want[last..]), "lost after {after}");
            assert!(s.device_loss().unwrap().contains("sim:0"), "{:?}", s.device_loss());
            assert_eq!(s.engine().device().info().name, "cpu");
            assert_eq!((s.len(0), s.len(1), s.len(2)), (9, 2, 5));
        }
    }
}

#[test]
fn without_the_wish_a_loss_stays_an_error() {
    let file = model();
    let cpu = settings().load(&file).unwrap();
    let device = sim(SimOptions::default());
    let whole = plan(&cpu, Hot::Half, Side::Accelerator);
    let engine = exact().accelerator(device.clone(), whole).load(&file).unwrap();
    let mut s = open(&engine);
    s.feed(0, &[1, 2]).unwrap();
    device.lose_after(3);
    let e = s.feed(0, &[3]).unwrap_err();
    assert!(matches!(&e, Error::Core(pi_core::Error::Device { device, .. }) if device == "sim:0"), "{e}");
    assert_eq!((s.len(0), s.device_loss()), (2, None));
    let e = "gpu".parse::<OnDeviceLoss>().unwrap_err().to_string();
    assert!(e.contains("gpu") && e.contains("error, cpu"), "{e}");
    assert_eq!(("error".parse(), "cpu".parse()), (Ok(OnDeviceLoss::Error), Ok(OnDeviceLoss::Cpu)));
}

/// All sessions of an engine leave the device, each when it notices, and new ones do not try it.
#[test]
fn other_sessions_of_the_engine_go_on_as_well() {
    let file = model();
    let cpu = settings().load(&file).unwrap();
    let (want, _) = work(&mut open(&cpu)).unwrap();
    let (engine, device) = with_device(&file, plan(&cpu, Hot::Half, Side::Accelerator));
    let weights = device.used();
    let (mut first, mut second) = (open(&engine), open(&engine));
    second.feed(1, &[9]).unwrap();
    assert!(device.used() > weights);
    device.lose_after(30);
    work(&mut first).unwrap();
    second.truncate(1, 0);
    let mut third = open(&engine);
    for s in [&mut second, &mut third] {
        let (got, _) = work(s).unwrap();
        assert!(same_bits(&got, &want));
        assert!(s.device_loss().is_some());
    }
    assert_eq!(device.used(), weights, "nothing of the sessions is left on the device");
    drop((first, second, third, engine));
    assert_eq!(device.used(), 0);
}

#[test]
fn what_is_computed_again_is_neither_counted_nor_shown_twice() {
    #[derive(Default)]
    struct Seen(Vec<(usize, bool)>);
    impl Observer for Seen {
        fn inputs(&mut self, layer: usize, _: &[f32], _: &[f32]) {
            self.0.push((layer, false));
        }
        fn values(&mut self, layer: usize, _: &[f32]) {
            self.0.push((layer, true));
        }
    }
    let file = TinyModel { neuron_major: true, layers: 3, ..TinyModel::default() }.file();
    let settings = || exact().sparsity(Sparsity::Exact).on_device_loss(OnDeviceLoss::Cpu);
    let cpu = settings().load(&file).unwrap();
    let run = |s: &mut Session| {
        let mut seen = Seen::default();
        for part in [&[1, 2, 3][..], &[4], &[5]] {
            let step: Vec<_> = part.iter().map(|&token| StepToken { token, seq: 0, logits: false }).collect();
            s.step_with(&step, &mut seen).unwrap();
        }
        let stats = s.stats();
        (seen.0, stats.tokens, stats.active, stats.marked)
    };
    let want = run(&mut open(&cpu));
    for after in 0..60 {
        let device = sim(SimOptions::default());
        let placed = plan(&cpu, Hot::Half, Side::Accelerator);
        let engine = settings().accelerator(device.clone(), placed).load(&file).unwrap();
        let mut s = open(&engine);
        device.lose_after(after);
        assert_eq!(run(&mut s), want, "lost after {after}");
    }
}

#[test]
fn predictors_that_were_put_in_stay() {
    let file = model();
    let cpu = settings().load(&file).unwrap();
    let (engine, device) = with_device(&file, plan(&cpu, Hot::Half, Side::Accelerator));
    let none = vec![None; 2];
    let (cpu, engine) = (cpu.with_predictors(&none).unwrap(), engine.with_predictors(&none).unwrap());
    let (want, _) = work(&mut open(&cpu)).unwrap();
    let mut s = open(&engine);
    device.lose_after(0);
    let (got, _) = work(&mut s).unwrap();
    assert!(same_bits(&got, &want));
}
