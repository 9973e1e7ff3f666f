//! The simulated machine: a host and an accelerator that take as long as they are told, all in slow motion, because this machine
//! has to compute what both show. Times are divided by the factor afterwards.

use super::{Setting, plans::Row, reference::Reference};
use crate::{
    failure::{Failure, Result},
    values,
};
use clap::Args;
use pi_engine::costs::{Costs, Figure};
use pi_testkit::sim::{SimDevice, SimOptions};
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// How often longer than the computing behind it the simulated time of a token is, at least.
const MARGIN: f64 = 8.0;
/// What this machine needs to wake a thread, in seconds. There are two waits per layer at most.
const WAKE: f64 = 60e-6;

/// What the simulated machine can do. The defaults are two channels of DDR4, and a small accelerator on PCIe 4.0.
#[derive(Args, Clone, Debug, Serialize)]
#[command(next_help_heading = "Simulated machine")]
pub struct MachineFlags {
    /// What its CPU reads, in GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 25.0, value_parser = values::speed)]
    sim_host: f32,
    /// What its accelerator reads, in GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 300.0, value_parser = values::speed)]
    sim_device: f32,
    /// What goes between the two, in GB/s
    #[arg(long, value_name = "GB/S", default_value_t = 12.0, value_parser = values::speed)]
    sim_link: f32,
    /// What the start of an operator or a move takes, in microseconds
    #[arg(long, value_name = "US", default_value_t = 5.0, value_parser = values::microseconds)]
    sim_latency: f32,
    /// How many times slower all of it is simulated [default: as much as this machine needs]
    #[arg(long, value_name = "X", value_parser = values::times_slower)]
    slow_motion: Option<f32>,
}

/// The machine.
pub struct Machine {
    flags: MachineFlags,
    memory: u64,
}

impl Machine {
    pub fn new(flags: &MachineFlags, memory: u64) -> Self {
        Self { flags: flags.clone(), memory }
    }

    /// For people.
    pub fn shown(&self) -> String {
        let f = &self.flags;
        format!(
            "CPU {} GB/s, device {} GB/s with {:.3} GiB, link {} GB/s, {} µs per launch or move",
            f.sim_host,
            f.sim_device,
            self.memory as f64 / (1u64 << 30) as f64,
            f.sim_link,
            f.sim_latency
        )
    }

    /// Its figures, which are neither measured nor guessed, as they make it.
    pub fn costs(&self) -> Costs {
        let mut costs = Costs::default();
        let figure = |gb: f32| Figure::assumed(f64::from(gb) * 1e9);
        (costs.host.bandwidth, costs.device.bandwidth) = (figure(self.flags.sim_host), figure(self.flags.sim_device));
        costs.link = figure(self.flags.sim_link);
        costs.sync = Figure::assumed(self.sync());
        costs
    }

    /// What it takes to divide a layer, in seconds: input and marks come to the host, the neurons of the device are launched, the part of
    /// the host goes up, and is added.
    fn sync(&self) -> f64 {
        (5.0 * f64::from(self.flags.sim_latency) * 1e-6).max(1e-9)
    }

    /// Both sides, `factor` times slower.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn devices(&self, setting: &Setting<'_>, factor: f64) -> Result<(Arc<SimDevice>, Arc<SimDevice>)> {
        let f = &self.flags;
        let speed = |gb: f32| f64::from(gb) * 1e9 / factor;
        let host =
            SimOptions { name: "host".into(), memory: u64::MAX, bandwidth: speed(f.sim_host), ..SimOptions::default() };
        let device = SimOptions {
            name: "sim:0".into(),
            memory: self.memory,
            bandwidth: speed(f.sim_device),
            link: speed(f.sim_link),
            latency: Duration::from_secs_f64(f64::from(f.sim_latency) * 1e-6 * factor),
            ..SimOptions::default()
        };
        let failed = |e: std::io::Error| Failure::Work(format!("the simulated device: {e}"));
        let sim = |options| SimDevice::new(setting.cpu.clone(), options).map(Arc::new).map_err(failed);
        Ok((sim(host)?, sim(device)?))
    }

    /// How much slower it has to be so that what this machine takes does not matter.
    pub fn slow_motion(&self, rows: &[Row], reference: &Reference) -> f64 {
        if let Some(factor) = self.flags.slow_motion {
            return f64::from(factor);
        }
        let needed = |row: &Row| {
            let here = reference.seconds(row.sparsity) + 2.0 * WAKE * reference.config.layers as f64;
            MARGIN * here / row.planned.times.total().max(1e-9)
        };
        rows.iter().map(needed).fold(1.0, f64::max).min(1e5).ceil()
    }
}
