//! Single operators: `pi bench gemv`, `gemm`, `ffn` and `attention`.
//!
//! The result is compared with the reference first; what is wrong is not timed. Weights come from memory: there are so many
//! copies that four times the last cache is read between two uses of one (`--warm` makes a single copy).

use super::{
    list::{Numbers, items},
    machine_speed::{MachineSpeed, pool},
    model::in_range,
    table::{Align, Column, Format, Row, Table, median},
};
use crate::{
    failure::{Failure, Result},
    kernels, machine,
};
use clap::Args;
use pi_engine::{
    pi_core::{Error, KvType, OpStats, QuantType},
    pi_sparse_cpu::{CpuDevice, Crossover, Isa, Kernels, Pool},
};
use pi_testkit::cases::{self, Attention, Case, Ffn, Prepared, Product, Select};
use serde_json::Value;
use std::{process::ExitCode, sync::Arc, time::Instant};

/// Fewest and most timed calls.
const CALLS: (usize, usize) = (5, 100_000);

/// Options of all operators.
#[derive(Args, Debug)]
pub struct Common {
    /// Types of the weights, as in q4_0,f16 [default: a usual selection]
    #[arg(long = "type", value_name = "TYPE,…", value_parser = types)]
    ty: Option<Types>,
    /// Instruction sets of the kernels [default: what PI_ISA says, or the best]
    #[arg(long, value_name = "ISA,…", value_parser = isas)]
    isa: Option<Isas>,
    /// Threads [default: the cores this process may use]
    #[arg(short, long, value_name = "N,…", allow_hyphen_values = true)]
    threads: Vec<Numbers>,
    /// One copy of the weights, which stays in the caches if it fits
    #[arg(long)]
    warm: bool,
    /// How long an operator is run
    #[arg(long, value_name = "S", default_value_t = 1.0, allow_negative_numbers = true, value_parser = seconds)]
    seconds: f32,
    /// The memory's speed in GB/s, instead of measuring it; 0: do not compare with it
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true, value_parser = crate::values::from_zero)]
    bandwidth: Option<f32>,
    /// Form of the results
    #[arg(short, long, value_name = "FORM", default_value = "md")]
    output: Format,
}

/// A matrix by a vector.
#[derive(Args, Debug)]
pub struct GemvFlags {
    /// Outputs [default: 4096]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    rows: Vec<Numbers>,
    /// Inputs [default: 4096]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    cols: Vec<Numbers>,
    #[command(flatten)]
    common: Common,
}

/// A matrix by many vectors.
#[derive(Args, Debug)]
pub struct GemmFlags {
    /// Vectors at once [default: 512]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    tokens: Vec<Numbers>,
    #[command(flatten)]
    matrix: GemvFlags,
}

/// An FFN.
#[derive(Args, Debug)]
pub struct FfnFlags {
    /// Width of input and output [default: 4096]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    dim: Vec<Numbers>,
    /// Neurons [default: 11008]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    ffn: Vec<Numbers>,
    /// Tokens at once [default: 1]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    tokens: Vec<Numbers>,
    /// Shares of active neurons, 0 to 1 [default: 0.05,0.1,0.2,0.5,1]
    #[arg(long, value_name = "SHARE,…", value_parser = shares, allow_hyphen_values = true)]
    active: Option<Shares>,
    /// Who says which neurons are active: marks (a predictor; others are not read), gate (it is read for all), dense (all are
    /// computed)
    #[arg(long, value_name = "WHO,…", value_parser = selects)]
    select: Option<Selects>,
    /// Share of active neurons from which every neuron is computed [default: 1, never]
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, allow_negative_numbers = true, value_parser = crate::values::share)]
    crossover: f32,
    #[command(flatten)]
    common: Common,
}

/// Attention.
#[derive(Args, Debug)]
pub struct AttentionFlags {
    /// Positions in the cache [default: 128,512,1024]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    context: Vec<Numbers>,
    /// Query heads [default: 32]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    heads: Vec<Numbers>,
    /// Heads of keys and values [default: 8]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    kv_heads: Vec<Numbers>,
    /// Numbers per head [default: 128]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    head_dim: Vec<Numbers>,
    /// Width of input and output of the projections, which are a part of the operator [default: 32, nearly nothing]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    dim: Vec<Numbers>,
    /// New tokens at once [default: 1]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    tokens: Vec<Numbers>,
    /// How keys and values are kept [default: f16]
    #[arg(long, value_name = "KV,…", value_parser = kv_types)]
    kv: Option<KvTypes>,
    #[command(flatten)]
    common: Common,
}

