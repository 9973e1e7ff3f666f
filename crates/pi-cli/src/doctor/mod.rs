//! `pi doctor`: what this machine is, which kernels it runs, how fast its memory is, and from which share of active neurons the
//! dense path of an FFN is the faster one. The last is kept for later runs.

mod crossing;
mod report;

use crate::{
    crossover::{self, Key},
    failure::{Failure, Result},
    kernels, machine,
    output::{Output, say},
};
use clap::Args;
use pi_engine::{
    pi_core::{QuantType, Serial},
    pi_sparse_cpu::{Crossover, Kernels, Pool},
};
use report::{Memory, Report, Stored};
use std::{process::ExitCode, sync::Arc};

/// The options of `pi doctor`.
#[derive(Args, Debug)]
pub struct DoctorFlags {
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Measure for a shorter time: rougher figures
    #[arg(long)]
    quick: bool,
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

    say("measuring the memory's speed …");
    let memory = machine::read_test().map(|test| Memory {
        one: machine::read_bandwidth(&test, &Serial),
        all: machine::read_bandwidth(&test, &*pool),
    });
    say("measuring from which share of active neurons the dense path is faster …");
    let mut found = Vec::new();
    for ty in QuantType::ALL {
        found.push(crossing::find(ty, &kernels, &pool, flags.quick).map_err(Failure::Work)?);
    }
    let measured = found.iter().fold(Crossover::default(), |c, f| c.with(f.ty, f.share));
    let stored = crossover::path().map(|path| {
        let error = if flags.quick && crossover::stored(kernels.isa(), threads).is_some() {
            Some("there are some already, and --quick does not replace them".into())
        } else {
            crossover::store(&path, &Key::here(kernels.isa(), threads), &measured).err().map(|e| e.to_string())
        };
        Stored { path: path.display().to_string(), error }
    });

    let report = Report::new(&kernels, is_forced, threads, memory, &found, stored);
    let mut out = Output::new();
    match flags.json {
        true => out.json(&report)?,
        false => out.write(report.text().as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}
