//! A CUDA device that fails in the middle of its work, at any call of the driver. On the emulated driver alone: a GPU cannot be told to fail.

#[path = "../../pi-engine/tests/engine/common/mod.rs"]
mod common;

use common::{
    difference, exact, ids,
    placed::{Hot, TOLERANCE, plan},
    predicted_models,
};
use pi_cuda_emu::{Driver, driver, driver_calls};
use pi_engine::{
    Engine, EngineBuilder, Error, GenerateOptions, OnDeviceLoss, SamplingParams, SessionOptions, Side, Sparsity,
    Streaming,
};
use pi_gguf::File;
use pi_sparse_cuda::Cuda;
use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// CUDA_ERROR_ECC_UNCORRECTABLE and CUDA_ERROR_LAUNCH_FAILED.
const CODES: [i32; 2] = [214, 719];

/// One test at a time: what fails, fails for all.
fn alone() -> Option<(MutexGuard<'static, ()>, &'static Driver)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match driver() {
        Ok(Some(driver)) => {
            driver.fail_after(0, 0);
            Some((turn, driver))
        }
        Ok(None) => {
            eprintln!("SKIPPED: only the emulated device can be told to fail");
            None
        }
        Err(e) => {
            assert!(std::env::var_os("CI").is_none(), "{e}");
            eprintln!("SKIPPED: {e}");
            None
        }
    }
}

fn settings() -> EngineBuilder {
    exact().sparsity(Sparsity::Predictor)
}

fn model() -> File {
    predicted_models().next().unwrap().1.file()
}

/// Logits after a prompt, the tokens of a text, and what the device said when it was lost.
type Done = (Vec<Vec<f32>>, Vec<u32>, Option<String>);

/// A prompt and a text.
fn work(engine: &Engine) -> Result<Done, Error> {
    let mut s = engine.session(&SessionOptions { context: Some(24), batch: 4, ..Default::default() })?;
    let logits = vec![s.feed(0, &ids(5, 1))?.to_vec()];
    let sampling = SamplingParams::greedy();
    let options = GenerateOptions { max_tokens: Some(4), sampling, ignore_eos: true, ..Default::default() };
    let generated = s.generate(0, &ids(2, 3), &options, &mut |_: &str| ControlFlow::Continue(()))?;
    Ok((logits, generated.tokens, s.device_loss().map(Into::into)))
}

/// The calls of the driver that `work` makes, and those that loading makes.
fn calls(driver: &Driver, load: &dyn Fn() -> Engine) -> (usize, usize) {
    let before = driver.calls();
    let engine = load();
    let loaded = driver.calls();
    let replays = || driver_calls("cuGraphLaunch").unwrap();
    let before_work = replays();
    work(&engine).unwrap();
    assert!(replays() > before_work, "graphs are a part of it");
    ((loaded - before) as usize, (driver.calls() - loaded) as usize)
}