macro_rules! list {
    ($name:ident, $of:ty, $read:ident, $expected:expr) => {
        #[derive(Clone, Debug)]
        struct $name(Vec<$of>);

        fn $read(text: &str) -> Result<$name, String> {
            Ok($name(items(text, &$expected)?))
        }
    };
}

list!(Isas, Isa, isas, format!("instruction sets ({} on this machine)", kernels::available()));
list!(Selects, Select, selects, "marks, gate or dense");
list!(KvTypes, KvType, kv_types, "f16 or f32");

#[derive(Clone, Debug)]
struct Types(Vec<QuantType>);

fn types(text: &str) -> Result<Types, String> {
    let known = || QuantType::ALL.map(|ty| ty.name().to_lowercase()).join(", ");
    let one = |t: &str| QuantType::from_name(t.trim()).ok_or_else(|| format!("'{t}' is none of {}", known()));
    text.split(',').map(one).collect::<Result<_, _>>().map(Types)
}

#[derive(Clone, Debug)]
struct Shares(Vec<f64>);

fn shares(text: &str) -> Result<Shares, String> {
    let all: Vec<f64> = items(text, "numbers from 0 to 1")?;
    match all.iter().find(|s| !(0.0..=1.0).contains(*s)) {
        Some(s) => Err(format!("expected numbers from 0 to 1, not {s}")),
        None => Ok(Shares(all)),
    }
}

fn seconds(text: &str) -> Result<f32, String> {
    let value = crate::values::positive(text)?;
    if value <= 3600.0 { Ok(value) } else { Err("expected at most 3600".into()) }
}

/// A size that memory can hold.
const SIZES: std::ops::RangeInclusive<usize> = 1..=1 << 20;

fn sizes(flag: &str, given: &[Numbers], default: usize) -> Result<Vec<usize>> {
    in_range(flag, &Numbers::all(given, &[default]), SIZES)
}

/// Times `pi bench gemv`.
///
/// # Errors
/// As [`time`].
pub fn gemv(flags: &GemvFlags) -> Result {
    time(&flags.common, 1.0, &products(flags, &[1], &cases::gemv())?)
}

/// Times `pi bench gemm`.
///
/// # Errors
/// As [`time`].
pub fn gemm(flags: &GemmFlags) -> Result {
    let tokens = sizes("--tokens", &flags.tokens, 512)?;
    time(&flags.matrix.common, 1.0, &products(&flags.matrix, &tokens, &cases::gemm())?)
}

fn products(flags: &GemvFlags, tokens: &[usize], usual: &[Case]) -> Result<Vec<Case>> {
    let default = Product::default();
    let (rows, cols) = (sizes("--rows", &flags.rows, default.rows)?, sizes("--cols", &flags.cols, default.cols)?);
    let types = flags.common.types(usual);
    Ok(cross(&[types.len(), rows.len(), cols.len(), tokens.len()], |i| {
        Case::Product(Product { ty: types[i[0]], rows: rows[i[1]], cols: cols[i[2]], tokens: tokens[i[3]] })
    }))
}

/// Times `pi bench ffn`.
///
/// # Errors
/// As [`time`].
pub fn ffn(flags: &FfnFlags) -> Result {
    let (default, usual) = (Ffn::default(), cases::ffn());
    let (dims, neurons) = (sizes("--dim", &flags.dim, default.dim)?, sizes("--ffn", &flags.ffn, default.neurons)?);
    let tokens = sizes("--tokens", &flags.tokens, default.tokens)?;
    let types = flags.common.types(&usual);
    let selects = flags.select.as_ref().map_or_else(|| vec![default.select], |s| s.0.clone());
    let mut shares = flags.active.as_ref().map_or_else(Vec::new, |s| s.0.clone());
    if shares.is_empty() {
        for case in &usual {
            if let Case::Ffn(f) = case
                && !shares.contains(&f.active)
            {
                shares.push(f.active);
            }
        }
    }
    let lengths = [types.len(), dims.len(), neurons.len(), tokens.len(), selects.len(), shares.len()];
    let mut found = cross(&lengths, |i| {
        let (select, active) = (selects[i[4]], shares[i[5]]);
        // With nobody to leave neurons out, all are active.
        let active = if select == Select::Dense { 1.0 } else { active };
        Case::Ffn(Ffn {
            ty: types[i[0]],
            dim: dims[i[1]],
            neurons: neurons[i[2]],
            tokens: tokens[i[3]],
            select,
            active,
        })
    });
    found.dedup();
    time(&flags.common, flags.crossover, &found)
}

