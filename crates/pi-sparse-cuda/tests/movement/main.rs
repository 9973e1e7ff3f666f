//! What is copied, waited for, launched, loaded and given back, as the emulated driver counts it. One test at a time: the counters are the
//! process's.

#[path = "../../../pi-engine/tests/engine/common/counting.rs"]
mod counting;
mod graphs;

use pi_cuda_emu::{driver_calls, use_driver};
use pi_engine::{
    Engine, LayerPlan, Plan, SessionOptions, Side, Sparsity, StepToken,
    pi_core::{
        Activation, Device, Down, FfnWeights, Gating, KvType, Limits, LinearSpec, Matrix, NeuronSet, NormSpec,
        QuantType, Write,
    },
    pi_sparse_cpu::Kernels,
};
use pi_gguf::File;
use pi_sparse_cuda::{Cuda, CudaOptions, KernelSource, KvPlace, Unavailable};
use pi_testkit::TinyModel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `None` if there is nothing that counts.
fn alone() -> Option<MutexGuard<'static, ()>> {
    static ONE: Mutex<()> = Mutex::new(());
    if let Err(e) = use_driver() {
        assert!(std::env::var_os("CI").is_none(), "{e}");
        eprintln!("SKIPPED: {e}");
        return None;
    }
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if driver_calls("cuLaunchKernel").is_none() {
        eprintln!("SKIPPED: a GPU's driver does not count");
        return None;
    }
    Some(guard)
}

fn calls(functions: &[&str]) -> u64 {
    functions.iter().map(|f| driver_calls(f).unwrap()).sum()
}

/// Whatever makes the host wait for the device.
const WAITS: [&str; 7] = [
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuCtxSynchronize",
    "cuMemFree_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "pageable",
];
const COPIES: [&str; 2] = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2"];
const EVENTS: [&str; 2] = ["cuEventRecord", "cuStreamWaitEvent"];
const MEMORY: [&str; 2] = ["cuMemAlloc_v2", "cuMemHostAlloc"];

fn engine(layers: usize, hot: impl Fn(usize) -> NeuronSet, dense: Side) -> Engine {
    let model = TinyModel { neuron_major: true, layers, ..TinyModel::default() };
    let file = model.file();
    let plan = |neurons| Plan { layers: vec![LayerPlan { dense, hot: hot(neurons) }; layers], head: dense };
    let exact = Engine::builder().kernels(Kernels::reference()).threads(1).kv(KvType::F32).sparsity(Sparsity::Exact);
    exact.accelerator(Arc::new(Cuda::open(0).unwrap()), plan(model.neurons)).load(&file).unwrap()
}

/// Waits, copies, events and allocations of a decoded token.
fn per_token(engine: &Engine) -> [u64; 4] {
    let mut session = engine.session(&SessionOptions { batch: 4, ..Default::default() }).unwrap();
    let mut token = || {
        session.step(&[StepToken { token: 7, seq: 0, logits: true }]).unwrap();
        assert!(session.logits(0).unwrap().iter().all(|v| v.is_finite()));
    };
    (0..3).for_each(|_| token());
    let count = || [&WAITS[..], &COPIES, &EVENTS, &MEMORY].map(calls);
    let before = count();
    (0..5).for_each(|_| token());
    let after = count();
    std::array::from_fn(|i| (after[i] - before[i]) / 5)
}

/// The same for each layer more.
fn per_layer(hot: impl Fn(usize) -> NeuronSet, dense: Side) -> [u64; 4] {
    let [two, six] = [2, 6].map(|layers| per_token(&engine(layers, &hot, dense)));
    std::array::from_fn(|i| {
        assert_eq!((six[i] - two[i]) % 4, 0, "layers differ: {two:?} and {six:?}");
        (six[i] - two[i]) / 4
    })
}

fn third(neurons: usize) -> NeuronSet {
    NeuronSet::some(neurons, (0..neurons as u32).filter(|i| i % 3 == 0).collect()).unwrap()
}

