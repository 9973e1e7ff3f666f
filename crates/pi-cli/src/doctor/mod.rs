//! `pi doctor`: what this machine is, which kernels it runs, how fast its memory is, and from which share of active neurons the
//! dense path of an FFN is the faster one; and the figures that plans are made of. The last two are kept for later runs.

mod crossing;
mod report;

use crate::{
    accelerator::{Accelerator, Opened, kept_as},
    cache::Key,
    costs::{self, measure},
    crossover,
    failure::{Failure, Result},
    kernels, machine,
    output::{Output, say},
    repack::Repack,
};
use clap::Args;
use crossing::Found;
use pi_engine::{
    costs::Costs,
    pi_core::{Device, Executor, QuantType, Serial},
    pi_sparse_cpu::{CpuDevice, Crossover, Kernels, Pool},
};
use pi_sparse_cuda::KvPlace;
use report::{CostsReport, Memory, Report, Stored};
use std::{process::ExitCode, sync::Arc, time::Instant};

/// The options of `pi doctor`.
#[derive(Args, Debug)]
pub struct DoctorFlags {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Measure for a shorter time: rougher figures
    #[arg(long)]
    quick: bool,
    /// Measure only what plans are made of, in less than ten seconds: how fast dense matrices and picked neurons of each type are
    /// read (with --quick only the usual types)
    #[arg(long)]
    costs: bool,
    /// With that, measure an accelerator as well: none, cuda or cuda:N, auto, simulated; as of pi run
    #[arg(long, value_name = "none|cuda[:N]|auto|simulated", default_value_t, hide_default_value = true)]
    device: Accelerator,
    /// Threads [default: the cores this process may use]
    #[arg(short, long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

/// Looks, measures, stores and prints.
///
/// # Errors
/// If `PI_ISA` cannot be used, or an operator computes something wrong.
pub fn doctor(flags: &DoctorFlags) -> Result {
    let forced = kernels::forced()?;
    let is_forced = forced.is_some();
    let kernels = forced.unwrap_or_else(Kernels::best);
    let threads = flags.threads.map_or_else(machine::usable_cores, |t| t as usize);
    let pool = Arc::new(Pool::new(threads).map_err(|e| Failure::Work(format!("{threads} threads: {e}")))?);

    let key = Key::here(kernels.isa(), threads);
    let costs = plan_costs(flags, &kernels, &pool, &key)?;
    let (memory, found, stored) = match flags.costs {
        true => (None, Vec::new(), None),
        false => crossovers(flags, &kernels, &pool, &key)?,
    };
    let report = Report::new(&kernels, is_forced, threads, memory, &found, stored, costs);
    let mut out = Output::new();
    match flags.json {
        true => out.json(&report)?,
        false => out.write(report.text().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The figures of the CPU that plans are made of, and those of an accelerator.
fn plan_costs(flags: &DoctorFlags, kernels: &Kernels, pool: &Arc<Pool>, key: &Key) -> Result<Vec<CostsReport>> {
    say("measuring how fast dense matrices and picked neurons are read …");
    // as models run unless the user says otherwise
    let cpu = CpuDevice::new(kernels.clone(), pool.clone()).with_repacking(Repack::default().limit());
    let accelerator = accelerator(flags.device)?;
    let mut all = vec![costs_of(flags, None, &cpu, pool, key)?];
    if let Some(device) = accelerator {
        let info = device.info();
        say(&format!("measuring {} ({}) …", info.name, info.detail));
        all.push(costs_of(flags, Some(kept_as(&info)), &*device, pool, key)?);
    }
    Ok(all)
}

/// The accelerator that is to be measured, if there is one.
fn accelerator(asked: Accelerator) -> Result<Option<Arc<dyn Device>>> {
    let opened = match asked {
        Accelerator::None => return Ok(None),
        Accelerator::Simulated => Opened::simulated(Some(machine::memory().map_or(1 << 30, |(_, free)| free / 2)))?,
        Accelerator::Cuda(ordinal) => Opened::cuda(ordinal, None, KvPlace::default())
            .map_err(|why| Failure::Work(format!("--device {asked}: {why}")))?,
        Accelerator::Auto => match Opened::cuda(0, None, KvPlace::default()) {
            Ok(opened) => opened,
            Err(why) => {
                say(&format!("note: there is no accelerator to be measured: {why}"));
                return Ok(None);
            }
        },
    };
    Ok(Some(opened.device))
}

fn costs_of(
    flags: &DoctorFlags,
    name: Option<&str>,
    device: &dyn Device,
    pool: &Arc<Pool>,
    key: &Key,
) -> Result<CostsReport> {
    let begun = Instant::now();
    let reference = CpuDevice::new(Kernels::reference(), pool.clone());
    let effort = if flags.quick { measure::Effort::quick } else { measure::Effort::usual };
    let effort = effort(machine::cold()).shared(if flags.device == Accelerator::None { 1 } else { 2 });
    let (mut missing, usual) = (Vec::new(), Costs::default());
    let assumed = if name.is_none() { usual.host } else { usual.device };
    let side = measure::side(device, &reference, &assumed, &measure::TYPES, effort, &mut missing);
    let side = side.map_err(Failure::Work)?;
    let link = match name {
        None => None,
        Some(_) => measure::link(device, effort.time).unwrap_or_else(|e| {
            missing.push(format!("moves and waits: {e}"));
            None
        }),
    };
    let stored = costs::path().map(|path| {
        let error = if flags.quick && costs::has(&path, key, name) {
            Some(KEPT.into())
        } else {
            costs::store(&path, key, name, &side, link).err().map(|e| e.to_string())
        };
        Stored { path: path.display().to_string(), error }
    });
    Ok(CostsReport::new(name, &side, link, missing, begun.elapsed(), stored))
}

/// Said where --quick leaves a file alone.
const KEPT: &str = "there are some already, and --quick does not replace them";

/// The memory's speed, and where crossovers are and were put.
fn crossovers(
    flags: &DoctorFlags,
    kernels: &Kernels,
    pool: &Arc<Pool>,
    key: &Key,
) -> Result<(Option<Memory>, Vec<Found>, Option<Stored>)> {
    say("measuring the memory's speed …");
    let memory = machine::read_test().map(|test| Memory {
        one: machine::read_bandwidth(&test, &Serial),
        all: machine::read_bandwidth(&test, &**pool),
    });
    say("measuring from which share of active neurons the dense path is faster …");
    let mut found = Vec::new();
    for ty in QuantType::ALL {
        found.push(crossing::find(ty, kernels, pool, flags.quick).map_err(Failure::Work)?);
    }
    let measured = found.iter().fold(Crossover::default(), |c, f| c.with(f.ty, f.share));
    let stored = crossover::path().map(|path| {
        let error = if flags.quick && crossover::stored(kernels.isa(), pool.width()).is_some() {
            Some(KEPT.into())
        } else {
            crossover::store(&path, key, &measured).err().map(|e| e.to_string())
        };
        Stored { path: path.display().to_string(), error }
    });
    Ok((memory, found, stored))
}