/// Times `pi bench attention`.
///
/// # Errors
/// As [`time`].
pub fn attention(flags: &AttentionFlags) -> Result {
    let (d, usual) = (Attention::default(), cases::attention());
    let lengths: Vec<_> =
        usual.iter().filter_map(|c| if let Case::Attention(a) = c { Some(a.context) } else { None }).collect();
    let context = in_range("--context", &Numbers::all(&flags.context, &lengths), 0..=*SIZES.end())?;
    let heads = sizes("--heads", &flags.heads, d.heads)?;
    let kv_heads = sizes("--kv-heads", &flags.kv_heads, d.kv_heads)?;
    let head_dim = sizes("--head-dim", &flags.head_dim, d.head_dim)?;
    let dim = sizes("--dim", &flags.dim, d.dim)?;
    let tokens = sizes("--tokens", &flags.tokens, d.tokens)?;
    let kv = flags.kv.as_ref().map_or_else(|| vec![d.kv], |k| k.0.clone());
    let types = flags.common.types(&usual);
    let lengths =
        [types.len(), dim.len(), heads.len(), kv_heads.len(), head_dim.len(), context.len(), tokens.len(), kv.len()];
    let found = cross(&lengths, |i| {
        Case::Attention(Attention {
            ty: types[i[0]],
            dim: dim[i[1]],
            heads: heads[i[2]],
            kv_heads: kv_heads[i[3]],
            head_dim: head_dim[i[4]],
            context: context[i[5]],
            tokens: tokens[i[6]],
            kv: kv[i[7]],
        })
    });
    time(&flags.common, 1.0, &found)
}

/// Every combination of indices below `lengths`; the last runs fastest.
fn cross<T>(lengths: &[usize], make: impl Fn(&[usize]) -> T) -> Vec<T> {
    let total = lengths.iter().product();
    let indices = |n: usize| {
        let mut rest = n;
        let mut index: Vec<_> = lengths.iter().rev().map(|&l| (rest % l, rest /= l).0).collect();
        index.reverse();
        index
    };
    (0..total).map(|n| make(&indices(n))).collect()
}

impl Common {
    fn types(&self, usual: &[Case]) -> Vec<QuantType> {
        if let Some(types) = &self.ty {
            return types.0.clone();
        }
        let mut types: Vec<_> = usual.iter().map(Case::ty).collect();
        types.dedup();
        types
    }

    fn kernels(&self) -> Result<Vec<Kernels>> {
        match &self.isa {
            None => Ok(vec![kernels::forced()?.unwrap_or_else(Kernels::best)]),
            Some(isas) => {
                let one = |isa: &Isa| {
                    let why = |_| {
                        let why = format!("this CPU does not have it (it can run: {})", kernels::available());
                        Failure::value(isa.to_string(), "--isa", why)
                    };
                    Kernels::for_isa(*isa).map_err(why)
                };
                isas.0.iter().map(one).collect()
            }
        }
    }
}

/// Checks every case, then times it.
///
/// # Errors
/// Wrong flags; shapes that do not fit; a result that is wrong.
fn time(flags: &Common, crossover: f32, cases: &[Case]) -> Result {
    let threads = in_range("--threads", &Numbers::all(&flags.threads, &[machine::usable_cores()]), 1..=1024)?;
    let kernels = flags.kernels()?;
    let mut speed = MachineSpeed::new(flags.bandwidth);
    // What cannot be computed is said before anything else is.
    for case in cases {
        case.fit().map_err(|e| Failure::Usage(format!("{case}: {e}")))?;
    }
    let mut table = Table::new(flags.output, columns(cases));
    for &threads in &threads {
        let pool: Arc<Pool> = Arc::new(pool(threads)?);
        let bandwidth = speed.of(threads)?;
        for kernels in &kernels {
            let device = CpuDevice::new(kernels.clone(), pool.clone()).with_crossover(Crossover::uniform(crossover));
            let reference = CpuDevice::new(Kernels::reference(), pool.clone());
            let mut dense: Option<(Ffn, f64)> = None;
            for case in cases {
                let error = case.check(&device, &reference).map_err(Failure::Work)?;
                let measured = measure(case, &device, flags)?;
                let ratio = match case {
                    Case::Ffn(ffn) => Some(ratio(ffn, measured.median, &mut dense, &device, flags)?),
                    _ => None,
                };
                let isa = kernels.isa();
                table.row(&Line {
                    case,
                    isa,
                    kernel: kernels.get(case.ty()).isa,
                    threads,
                    error,
                    measured,
                    ratio,
                    bandwidth,
                })?;
            }
        }
    }
    table.end()?;
    Ok(ExitCode::SUCCESS)
}

