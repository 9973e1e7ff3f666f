//! Single operators: `pi bench gemv`, `gemm`, `ffn` and `attention`.
//!
//! The result is compared with the reference first; what is wrong is not timed. Weights come from memory: there are so many
//! copies that four times the last cache is read between two uses of one (`--warm` makes a single copy). Of the CPU every call is timed; an
//! accelerator is given many at once, and one wait is for all.

use super::{
    list::Numbers,
    machine_speed::{MachineSpeed, pool},
    model::in_range,
    operator_flags::{AttentionFlags, Common, FfnFlags, GemmFlags, GemvFlags},
    operator_row::{Line, On, columns},
    table::{Table, median},
};
use crate::{
    accelerator::{Accelerator, Opened},
    failure::{Failure, Result},
    machine,
    output::say,
};
use pi_engine::{
    pi_core::{Device, Error, OpStats},
    pi_sparse_cpu::{CpuDevice, Crossover, Kernels, Pool},
};
use pi_sparse_cuda::KvPlace;
use pi_testkit::cases::{self, Attention, Case, Ffn, Prepared, Product, Select};
use std::{process::ExitCode, sync::Arc, time::Instant};

/// Fewest and most timed calls.
const CALLS: (usize, usize) = (5, 100_000);

/// Bytes after which nothing older is left in the caches of any accelerator: twice the largest that GPUs have.
const COLD: u64 = 256 << 20;

/// Bytes that a GPU copies within its memory, to say how fast that is.
const COPIED: u64 = 1 << 30;

/// Memory of a simulated accelerator.
const SIMULATED: u64 = 16 << 30;

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
    time(&flags.common, 1.0, KvPlace::default(), &products(flags, &[1], &cases::gemv())?)
}

/// Times `pi bench gemm`.
///
/// # Errors
/// As [`time`].
pub fn gemm(flags: &GemmFlags) -> Result {
    let tokens = sizes("--tokens", &flags.tokens, 512)?;
    time(&flags.matrix.common, 1.0, KvPlace::default(), &products(&flags.matrix, &tokens, &cases::gemm())?)
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
    time(&flags.common, flags.crossover, KvPlace::default(), &found)
}

/// Times `pi bench attention`.
///
/// # Errors
/// As [`time`].
pub fn attention(flags: &AttentionFlags) -> Result {
    let (d, usual) = (Attention::default(), cases::attention());
    let place = flags.place.of(flags.common.device)?;
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
    time(&flags.common, 1.0, place, &found)
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

/// What is timed.
struct Subject<'a> {
    device: &'a dyn Device,
    /// What results are compared with.
    reference: &'a CpuDevice,
    on: On<'a>,
    /// Bytes per second of its memory.
    bandwidth: Option<f64>,
    /// Bytes that are read until nothing older is left in its caches.
    cold: u64,
}

/// Checks every case, then times it.
///
/// # Errors
/// Wrong flags; shapes that do not fit; a result that is wrong.
fn time(flags: &Common, crossover: f32, place: KvPlace, cases: &[Case]) -> Result {
    flags.check(crossover)?;
    let threads = in_range("--threads", &Numbers::all(&flags.threads, &[machine::usable_cores()]), 1..=1024)?;
    let kernels = flags.kernels()?;
    let mut speed = MachineSpeed::new(flags.bandwidth);
    // What cannot be computed is said before anything else is.
    for case in cases {
        case.fit().map_err(|e| Failure::Usage(format!("{case}: {e}")))?;
    }
    let opened = open(flags, place)?;
    let mut table = Table::new(flags.output, columns(cases));
    if let Some(opened) = opened {
        let reference = CpuDevice::new(Kernels::reference(), Arc::new(pool(machine::usable_cores())?));
        let (device, bandwidth) = (&*opened.device, memory_of(&opened, flags)?);
        let info = device.info();
        say(&format!("device: {} ({})", info.name, info.detail));
        let on = On::Device(&info, opened.cuda.as_ref().map(|_| place));
        let subject = Subject { device, reference: &reference, on, bandwidth, cold: COLD };
        rows(&subject, flags, cases, &mut table)?;
        table.end()?;
        return Ok(ExitCode::SUCCESS);
    }
    for &threads in &threads {
        let pool: Arc<Pool> = Arc::new(pool(threads)?);
        let bandwidth = speed.of(threads)?;
        for kernels in &kernels {
            let device = CpuDevice::new(kernels.clone(), pool.clone())
                .with_crossover(Crossover::uniform(crossover))
                .with_repacking(flags.repack.limit());
            let reference = CpuDevice::new(Kernels::reference(), pool.clone());
            let (on, cold) = (On::Cpu { kernels, threads }, machine::cold());
            let subject = Subject { device: &device, reference: &reference, on, bandwidth, cold };
            rows(&subject, flags, cases, &mut table)?;
        }
    }
    table.end()?;
    Ok(ExitCode::SUCCESS)
}

