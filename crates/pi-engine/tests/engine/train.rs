//! Predictors trained for the demo model: they are worth something, survive a file, and a run that was interrupted ends with the
//! same bits as one that was not.
#![cfg(feature = "train")]

use pi_core::QuantType;
use pi_engine::{
    Engine, LayerPredictor, PredictorForm, Predictors, Result, SessionOptions, Sparsity,
    evaluate::{EvaluateOptions, evaluate},
    inspect,
    pi_gguf::File,
    pi_predictor::train::FitOptions,
    train::{Choice, Form, PredictorKind, Progress, TrainOptions, train},
};
use pi_testkit::{Random, TinyModel, synth::Family};
use std::{ops::ControlFlow, path::PathBuf, sync::Arc};

fn repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn demo(sparsity: Sparsity) -> Engine {
    let path = repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf");
    Engine::builder().threads(2).sparsity(sparsity).open(path).unwrap()
}

fn text(engine: &Engine, tokens: usize) -> Vec<u32> {
    let text = std::fs::read(repository("models/tiny-reglu-6m/text/profile.txt")).unwrap();
    let mut all = engine.encode_plain(&text).unwrap();
    all.truncate(tokens);
    all
}

/// Quick rather than good.
fn quick() -> TrainOptions {
    let fit = FitOptions { epochs: 3, batch: 64, ..FitOptions::default() };
    TrainOptions { samples: 1500, context: 64, ranks: vec![32], loss: 0.05, fit, ..TrainOptions::default() }
}

