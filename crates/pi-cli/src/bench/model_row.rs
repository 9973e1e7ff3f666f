//! A line about a model and a test: llama-bench's columns, then our own.

use super::{
    model::{ModelFlags, Samples, Test},
    table::{Align, Column, Row, spread},
};
use crate::{accelerator::name_of, machine};
use pi_engine::{Engine, pi_core::KvTypes, pi_gguf::File, pi_sparse_cpu::Isa};
use serde_json::Value;
use std::{path::Path, time::SystemTime};

/// What is the same for all tests of a model.
pub(super) struct About {
    path: String,
    name: String,
    bytes: u64,
    numbers: u64,
    device: String,
    cpu: String,
}

impl About {
    pub(super) fn new(engine: &Engine, file: &File, path: &Path) -> Self {
        let (mut bytes, mut numbers, mut by_type) = (0, 0, Vec::<(String, u64)>::new());
        for tensor in file.tensors() {
            let (size, name) = (tensor.data().len() as u64, tensor.ty().to_string());
            bytes += size;
            numbers += (tensor.rows() * tensor.cols()) as u64;
            match by_type.iter_mut().find(|(n, _)| *n == name) {
                Some((_, sum)) => *sum += size,
                None => by_type.push((name, size)),
            }
        }
        // The type of most weights: files of mixed types are named after their layers', not the embedding's.
        let most = by_type.into_iter().max_by_key(|(_, size)| *size).map_or_else(String::new, |(name, _)| name);
        let name = format!("{} {} {most}", engine.config().architecture, count(numbers));
        let info = engine.device().info();
        Self { path: path.display().to_string(), name, bytes, numbers, device: info.name, cpu: machine::cpu_name() }
    }
}

/// As in `134.52 M`, llama-bench's way to write numbers of parameters.
fn count(n: u64) -> String {
    let n = n as f64;
    if n >= 1e9 { format!("{:.2} B", n / 1e9) } else { format!("{:.2} M", n / 1e6) }
}

/// As in `87.48 MiB`.
fn binary_size(bytes: u64) -> String {
    let (mib, gib) = (f64::from(1 << 20), f64::from(1 << 30));
    let bytes = bytes as f64;
    if bytes >= gib { format!("{:.2} GiB", bytes / gib) } else { format!("{:.2} MiB", bytes / mib) }
}

/// Which settings are not the usual ones for all tests, and so have columns.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) batches: bool,
    pub(super) kv: bool,
}

/// How a test was run.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) flags: &'a ModelFlags,
    pub(super) isa: Isa,
    pub(super) threads: usize,
    pub(super) batch: usize,
    pub(super) ubatch: usize,
    pub(super) kv: KvTypes,
    pub(super) bandwidth: Option<f64>,
    pub(super) shown: Shown,
}

impl Setting<'_> {
    /// The types of keys and values, as llama.cpp writes them.
    fn kv_names(&self) -> [String; 2] {
        [self.kv.keys, self.kv.values].map(|ty| ty.quant().name().to_lowercase())
    }

    /// Where a GPU has them.
    fn kv_place(&self, device: &str) -> Value {
        let place = self.flags.placing.kv.kv_place.unwrap_or_default();
        if device.starts_with("cuda:") { name_of(place).into() } else { Value::Null }
    }
}

/// What a test showed.
pub(super) struct Line<'a> {
    pub(super) about: &'a About,
    pub(super) setting: Setting<'a>,
    pub(super) test: Test,
    pub(super) samples: Samples,
    pub(super) at: SystemTime,
}

/// llama-bench's columns, then our own.
pub(super) fn columns(shown: Shown) -> Vec<Column> {
    use Align::{Left, Right};
    let mut columns = vec![
        ("model", 24, Left),
        ("size", 10, Right),
        ("params", 10, Right),
        ("backend", 10, Left),
        ("threads", 7, Right),
    ];
    if shown.batches {
        columns.extend([("n_batch", 7, Right), ("n_ubatch", 8, Right)]);
    }
    if shown.kv {
        columns.extend([("type_k", 6, Right), ("type_v", 6, Right)]);
    }
    columns.extend([
        ("test", 15, Right),
        ("t/s", 20, Right),
        ("active", 8, Right),
        ("dense path", 10, Right),
        ("MB/token", 8, Right),
        ("GB/s", 6, Right),
        ("of memory", 9, Right),
    ]);
    columns
}