/// What was measured of a case.
#[derive(Clone, Copy, Debug)]
struct Measured {
    median: f64,
    min: f64,
    calls: usize,
    turns: usize,
    working_set: u64,
    macs: u64,
    stats: OpStats,
}

fn measure(case: &Case, device: &CpuDevice, flags: &Common) -> Result<Measured> {
    let cold = if flags.warm { 0 } else { machine::cold() };
    let failed = |e| Failure::Work(format!("{case}: {e}"));
    let mut prepared = case.prepare(device, cold).map_err(failed)?;
    let samples = sample(&mut prepared, f64::from(flags.seconds)).map_err(failed)?;
    Ok(Measured {
        median: median(&samples),
        min: samples.iter().copied().fold(f64::INFINITY, f64::min),
        calls: samples.len(),
        turns: prepared.turns(),
        working_set: prepared.working_set(),
        macs: prepared.macs(),
        stats: prepared.stats(),
    })
}

/// Seconds of every call, after each copy was used once (for no longer than half of the time).
fn sample(prepared: &mut Prepared, seconds: f64) -> Result<Vec<f64>, Error> {
    let start = Instant::now();
    for _ in 0..prepared.turns() {
        prepared.step()?;
        if start.elapsed().as_secs_f64() > seconds / 2.0 {
            break;
        }
    }
    let (start, mut samples) = (Instant::now(), Vec::new());
    while samples.len() < CALLS.0 || (samples.len() < CALLS.1 && start.elapsed().as_secs_f64() < seconds) {
        let call = Instant::now();
        prepared.step()?;
        samples.push(call.elapsed().as_secs_f64());
    }
    Ok(samples)
}

/// How many times as long as the dense FFN of the same shape it takes.
fn ratio(ffn: &Ffn, median: f64, known: &mut Option<(Ffn, f64)>, device: &CpuDevice, flags: &Common) -> Result<f64> {
    let dense = Ffn { select: Select::Dense, active: 1.0, ..ffn.clone() };
    if let Some((_, time)) = known.as_ref().filter(|(of, _)| *of == dense) {
        return Ok(median / time);
    }
    let time = if *ffn == dense { median } else { measure(&Case::Ffn(dense.clone()), device, flags)?.median };
    *known = Some((dense, time));
    Ok(median / time)
}

struct Line<'a> {
    case: &'a Case,
    isa: Isa,
    kernel: Isa,
    threads: usize,
    error: f64,
    measured: Measured,
    ratio: Option<f64>,
    bandwidth: Option<f64>,
}

fn columns(cases: &[Case]) -> Vec<Column> {
    use Align::{Left, Right};
    let name = cases.iter().map(|case| case.to_string().chars().count()).max().unwrap_or(0);
    vec![
        ("operator", name, Left),
        ("kernel", 9, Left),
        ("threads", 7, Right),
        ("median", 10, Right),
        ("min", 10, Right),
        ("GB/s", 6, Right),
        ("of memory", 9, Right),
        ("GMAC/s", 7, Right),
        ("of dense", 8, Right),
        ("dense path", 10, Right),
        ("weights", 8, Left),
        ("error", 7, Right),
    ]
}

impl Line<'_> {
    fn read_per_second(&self) -> f64 {
        self.measured.stats.bytes as f64 / self.measured.median
    }

    fn share(part: u64, of: u64) -> Option<f64> {
        (of > 0).then(|| part as f64 / of as f64)
    }

    /// Where the weights come from: `memory`, or `caches` if all that was read fits them more or less.
    fn weights(&self) -> &'static str {
        if self.measured.working_set >= machine::cold() { "memory" } else { "caches" }
    }
}

