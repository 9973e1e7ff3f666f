//! The machine: a host and an accelerator that take as long as they are told, all in slow motion, because this machine has to compute what
//! both show, and times are divided by the factor afterwards; or this machine's CPU and a GPU, as they are.

use super::{Setting, plans::Row, reference::Reference};
use crate::{
    accelerator::Opened,
    failure::{Failure, Result},
    placing, values,
};
use clap::Args;
use pi_engine::{
    costs::{Costs, Figure},
    pi_core::Device,
};
use pi_sparse_cuda::Cuda;
use pi_testkit::sim::{SimCounts, SimDevice, SimOptions};
use serde::Serialize;
use std::{sync::Arc, time::Duration};

/// How often longer than the computing behind it the simulated time of a token is, at least.
const MARGIN: f64 = 8.0;
/// What this machine needs to wake a thread, in seconds. There are two waits per layer at most.
const WAKE: f64 = 60e-6;

/// What the simulated machine can do. The defaults are two channels of DDR4, and a small accelerator on PCIe 4.0.
#[derive(Args, Clone, Debug, PartialEq, Serialize)]
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

/// Those defaults.
impl Default for MachineFlags {
    fn default() -> Self {
        Self { sim_host: 25.0, sim_device: 300.0, sim_link: 12.0, sim_latency: 5.0, slow_motion: None }
    }
}

/// The machine.
pub enum Machine {
    /// A simulated one, whose accelerator has so many bytes.
    Simulated(Simulated),
    /// This one, with a GPU.
    Real(Opened),
}

/// See [`Machine::Simulated`].
pub struct Simulated {
    pub flags: MachineFlags,
    pub memory: u64,
}

/// Its two sides, for a row.
pub struct Sides {
    pub host: Arc<dyn Device>,
    pub device: Arc<dyn Device>,
    pub watched: Watched,
}

/// What can be looked up of an accelerator.
pub enum Watched {
    Simulated(Arc<SimDevice>),
    Real(Cuda),
}

impl Watched {
    /// Bytes taken.
    pub fn used(&self) -> u64 {
        match self {
            Self::Simulated(device) => device.used(),
            Self::Real(cuda) => cuda.allocated(),
        }
    }

    /// What was done, if that is counted.
    pub fn counts(&self) -> Option<SimCounts> {
        match self {
            Self::Simulated(device) => Some(device.counts()),
            Self::Real(_) => None,
        }
    }
}

impl Machine {
    /// For people.
    pub fn shown(&self) -> String {
        match self {
            Self::Simulated(machine) => machine.shown(),
            Self::Real(opened) => opened.device.info().detail,
        }
    }

    /// What was asked to be simulated, if anything is.
    pub fn simulated(&self) -> Option<&MachineFlags> {
        match self {
            Self::Simulated(machine) => Some(&machine.flags),
            Self::Real(_) => None,
        }
    }

    /// What plans are made of: of a simulated machine as it is made, of a real one as far as it was measured.
    pub fn costs(&self) -> Costs {
        match self {
            Self::Simulated(machine) => machine.costs(),
            Self::Real(opened) => placing::costs(&*opened.device),
        }
    }

    /// Both sides; simulated ones `factor` times slower.
    ///
    /// # Errors
    /// If the system refuses to start a thread.
    pub fn sides(&self, setting: &Setting<'_>, factor: f64) -> Result<Sides> {
        match self {
            Self::Simulated(machine) => {
                let (host, device) = machine.devices(setting, factor)?;
                Ok(Sides { host, device: device.clone(), watched: Watched::Simulated(device) })
            }
            Self::Real(Opened { device, cuda: Some(cuda), .. }) => {
                Ok(Sides { host: setting.cpu.clone(), device: device.clone(), watched: Watched::Real(cuda.clone()) })
            }
            Self::Real(_) => Err(Failure::Work("the device is no GPU".into())),
        }
    }

    /// How much slower it has to be so that what this machine takes does not matter.
    pub fn slow_motion(&self, rows: &[Row], reference: &Reference) -> f64 {
        match self {
            Self::Simulated(machine) => machine.slow_motion(rows, reference),
            Self::Real(_) => 1.0,
        }
    }
}

impl Simulated {
    /// For people.
    fn shown(&self) -> String {
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
    fn costs(&self) -> Costs {
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
    fn devices(&self, setting: &Setting<'_>, factor: f64) -> Result<(Arc<SimDevice>, Arc<SimDevice>)> {
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
    fn slow_motion(&self, rows: &[Row], reference: &Reference) -> f64 {
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