impl Line<'_> {
    fn per_second(&self) -> Vec<f64> {
        self.samples.seconds.iter().map(|s| self.test.tokens() as f64 / s.max(1e-9)).collect()
    }

    fn bytes_per_token(&self) -> f64 {
        self.samples.bytes as f64 / self.samples.tokens.max(1) as f64
    }

    /// Bytes of weights and caches per second.
    fn read_per_second(&self) -> f64 {
        self.samples.bytes as f64 / self.samples.seconds.iter().sum::<f64>().max(1e-9)
    }
}

impl Row for Line<'_> {
    fn fields(&self) -> Vec<(&'static str, Value)> {
        let (about, set, test) = (self.about, &self.setting, &self.test);
        let nanoseconds: Vec<_> = self.samples.seconds.iter().map(|s| (s * 1e9).round()).collect();
        let (per_second, read) = (self.per_second(), self.read_per_second());
        let (time, tps) = (spread(&nanoseconds), spread(&per_second));
        let [type_k, type_v] = set.kv_names();
        let whole = |v: f64| Value::from(v.round() as u64);
        vec![
            ("build_version", env!("CARGO_PKG_VERSION").into()),
            ("cpu_info", about.cpu.as_str().into()),
            ("backends", about.device.to_uppercase().into()),
            ("isa", set.isa.to_string().into()),
            ("model_filename", about.path.as_str().into()),
            ("model_type", about.name.as_str().into()),
            ("model_size", about.bytes.into()),
            ("model_n_params", about.numbers.into()),
            ("n_batch", set.batch.into()),
            ("n_ubatch", set.ubatch.into()),
            ("n_threads", set.threads.into()),
            ("type_k", type_k.into()),
            ("type_v", type_v.into()),
            ("kv_place", set.kv_place(&about.device)),
            ("use_mmap", (!set.flags.no_mmap).into()),
            ("sparsity", format!("{:?}", set.flags.sparsity).to_lowercase().into()),
            ("test", test.name().into()),
            ("n_prompt", test.prompt.into()),
            ("n_gen", test.generated.into()),
            ("n_depth", test.depth.into()),
            ("test_time", humantime::format_rfc3339_seconds(self.at).to_string().into()),
            ("avg_ns", whole(time.mean)),
            ("stddev_ns", whole(time.deviation)),
            ("avg_ts", tps.mean.into()),
            ("stddev_ts", tps.deviation.into()),
            ("active_share", mean(&self.samples.active).into()),
            ("marked_share", mean(&self.samples.marked).into()),
            ("dense_share", mean(&self.samples.dense).into()),
            ("bytes_per_token", whole(self.bytes_per_token())),
            ("read_bytes_per_second", whole(read)),
            ("memory_bytes_per_second", set.bandwidth.map(f64::round).into()),
            ("memory_share", set.bandwidth.map(|b| read / b).into()),
            ("samples_ns", nanoseconds.iter().map(|&n| whole(n)).collect()),
            ("samples_ts", per_second.into()),
        ]
    }

    fn cells(&self) -> Vec<String> {
        let (about, set) = (self.about, &self.setting);
        let (tps, read) = (spread(&self.per_second()), self.read_per_second());
        let percent = |share: Option<f64>| share.map_or_else(|| "-".into(), |s| format!("{:.1} %", 100.0 * s));
        let mut cells = vec![
            about.name.clone(),
            binary_size(about.bytes),
            count(about.numbers),
            format!("{} {}", about.device.to_uppercase(), set.isa),
            set.threads.to_string(),
        ];
        if set.shown.batches {
            cells.extend([set.batch.to_string(), set.ubatch.to_string()]);
        }
        if set.shown.kv {
            cells.extend(set.kv_names());
        }
        cells.extend([
            self.test.name(),
            format!("{:.2} ± {:.2}", tps.mean, tps.deviation),
            percent(mean(&self.samples.active)),
            percent(mean(&self.samples.dense)),
            format!("{:.2}", self.bytes_per_token() / 1e6),
            format!("{:.2}", read / 1e9),
            percent(set.bandwidth.map(|b| read / b)),
        ]);
        cells
    }
}

fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| spread(samples).mean)
}