#[test]
fn a_layer_that_is_all_hot_moves_nothing_and_waits_for_nothing() {
    let Some(_guard) = alone() else { return };
    assert_eq!(per_layer(NeuronSet::all, Side::Accelerator), [0; 4]);
    let [waits, copies, _, memory] = per_token(&engine(3, NeuronSet::all, Side::Accelerator));
    // up: the embedding, a table of places and rotations, the picked row; down: the last state, logits, what was counted
    assert!(waits <= 3 && copies <= 6, "{waits} waits and {copies} copies per token");
    assert_eq!(memory, 0, "allocations per token");
}

#[test]
fn a_hybrid_layer_waits_once() {
    let Some(_guard) = alone() else { return };
    let [waits, copies, _, memory] = per_layer(third, Side::Accelerator);
    // down: the input of the FFN; up: what the CPU's neurons contribute
    assert_eq!((waits, copies, memory), (1, 2, 0), "attention on the device");
    let [waits, copies, _, memory] = per_layer(third, Side::Cpu);
    // up: the input; down: what the device's neurons contribute
    assert_eq!((waits, copies, memory), (1, 2, 0), "attention on the CPU");
}

#[test]
fn files_of_kernels_are_loaded_when_one_of_them_is_needed() {
    let Some(_guard) = alone() else { return };
    let loads = || calls(&["cuModuleLoadData"]);
    let (before, cuda) = (loads(), Cuda::open(0).unwrap());
    assert_eq!((loads() - before, cuda.files_loaded()), (0, 0));
    let norm = || cuda.norm(&NormSpec::Rms { weight: vec![1.0; 4].into(), eps: 1e-5 }).unwrap();
    norm();
    assert_eq!((loads() - before, cuda.files_loaded()), (1, 1));
    norm();
    cuda.linear(&LinearSpec::new(Matrix::encode("w", QuantType::F32, 1, 4, &[1.0; 4]).unwrap())).unwrap();
    // for few tokens, and for many: on tensor cores
    assert_eq!((loads() - before, cuda.files_loaded()), (3, 3));
}

#[test]
fn kernels_are_compiled_for_the_chip_if_that_was_asked_for() {
    let Some(_guard) = alone() else { return };
    let options = CudaOptions::default().kernels(KernelSource::Nvrtc);
    match Cuda::open_with(0, &options) {
        Ok(cuda) => {
            // `note` says so if NVRTC does not know the emulated chip; either way, there are kernels
            let m = Matrix::encode("w", QuantType::Q8_0, 3, 32, &[0.5; 96]).unwrap();
            let op = cuda.linear(&LinearSpec::new(m)).unwrap();
            eprintln!("NVRTC: {:?}", cuda.note());
            let (mut x, mut y) = (cuda.hidden(1, 32).unwrap(), cuda.hidden(1, 3).unwrap());
            x.host_overwrite().fill(1.0);
            op.apply(&mut x, &mut y, Write::Set).unwrap();
            assert!(y.host().unwrap().iter().all(|v| (v - 16.0).abs() < 0.1));
        }
        Err(e) => {
            assert_eq!(e, Unavailable::NoCompiler);
            assert!(e.to_string().contains("NVRTC"));
        }
    }
}

#[test]
fn weights_come_whole_through_buffers_that_are_smaller_than_they() {
    let Some(_guard) = alone() else { return };
    let cuda = Cuda::open(0).unwrap();
    // rows of 12,000 bytes do not divide a buffer of 4 MiB
    let (rows, cols) = (1100, 3000);
    let data: Vec<f32> =
        (0..rows * cols).map(|i| (i / cols) as f32 + if i % cols == 2999 { 0.5 } else { 0.0 }).collect();
    let m = Matrix::encode("w", QuantType::F32, rows, cols, &data).unwrap();
    let pageable = calls(&["pageable"]);
    let op = cuda.linear(&LinearSpec::new(m)).unwrap();
    assert_eq!(calls(&["pageable"]), pageable, "large copies come from pinned memory");
    let (mut x, mut y) = (cuda.hidden(1, cols).unwrap(), cuda.hidden(1, rows).unwrap());
    x.host_overwrite().fill(0.0);
    x.host_mut().unwrap()[0] = 1.0;
    x.host_mut().unwrap()[2999] = 2.0;
    op.apply(&mut x, &mut y, Write::Set).unwrap();
    for (i, v) in y.host().unwrap().iter().enumerate() {
        assert_eq!(*v, 3.0 * i as f32 + 1.0, "row {i}");
    }
}