fn on(_: Progress<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn trained_predictors_leave_neurons_out_within_the_loss_asked_for_and_work_from_files() {
    let engine = demo(Sparsity::Exact);
    let text = text(&engine, 2600);
    let (text, kept) = text.split_at(2000);
    let options = quick();
    let trained = train(&engine, text, kept, &options, Vec::new(), &mut on).unwrap();
    let trial = trained.settled.trial.expect("thresholds within the loss");
    println!("{trial:?}");
    assert!(trial.growth() <= options.loss && trial.marked < 0.95, "{trial:?}");
    for layer in &trained.layers {
        let Some((candidate, used)) = layer.in_use() else { continue };
        assert!(used.point.share > layer.active * used.point.recall, "{used:?}");
        assert!(candidate.cost(&used.point) < 1.0 && used.kl.is_finite());
    }
    let folder = tempfile::tempdir().unwrap();
    let (beside, whole) = (folder.path().join("predictors.gguf"), folder.path().join("whole.powerinfer.gguf"));
    trained.write(&beside).unwrap();
    let model = repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf");
    trained.write_model(&File::open(&model).unwrap(), &whole).unwrap();
    let builder = || Engine::builder().threads(2).sparsity(Sparsity::Predictor);
    let source = Arc::new(File::open(&beside).unwrap());
    let loaded = [
        trained.engine(&engine).unwrap(),
        builder().predictors(Predictors::Beside { source: source.clone(), threshold: None }).open(&model).unwrap(),
        builder().open(&whole).unwrap(),
    ];
    // they are this model's, and not those of one of the same shape
    let said = inspect(&*source).predictors.expect("predictors");
    assert_eq!((said.layers, said.shape), (Some(6), (256, 1024)));
    let points: Vec<_> = trained
        .layers
        .iter()
        .filter_map(|l| l.in_use().map(|(c, used)| (l.layer, c.rank(), used.point.threshold)))
        .collect();
    let of = |p: &LayerPredictor| match &p.form {
        PredictorForm::Sign { margin } => -margin,
        _ => p.threshold().expect("a threshold"),
    };
    let found: Vec<_> = said.found.iter().map(|p| (p.layer, p.rank(), of(p))).collect();
    assert_eq!(found, points);
    let other = TinyModel { dim: 256, layers: 6, neurons: 1024, ..TinyModel::default() }.file();
    let e = builder().predictors(Predictors::Beside { source: source.clone(), threshold: None }).load(&other);
    let e = e.expect_err("another model").to_string();
    assert!(e.starts_with(&beside.display().to_string()) && e.contains("another model of the same shape"), "{e}");
    let settings = EvaluateOptions { context: 64, batch: 64, limit: Some(4), ..EvaluateOptions::default() };
    let found = loaded.map(|e| {
        let found = evaluate(&e, None, kept, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        (found.perplexity(), found.stats.marked_share())
    });
    println!("{found:?}");
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
    assert!(found[0].1.unwrap() < 0.95);
}

#[test]
fn a_training_that_was_interrupted_ends_as_one_that_was_not() {
    let engine = demo(Sparsity::Exact);
    let text = text(&engine, 1100);
    let (text, kept) = text.split_at(800);
    let options = TrainOptions { samples: 400, ranks: vec![16], ..quick() };
    let folder = tempfile::tempdir().unwrap();
    let path = |layer: usize| folder.path().join(format!("{layer}.gguf"));
    let run = |known: Vec<Choice>, stop_after: usize| -> (Result<_>, usize) {
        let mut fitted = 0;
        let done = train(&engine, text, kept, &options, known, &mut |now| {
            if let Progress::Fitted(choice) = now {
                choice.write(path(choice.layer), "this").unwrap();
                fitted += 1;
            }
            if fitted < stop_after { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        (done, fitted)
    };
    let (whole, fitted) = run(Vec::new(), usize::MAX);
    let whole = whole.unwrap();
    assert_eq!(fitted, 6);
    (0..6).for_each(|layer| std::fs::remove_file(path(layer)).unwrap());
    let (stopped, _) = run(Vec::new(), 2);
    assert!(stopped.is_err());
    let known: Vec<_> =
        (0..6).filter(|l| path(*l).exists()).map(|l| Choice::read(path(l), "this").unwrap().unwrap()).collect();
    assert!((2..6).contains(&known.len()), "{}", known.len());
    assert!(Choice::read(path(known[0].layer), "that").unwrap().is_none(), "it belongs to something else");
    let before = known.len();
    let (resumed, fitted) = run(known, usize::MAX);
    let resumed = resumed.unwrap();
    assert_eq!(before + fitted, 6);
    assert_eq!(resumed.settled.trial, whole.settled.trial);
    for (a, b) in resumed.layers.iter().zip(&whole.layers) {
        assert_eq!((a.layer, a.used, a.candidates.len()), (b.layer, b.used, b.candidates.len()));
        for (a, b) in a.candidates.iter().zip(&b.candidates) {
            assert_eq!(a.curve.points(), b.curve.points());
            match (&a.form, &b.form) {
                (Form::Mlp(a), Form::Mlp(b)) => assert_eq!((&a.fc1, &a.fc2), (&b.fc1, &b.fc2)),
                (a, b) => assert!(matches!((a, b), (Form::Sign, Form::Sign))),
            }
        }
    }
}

/// With signs alone to choose from nothing is trained; what the model does with them in memory and from files is the same, and
/// every layer marks what its curve said of other tokens, about.
#[test]
fn signs_are_measured_without_training_and_come_back_from_files_with_their_margins() {
    let engine = demo(Sparsity::Exact);
    let text = text(&engine, 2600);
    let (text, kept) = text.split_at(2000);
    let options = TrainOptions { kinds: vec![PredictorKind::Sign], loss: 0.5, ..quick() };
    let mut fitting = 0;
    let trained = train(&engine, text, kept, &options, Vec::new(), &mut |now| {
        fitting += usize::from(matches!(now, Progress::Fitting { .. }));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(fitting, 0, "nothing is trained");
    let kinds: Vec<_> = trained.layers.iter().map(Choice::kind).collect();
    println!("{kinds:?} {:?}", trained.settled.trial);
    assert!(kinds.contains(&"sign") && kinds.iter().all(|k| ["sign", "exact"].contains(k)));
    let folder = tempfile::tempdir().unwrap();
    let (beside, whole) = (folder.path().join("predictors.gguf"), folder.path().join("whole.gguf"));
    trained.write(&beside).unwrap();
    let model = repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf");
    trained.write_model(&File::open(&model).unwrap(), &whole).unwrap();
    let source = Arc::new(File::open(&beside).unwrap());
    assert_eq!(source.metadata().require::<Vec<&str>>(pi_engine::KINDS).unwrap(), kinds);
    let builder = || Engine::builder().threads(2).sparsity(Sparsity::Predictor);
    let loaded = [
        trained.engine(&engine).unwrap(),
        builder().predictors(Predictors::Beside { source, threshold: None }).open(&model).unwrap(),
        builder().open(&whole).unwrap(),
    ];
    let settings = EvaluateOptions { context: 64, batch: 64, limit: Some(4), ..EvaluateOptions::default() };
    let found = loaded.map(|e| {
        let predictors = e.sparsity().predictors.clone();
        let found = evaluate(&e, None, kept, &settings, &mut |_| ControlFlow::Continue(())).unwrap();
        (predictors, found.perplexity(), found.stats.marked)
    });
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
    for (layer, marked) in trained.layers.iter().zip(&found[0].2) {
        let said = layer.in_use().map_or(1.0, |(_, used)| used.point.share);
        assert!((f64::from(*marked) - said).abs() < 0.1, "layer {}: {marked} and {said}", layer.layer);
    }
    let timing = trained.time(&engine, kept).unwrap();
    for (layer, (share, bytes)) in trained.layers.iter().zip(timing.shares.iter().zip(&timing.bytes)) {
        assert_eq!((*share > 0.0, *bytes > 0), (layer.used.is_some(), layer.used.is_some()));
    }
    assert!(timing.shares.iter().sum::<f64>() < 1.0 && timing.exact > 0.0 && timing.predictor > 0.0);
}

/// The memory asked for bounds the samples that are held, down to a layer's, below which nothing can be done.
#[test]
fn memory_for_samples_is_a_bound() {
    let engine = demo(Sparsity::Exact);
    let text = text(&engine, 1100);
    let (text, kept) = text.split_at(800);
    // many more samples than the text has: what counts is what there will be
    let options = TrainOptions { samples: 1 << 20, ranks: vec![16], loss: 10.0, ..quick() };
    let run = |memory| {
        let mut at_once = 0;
        let options = TrainOptions { memory, ..options.clone() };
        let done = train(&engine, text, kept, &options, Vec::new(), &mut |now| {
            if let Progress::Collecting { layers, .. } = now {
                at_once = at_once.max(layers.len());
            }
            ControlFlow::Continue(())
        });
        done.map(|_| at_once).map_err(|e| e.to_string())
    };
    // 12 windows of 64 tokens, 1540 bytes each and 32 of signs for each of the one in nine that is measured with
    let layer = 12 * 64 * (2 * 256 + 4 + 1024) + 64 * 32;
    assert_eq!(run(layer), Ok(1));
    assert_eq!(run(3 * layer + 1), Ok(3));
    assert_eq!(run(1 << 30), Ok(6));
    let refused = run(layer - 1).unwrap_err();
    assert!(refused.contains("memory: expected at least 2 MiB, for the samples of one layer"), "{refused}");
}

/// A third of what is trained by default: then 28 % of the neurons were looked at when this was written, and 12 % with all of it. What
/// is promised for one text must hold for another, about.
#[test]
fn a_short_training_leaves_most_neurons_of_the_demo_model_out_and_hardly_changes_what_it_says() {
    let engine = demo(Sparsity::Exact);
    let (mut text, mut kept) = (Vec::new(), Vec::new());
    for (i, piece) in self::text(&engine, usize::MAX).chunks(512).enumerate() {
        if i % 10 == 5 { kept.extend_from_slice(piece) } else { text.extend_from_slice(piece) }
    }
    let fit = FitOptions { epochs: 4, ..FitOptions::default() };
    let options =
        TrainOptions { samples: 16_000, ranks: vec![64], ty: QuantType::Q8_0, fit, ..TrainOptions::default() };
    let trained = train(&engine, &text, &kept, &options, Vec::new(), &mut on).unwrap();
    let trial = trained.settled.trial.expect("thresholds within the loss");
    println!("{trial:?}");
    assert!(trial.growth() <= options.loss && trial.kl <= options.loss && trial.marked < 0.36, "{trial:?}");
    let unseen = std::fs::read(repository("models/tiny-reglu-6m/text/eval.txt")).unwrap();
    let unseen = engine.encode_plain(&unseen[..40_000]).unwrap();
    let found =
        evaluate(&trained.engine(&engine).unwrap(), Some(&engine), &unseen, &EvaluateOptions::default(), &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap();
    let against = found.against.as_ref().unwrap();
    println!("{:+.5} {:.5}", against.perplexity_increase(), against.kl_mean());
    assert!(against.perplexity_increase() < 0.006 && against.kl_mean() < 0.003, "{}", against.kl_mean());
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let engine = demo(Sparsity::Exact);
    let tokens = text(&engine, 3000);
    let refused = |engine: &Engine, text: &[u32], options: TrainOptions, expected: &str| {
        let e = train(engine, text, &tokens, &options, Vec::new(), &mut on).err().expect(expected).to_string();
        assert!(e.contains(expected), "{e}");
    };
    refused(&demo(Sparsity::Off), &tokens, quick(), "leaves idle neurons out");
    refused(&engine, &tokens[..100], quick(), "text to train on");
    refused(&engine, &tokens, TrainOptions { samples: 1, ..quick() }, "samples");
    refused(&engine, &tokens, TrainOptions { context: 1 << 20, ..quick() }, "context");
    refused(&engine, &tokens, TrainOptions { kinds: Vec::new(), ..quick() }, "kinds of predictors");
    refused(&engine, &tokens, TrainOptions { loss: f64::NAN, ..quick() }, "loss");
    refused(&engine, &tokens, TrainOptions { ranks: vec![0], ..quick() }, "rank");
    refused(&engine, &tokens, TrainOptions { ty: QuantType::Q4_0, ranks: vec![40], ..quick() }, "rank");
}

#[test]
fn opts_biases_stay_with_their_matrices_in_a_powerinfer_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("opt.powerinfer.gguf");
    let mut rng = Random(3);
    let tokens: Vec<u32> = (0..1400).map(|_| 3 + rng.below(256) as u32).collect();
    let shape = TinyModel { neurons: 1024, tied: true, gate_shift: -0.5, ..TinyModel::default() };
    let of = |ty| TinyModel { family: Family::Opt, ty, ..shape.clone() }.file();
    let load = |file: &File, sparsity| Engine::builder().threads(1).sparsity(sparsity).load(file).unwrap();
    let engine = load(&of(QuantType::F16), Sparsity::Exact);
    let (text, kept) = tokens.split_at(1000);
    let trained = train(&engine, text, kept, &TrainOptions { loss: 10.0, ..quick() }, Vec::new(), &mut on).unwrap();
    for ty in [QuantType::F32, QuantType::F16, QuantType::Q4_0] {
        let file = of(ty);
        trained.write_model(&file, &path).unwrap();
        let whole = File::open(&path).unwrap();
        // down is turned if that loses nothing, and its bias is named like it
        let down = if ty.is_float() { "ffn_down_t" } else { "ffn_down" };
        for layer in 0..2 {
            let bias =
                |file: &File, name: &str| file.tensor(&format!("blk.{layer}.{name}.bias")).map(|t| t.data().to_vec());
            assert!(bias(&file, "ffn_down").is_some());
            assert_eq!(bias(&whole, down), bias(&file, "ffn_down"), "{ty}");
            assert_eq!(bias(&whole, "ffn_up"), bias(&file, "ffn_up"), "{ty}");
            assert_eq!(whole.tensors().filter(|t| t.name().contains(&format!("blk.{layer}.ffn_down"))).count(), 2);
        }
        let logits = |engine: &Engine| {
            engine.session(&SessionOptions::default()).unwrap().feed(0, &tokens[..20]).unwrap().to_vec()
        };
        let want = logits(&load(&file, Sparsity::Off));
        for sparsity in [Sparsity::Off, Sparsity::Auto] {
            let got = logits(&load(&whole, sparsity));
            let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 1e-3, "{ty}, {sparsity:?}: {off}");
        }
        let some = trained.layers.iter().any(|l| l.used.is_some());
        println!("{ty}: predictors {some}");
        assert_eq!(inspect(&whole).problems.len(), usize::from(!some), "{ty}");
        if some && ty == QuantType::F16 {
            assert_eq!(logits(&load(&whole, Sparsity::Predictor)), logits(&trained.engine(&engine).unwrap()), "{ty}");
        }
    }
}