impl Row for Line<'_> {
    fn fields(&self) -> Vec<(&'static str, Value)> {
        let (m, stats) = (&self.measured, &self.measured.stats);
        let mut fields: Vec<(&'static str, Value)> = vec![
            ("build_version", env!("CARGO_PKG_VERSION").into()),
            ("cpu_info", machine::cpu_name().into()),
            ("operator", self.case.to_string().into()),
            ("type", self.case.ty().name().into()),
        ];
        fields.extend(shape(self.case));
        fields.extend([
            ("isa", self.isa.to_string().into()),
            ("kernel_isa", self.kernel.to_string().into()),
            ("n_threads", self.threads.into()),
            ("error", self.error.into()),
            ("tolerance", self.case.tolerance().into()),
            ("calls", m.calls.into()),
            ("median_ns", (m.median * 1e9).into()),
            ("min_ns", (m.min * 1e9).into()),
            ("bytes", stats.bytes.into()),
            ("read_bytes_per_second", self.read_per_second().round().into()),
            ("memory_bytes_per_second", self.bandwidth.map(f64::round).into()),
            ("memory_share", self.bandwidth.map(|b| self.read_per_second() / b).into()),
            ("macs", m.macs.into()),
            ("macs_per_second", (m.macs as f64 / m.median).round().into()),
            ("active_share", Self::share(stats.active, stats.neurons).into()),
            ("dense_share", Self::share(stats.dense, stats.neurons).into()),
            ("of_dense", self.ratio.into()),
            ("copies", m.turns.into()),
            ("working_set", m.working_set.into()),
            ("weights_from", self.weights().into()),
        ]);
        fields
    }

    fn cells(&self) -> Vec<String> {
        let m = &self.measured;
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let percent = |share: Option<f64>| or_dash(share.map(|s| format!("{:.1} %", 100.0 * s)));
        vec![
            self.case.to_string(),
            self.kernel.to_string(),
            self.threads.to_string(),
            duration(m.median),
            duration(m.min),
            format!("{:.2}", self.read_per_second() / 1e9),
            percent(self.bandwidth.map(|b| self.read_per_second() / b)),
            format!("{:.1}", m.macs as f64 / m.median / 1e9),
            or_dash(self.ratio.map(|r| format!("{r:.3}"))),
            percent(Self::share(m.stats.dense, m.stats.neurons)),
            self.weights().into(),
            format!("{:.0e}", self.error),
        ]
    }
}

/// The numbers in a case's name, as fields.
fn shape(case: &Case) -> Vec<(&'static str, Value)> {
    match case {
        Case::Product(p) => vec![("rows", p.rows.into()), ("cols", p.cols.into()), ("tokens", p.tokens.into())],
        Case::Ffn(f) => vec![
            ("dim", f.dim.into()),
            ("ffn", f.neurons.into()),
            ("tokens", f.tokens.into()),
            ("active", f.active.into()),
            ("select", f.select.to_string().into()),
        ],
        Case::Attention(a) => vec![
            ("dim", a.dim.into()),
            ("heads", a.heads.into()),
            ("kv_heads", a.kv_heads.into()),
            ("head_dim", a.head_dim.into()),
            ("context", a.context.into()),
            ("tokens", a.tokens.into()),
            ("kv", format!("{:?}", a.kv).to_lowercase().into()),
        ],
        _ => Vec::new(),
    }
}

/// As in `12.3 µs`.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.3} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_comes_once_and_the_last_index_runs_fastest() {
        let all = cross(&[2, 1, 3], <[usize]>::to_vec);
        assert_eq!(all, [[0, 0, 0], [0, 0, 1], [0, 0, 2], [1, 0, 0], [1, 0, 1], [1, 0, 2]]);
    }

    #[test]
    fn lists_of_types_and_shares_are_refused_with_what_would_do() {
        assert_eq!(types("q4_0, F16").unwrap().0, [QuantType::Q4_0, QuantType::F16]);
        assert!(types("q4_0,q9").unwrap_err().contains("'q9' is none of f32, f16"));
        assert!(shares("0.1,1.1").is_err() && shares("").is_err() && shares("nan").is_err());
        assert!(seconds("0").is_err() && seconds("1e9").is_err());
        assert_eq!((duration(1.5e-6), duration(0.0123)), ("1.5 µs".into(), "12.300 ms".into()));
    }
}