/// The accelerator that is asked for; `None` for the CPU.
fn open(flags: &Common, place: KvPlace) -> Result<Option<Opened>> {
    match flags.device {
        Accelerator::None => Ok(None),
        Accelerator::Simulated => Opened::simulated(Some(SIMULATED)).map(Some),
        Accelerator::Cuda(ordinal) => {
            let failed = |why| Failure::Work(format!("--device {}: {why}", flags.device));
            Opened::cuda(ordinal, None, place).map(Some).map_err(failed)
        }
        Accelerator::Auto => Ok(Opened::cuda(0, None, place)
            .inspect_err(|why| say(&format!("device: the CPU: there is no accelerator: {why}")))
            .ok()),
    }
}

/// How fast an accelerator's memory is, unless that is given or it is none of its own.
fn memory_of(opened: &Opened, flags: &Common) -> Result<Option<f64>> {
    let given = flags.bandwidth.map(|g| f64::from(g) * 1e9);
    match (given, &opened.cuda) {
        (Some(given), _) => Ok(Some(given).filter(|g| *g > 0.0)),
        (None, None) => Ok(None),
        (None, Some(cuda)) => {
            let failed = |e: Error| Failure::Work(e.to_string());
            let (free, _) = cuda.memory().map_err(failed)?;
            let speed = cuda.copy_speed(COPIED.min(free / 64) as usize).map_err(failed)?;
            say(&format!("memory: {:.1} GB/s while the device copies within it", speed / 1e9));
            Ok(Some(speed))
        }
    }
}

fn rows(subject: &Subject<'_>, flags: &Common, cases: &[Case], table: &mut Table) -> Result<()> {
    let mut dense: Option<(Ffn, f64)> = None;
    for case in cases {
        let error = case.check(subject.device, subject.reference).map_err(Failure::Work)?;
        let measured = measure(case, subject, flags)?;
        let ratio = match case {
            Case::Ffn(ffn) => Some(ratio(ffn, measured.median, &mut dense, subject, flags)?),
            _ => None,
        };
        let (on, bandwidth, cold) = (subject.on, subject.bandwidth, subject.cold);
        table.row(&Line { case, on, error, measured, ratio, bandwidth, cold })?;
    }
    Ok(())
}

/// What was measured of a case.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) calls: usize,
    pub(super) turns: usize,
    pub(super) working_set: u64,
    pub(super) macs: u64,
    pub(super) stats: OpStats,
}

fn measure(case: &Case, subject: &Subject<'_>, flags: &Common) -> Result<Measured> {
    let cold = if flags.warm { 0 } else { subject.cold };
    let failed = |e| Failure::Work(format!("{case}: {e}"));
    let mut prepared = case.prepare(subject.device, cold).map_err(failed)?;
    let seconds = f64::from(flags.seconds);
    let (samples, each) = match subject.on {
        On::Cpu { .. } => (sample(&mut prepared, seconds).map_err(failed)?, 1),
        On::Device(..) => queued(&mut prepared, seconds).map_err(failed)?,
    };
    Ok(Measured {
        median: median(&samples),
        min: samples.iter().copied().fold(f64::INFINITY, f64::min),
        max: samples.iter().copied().fold(0.0, f64::max),
        calls: samples.len() * each,
        turns: prepared.turns(),
        working_set: prepared.working_set(),
        macs: prepared.macs(),
        stats: prepared.counted_step().map_err(failed)?,
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

/// Seconds per call of several that follow each other in a queue, with one wait for the last; and how many they are. Each copy is used once
/// before that.
fn queued(prepared: &mut Prepared, seconds: f64) -> Result<(Vec<f64>, usize), Error> {
    let turns = prepared.turns();
    let mut run = |steps: usize| {
        let begun = Instant::now();
        (0..steps).try_for_each(|_| prepared.step())?;
        prepared.output()?;
        Ok::<_, Error>(begun.elapsed().as_secs_f64())
    };
    run(turns)?;
    let first = run(turns)? / turns as f64;
    let each = (seconds / 20.0 / first.max(1e-7)).clamp(1.0, 10_000.0) as usize;
    let (start, mut samples) = (Instant::now(), Vec::new());
    while samples.len() < CALLS.0 || (samples.len() < CALLS.1 && start.elapsed().as_secs_f64() < seconds) {
        samples.push(run(each)? / each as f64);
    }
    Ok((samples, each))
}

/// How many times as long as the dense FFN of the same shape it takes.
fn ratio(ffn: &Ffn, median: f64, known: &mut Option<(Ffn, f64)>, subject: &Subject<'_>, flags: &Common) -> Result<f64> {
    let dense = Ffn { select: Select::Dense, active: 1.0, ..ffn.clone() };
    if let Some((_, time)) = known.as_ref().filter(|(of, _)| *of == dense) {
        return Ok(median / time);
    }
    let time = if *ffn == dense { median } else { measure(&Case::Ffn(dense.clone()), subject, flags)?.median };
    *known = Some((dense, time));
    Ok(median / time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_comes_once_and_the_last_index_runs_fastest() {
        let all = cross(&[2, 1, 3], <[usize]>::to_vec);
        assert_eq!(all, [[0, 0, 0], [0, 0, 1], [0, 0, 2], [1, 0, 0], [1, 0, 1], [1, 0, 2]]);
    }
}