#[test]
fn a_loss_at_any_call_gives_the_text_of_the_cpu_if_that_is_wanted() {
    let Some((_turn, driver)) = alone() else { return };
    let file = model();
    let cpu = settings().load(&file).unwrap();
    let (want, text, _) = work(&cpu).unwrap();
    let placed = plan(&cpu, Hot::Half, Side::Accelerator);
    let load = || {
        let cuda = Arc::new(Cuda::open(0).unwrap());
        let builder = settings().on_device_loss(OnDeviceLoss::Cpu).accelerator(cuda, placed.clone());
        builder.streaming(Some(Streaming { from: 4, memory: u64::MAX })).load(&file).unwrap()
    };
    let (_, working) = calls(driver, &load);
    assert!(working > 100, "{working}");
    let mut lost = 0;
    for (i, after) in (1..working).step_by(7).enumerate() {
        let engine = load();
        driver.fail_after(after, CODES[i % 2]);
        let done = work(&engine);
        drop(engine);
        driver.fail_after(0, 0);
        let (got, tokens, loss) = done.unwrap_or_else(|e| panic!("lost after {after}: {e}"));
        assert_eq!(tokens, text, "lost after {after}");
        assert!(difference(&got, &want) <= TOLERANCE, "lost after {after}");
        lost += usize::from(loss.is_some());
        if let Some(loss) = loss {
            assert!(loss.contains("cuda:0") && loss.contains(&CODES[i % 2].to_string()), "{loss}");
        }
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn a_loss_while_loading_gives_the_model_of_the_cpu_if_that_is_wanted() {
    let Some((_turn, driver)) = alone() else { return };
    let file = model();
    let cpu = settings().load(&file).unwrap();
    let (want, text, _) = work(&cpu).unwrap();
    let placed = plan(&cpu, Hot::Half, Side::Accelerator);
    let load = |cuda: &Cuda| {
        let builder = settings().on_device_loss(OnDeviceLoss::Cpu).accelerator(Arc::new(cuda.clone()), placed.clone());
        builder.load(&file)
    };
    let cuda = Cuda::open(0).unwrap();
    let before = driver.calls();
    drop(load(&cuda).unwrap());
    let loading = (driver.calls() - before) as usize;
    let mut lost = 0;
    for (i, after) in (1..loading).step_by(9).enumerate() {
        let cuda = Cuda::open(0).unwrap();
        driver.fail_after(after, CODES[i % 2]);
        let engine = load(&cuda).unwrap_or_else(|e| panic!("lost after {after}: {e}"));
        let (got, tokens, _) = work(&engine).unwrap();
        driver.fail_after(0, 0);
        assert_eq!(tokens, text, "lost after {after}");
        assert!(difference(&got, &want) <= TOLERANCE, "lost after {after}");
        let code = CODES[i % 2].to_string();
        lost +=
            usize::from(engine.warnings().iter().any(|w| w.contains("the accelerator was lost") && w.contains(&code)));
    }
    assert!(lost > 5, "{lost} of {loading} calls");
    // no room is no loss
    driver.set_memory(1 << 12);
    let refused = load(&Cuda::open(0).unwrap()).map(drop).unwrap_err().to_string();
    driver.set_memory(1 << 30);
    assert!(refused.contains("no memory for"), "{refused}");
}

#[test]
fn without_the_wish_a_loss_is_a_typed_error_at_any_call_from_opening_on() {
    let Some((_turn, driver)) = alone() else { return };
    let file = model();
    let cpu = settings().load(&file).unwrap();
    let (_, text, _) = work(&cpu).unwrap();
    let placed = plan(&cpu, Hot::Half, Side::Accelerator);
    let load = |cuda: Cuda| settings().accelerator(Arc::new(cuda), placed.clone()).load(&file);
    let (loading, working) = calls(driver, &|| load(Cuda::open(0).unwrap()).unwrap());
    let mut failed = [0; 3];
    for (i, after) in (1..loading + working).step_by(11).enumerate() {
        driver.fail_after(after, CODES[i % 2]);
        let cuda = Cuda::open(0);
        let said = match cuda {
            Err(e) => (0, e.to_string()),
            Ok(cuda) => match load(cuda) {
                Err(e) => (1, e.to_string()),
                Ok(engine) => match work(&engine) {
                    Err(e) => {
                        assert!(matches!(&e, Error::Core(pi_core::Error::Device { .. })), "{e}");
                        (2, e.to_string())
                    }
                    // the last calls free what nobody needs any more
                    Ok((_, tokens, _)) => {
                        assert_eq!(tokens, text);
                        continue;
                    }
                },
            },
        };
        failed[said.0] += 1;
        assert!(said.1.contains(&CODES[i % 2].to_string()), "lost after {after}: {}", said.1);
    }
    driver.fail_after(0, 0);
    assert!(failed.iter().all(|n| *n > 0), "{failed:?}");
    let engine = load(Cuda::open(0).unwrap()).unwrap();
    assert_eq!(work(&engine).unwrap().1, text, "a device that works again does");
}