/// Bytes of a file's mappings that are in memory.
#[cfg(target_os = "linux")]
fn resident(path: &std::path::Path) -> u64 {
    let (maps, name) = (std::fs::read_to_string("/proc/self/smaps").unwrap(), path.to_str().unwrap());
    let mut within = false;
    let mut kib = 0;
    for line in maps.lines() {
        if line.split_whitespace().next().is_some_and(|w| w.contains('-') && !w.ends_with(':')) {
            within = line.ends_with(name);
        } else if let Some(rest) = line.strip_prefix("Rss:").filter(|_| within) {
            kib += rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    kib << 10
}

// P13
#[cfg(target_os = "linux")]
#[test]
fn pages_of_what_only_the_device_uses_are_given_back() {
    let Some(_guard) = alone() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let model = TinyModel { dim: 256, neurons: 2048, layers: 2, neuron_major: true, ..TinyModel::default() };
    std::fs::write(&path, model.build().unwrap()).unwrap();
    let ffn = (model.layers * 3 * model.neurons * model.dim * 4) as u64;
    let loaded = |hot: fn(usize) -> NeuronSet, dense| {
        let file = File::open(&path).unwrap();
        let bytes: &[u8] = (**file.bytes(0).unwrap()).as_ref();
        let read = || bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
        let sum = read();
        let before = resident(&path);
        assert!(before > ffn, "{before} bytes of the file are in memory before anything is given back");
        let plan = Plan { layers: vec![LayerPlan { dense, hot: hot(model.neurons) }; model.layers], head: dense };
        let exact = Engine::builder().kernels(Kernels::reference()).threads(1).sparsity(Sparsity::Exact);
        let engine = exact.accelerator(Arc::new(Cuda::open(0).unwrap()), plan).load(&file).unwrap();
        let after = resident(&path);
        // decoding does not need them
        let mut session = engine.session(&SessionOptions::default()).unwrap();
        session.feed(0, &[3, 4, 5]).unwrap();
        let later = resident(&path);
        assert_eq!(read(), sum, "the file's bytes are what they were");
        (before, after, later)
    };
    let (before, after, later) = loaded(NeuronSet::all, Side::Accelerator);
    assert!(before - after > ffn * 95 / 100, "{before} bytes became {after}, of which {ffn} are the device's");
    // what is read brings its neighbours, up to two megabytes of them
    assert!(later < before / 2, "{after} bytes became {later} again");
    // half of the neurons, in runs
    let half = |n: usize| NeuronSet::some(n, (0..n as u32).filter(|i| i / 256 % 2 == 0).collect()).unwrap();
    let (before, after, _) = loaded(half, Side::Cpu);
    // where the system has mapped large pages, what else is in them is unmapped as well, until somebody reads it
    assert!(before - after > ffn * 45 / 100, "{before} bytes became {after}, of which half of {ffn} are the device's");
    // rows that lie alone share their pages with others
    let (before, after, _) = loaded(|n| NeuronSet::some(n, (0..n as u32).step_by(2).collect()).unwrap(), Side::Cpu);
    assert_eq!(before, after);
}

#[test]
fn keys_and_values_may_be_in_the_hosts_memory() {
    let Some(_guard) = alone() else { return };
    // two heads share keys and values; the context has more than two tiles of positions
    let model = TinyModel { neuron_major: true, layers: 1, context: 512, ..TinyModel::default() };
    let file = model.file();
    for kv in [KvType::F32, KvType::F16] {
        let logits = |place| {
            let cuda = Cuda::open_with(0, &CudaOptions::default().kv(place)).unwrap();
            let plan = Plan {
                layers: vec![LayerPlan { dense: Side::Accelerator, hot: NeuronSet::all(model.neurons) }],
                head: Side::Accelerator,
            };
            let engine = Engine::builder().threads(1).kv(kv).accelerator(Arc::new(cuda), plan).load(&file).unwrap();
            let before = calls(&["cuMemHostAlloc"]);
            let mut session = engine.session(&SessionOptions { batch: 70, ..Default::default() }).unwrap();
            let pinned = calls(&["cuMemHostAlloc"]) - before;
            let prompt: Vec<u32> = (0..300).map(|i| 3 + i * 7 % 200).collect();
            let mut all = session.feed(0, &prompt).unwrap().to_vec();
            session.truncate(0, 150);
            all.extend_from_slice(session.feed(0, &prompt[..2]).unwrap());
            (all, pinned)
        };
        let ((here, a), (there, b)) = (logits(KvPlace::Device), logits(KvPlace::Host));
        assert_eq!(here, there, "{kv:?}: the same kernels read the same numbers");
        assert_eq!(a + 2, b, "keys and values are pinned");
    }
}

/// A neuron that is not wanted costs no product; one that does not fire costs the first.
#[test]
fn what_is_skipped_is_not_computed() {
    let Some(_guard) = alone() else { return };
    let cuda = Cuda::open(0).unwrap();
    let (dim, n) = (64, 320);
    // gates of even neurons are positive, and those of odd ones negative
    let ones = |sign: fn(usize) -> f32| (0..n * dim).map(|i| sign(i / dim)).collect::<Vec<_>>();
    let rows = |name, data: &[f32], ty| Matrix::encode(name, ty, n, dim, data).unwrap();
    for (gate_type, up_type) in [(QuantType::F16, QuantType::F16), (QuantType::F16, QuantType::Q8_0)] {
        let weights = FfnWeights {
            gate: Some(rows("gate", &ones(|i| if i % 2 == 0 { 1.0 } else { -1.0 }), gate_type)),
            up: rows("up", &ones(|_| 1.0), up_type),
            down: Down::NeuronMajor(rows("down", &ones(|_| 1.0), up_type)),
            gate_bias: None,
            up_bias: None,
            down_bias: None,
            gating: Gating::Gated,
            act: Activation::Relu,
            skip: true,
        };
        let op = cuda.sparse_ffn(&weights, &NeuronSet::all(n)).unwrap();
        for tokens in [1, 2, 4, 6] {
            let limits = Limits { tokens, sequences: 1, context: 1 };
            let mut run = op.clone().open(&limits).unwrap();
            let mut x = cuda.hidden(tokens, dim).unwrap();
            x.host_overwrite().fill(1.0);
            let mut y = cuda.hidden(tokens, dim).unwrap();
            // every token marks neurons of its own, but for the first of all; two of each ten fire
            let mark = |t: usize, i: usize| i == 0 || i % 20 == t || i % 20 == t + 7;
            let mut active = cuda.active(tokens, n).unwrap();
            let words = active.words();
            let marks = active.marks(tokens).unwrap();
            for (t, i) in (0..tokens).flat_map(|t| (0..n).map(move |i| (t, i))).filter(|&(t, i)| mark(t, i)) {
                marks[t * words + i / 64] |= 1 << (i % 64);
            }
            let before = calls(&["warp sums"]);
            run.submit(&mut x, &mut active).unwrap();
            run.collect(&mut y, Write::Set).unwrap();
            y.host().unwrap();
            // tokens share rows in groups of four, each with a product for every row that one of them wants
            let want: usize = (0..tokens)
                .step_by(4)
                .map(|first| {
                    let group = first..(first + 4).min(tokens);
                    let wanted = (0..n).filter(|&i| group.clone().any(|t| mark(t, i)));
                    group.len() * wanted.map(|i| if i % 2 == 0 { 2 } else { 1 }).sum::<usize>()
                })
                .sum();
            assert!(want < tokens * n, "{want} products");
            assert_eq!(calls(&["warp sums"]) - before, want as u64, "{tokens} tokens, {up_type}");
            let active = (0..n).filter(|&i| i % 2 == 0 && mark(0, i)).count();
            let (got, want) = (y.host().unwrap()[0], (active * dim * dim) as f32);
            assert!((got / want - 1.0).abs() < 1e-3, "{got} instead of {want}"); // a block's scale is rounded
        }
    }
}
