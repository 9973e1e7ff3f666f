//! Measures what plans are made of, of any device in the same way: how fast it reads dense matrices and picked neurons, and for one with
//! memory of its own what a move and a wait take.

use pi_engine::{
    costs::{Figure, SideCosts},
    pi_core::{Device, Error, QuantType, Result},
};
use pi_testkit::cases::{Case, Ffn, Prepared, Product, Select};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Share of the neurons that fire.
const ACTIVE: f64 = 0.1;
/// The type of the dense matrix: what most models are stored in.
const DENSE: QuantType = QuantType::Q4_0;
/// Tokens that share a matrix in a long prompt.
const PROMPT: usize = 128;
/// Numbers per row of what is moved.
const ROW: usize = 4096;
/// Rows of the larger move: 4 MiB.
const ROWS: usize = 256;

/// Types in the order in which they are measured, in case that there is no time for all: the usual ones first.
pub const TYPES: [QuantType; QuantType::ALL.len()] = {
    use QuantType::*;
    [Q4_0, F16, Q8_0, Q4_K, Q6_K, Q5_K, BF16, Q4_1, IQ4_NL, Q5_0, Q5_1, Q3_K, Q2_K, IQ4_XS, F32, Q8_1, Q8_K]
};

/// How much is done for a figure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Width of the model.
    pub dim: usize,
    /// Neurons of the FFN, of which a tenth fires.
    pub neurons: usize,
    /// Bytes that are read between two reads of the same weights.
    pub cold: u64,
    /// How long a figure is measured, apart from making the weights.
    pub time: Duration,
    /// After so long no other figure is begun.
    pub limit: Duration,
}

impl Effort {
    /// Rows as long as those of a 7B model, and a quarter of its neurons, so that a type's weights are made quickly.
    pub fn usual(cold: u64) -> Self {
        let (time, limit) = (Duration::from_millis(100), Duration::from_secs(8));
        Self { dim: 4096, neurons: 2752, cold: cold.min(512 << 20), time, limit }
    }

    /// The same for each of several devices in the same time.
    pub fn shared(self, devices: u32) -> Self {
        Self { time: self.time / devices, limit: self.limit / devices, ..self }
    }

    /// The same for a shorter time: only the usual types.
    pub fn quick(cold: u64) -> Self {
        let (time, limit) = (Duration::from_millis(30), Duration::from_secs(2));
        Self { cold: Self::usual(cold).cold / 2, time, limit, ..Self::usual(cold) }
    }
}

/// What moving and waiting take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Bytes per second, both directions taken together.
    pub bandwidth: f64,
    /// Seconds from asking for a row of numbers to having it, when nothing is left to be computed.
    pub sync: f64,
}

/// How fast a device is; figures that could not be measured are left `assumed`, and `missing` says why.
///
/// # Errors
/// If a result differs from the `reference`'s: what computes something wrong is not timed.
pub fn side(
    device: &dyn Device,
    reference: &dyn Device,
    assumed: &SideCosts,
    types: &[QuantType],
    effort: Effort,
    missing: &mut Vec<String>,
) -> std::result::Result<SideCosts, String> {
    let end = Instant::now() + effort.limit;
    let mut side = SideCosts { neurons: BTreeMap::new(), ..assumed.clone() };
    if device.supports(DENSE) {
        let product = Product { ty: DENSE, rows: effort.neurons, cols: effort.dim, tokens: 1 };
        let bytes = product.rows * DENSE.row_bytes(product.cols).unwrap_or(0);
        let many = format!("dense matrices of {PROMPT} tokens");
        match speed(&Case::Product(product.clone()), bytes, device, effort, end) {
            Ok((found, step)) => {
                side.bandwidth = Figure::measured(found);
                let work = product.rows * product.cols * PROMPT;
                let prompt = Case::Product(Product { tokens: PROMPT, ..product });
                // a step cannot be cut short, and takes no longer than one for each token
                let known = fits(step * PROMPT as f64, 1, end);
                // the weights are read once for all tokens: where they come from does not matter
                match known.and_then(|()| speed(&prompt, work, device, Effort { cold: 0, ..effort }, end)) {
                    Ok((found, _)) => side.prompt = Figure::measured(found),
                    Err(e) => missing.push(format!("{many}: {e}")),
                }
            }
            Err(e) => missing.extend([format!("dense matrices: {e}"), format!("{many}: those of one are not known")]),
        }
    }
    for &ty in types.iter().filter(|ty| device.supports(**ty)) {
        if Instant::now() > end {
            missing.push(format!("neurons of {ty}: {LATE}"));
            continue;
        }
        let Effort { dim, neurons, .. } = effort;
        let ffn = |dim, neurons| Ffn { ty, dim, neurons, tokens: 1, active: ACTIVE, select: Select::Marks };
        Case::Ffn(ffn(dim.min(512), 64)).check(device, reference)?;
        let ffn = ffn(dim, neurons);
        let bytes = 3 * ffn.active_neurons() * ty.row_bytes(dim).unwrap_or(0);
        match speed(&Case::Ffn(ffn), bytes, device, effort, end) {
            Ok((found, _)) => drop(side.neurons.insert(ty, Figure::measured(found))),
            Err(e) => missing.push(format!("neurons of {ty}: {e}")),
        }
    }
    Ok(side)
}

const LATE: &str = "there was no time left";
/// Steps of a measurement at least, apart from those that touch all weights once.
const STEPS: usize = 13;
/// What a measurement may take although its time is over: whatever was begun is ended.
const GRACE: Duration = Duration::from_secs(1);

/// Bytes per second of a case whose steps read `bytes`, or whatever else it is that they do so many of; and seconds of a step.
fn speed(
    case: &Case,
    bytes: usize,
    device: &dyn Device,
    effort: Effort,
    end: Instant,
) -> std::result::Result<(f64, f64), String> {
    let failed = |e: Error| e.to_string();
    let mut prepared = case.prepare(device, effort.cold).map_err(failed)?;
    // the first brings the weights
    run(&mut prepared, 1).map_err(failed)?;
    let one = run(&mut prepared, 1).map_err(failed)?;
    // all weights are touched once
    let turns = prepared.turns();
    fits(one, turns + STEPS, end)?;
    run(&mut prepared, turns).map_err(failed)?;
    let step = step_seconds(&mut prepared, effort.time).map_err(failed)?;
    Ok((bytes as f64 / step, step))
}

/// Fails if so many steps of so many seconds would end too late.
fn fits(step: f64, steps: usize, end: Instant) -> std::result::Result<(), String> {
    let left = (end + GRACE).saturating_duration_since(Instant::now()).as_secs_f64();
    match step * steps as f64 <= left {
        true => Ok(()),
        false => Err(format!("{LATE} for {steps} steps of {step:.2} s")),
    }
}

/// Seconds that some steps and the wait for the last of them take.
fn run(prepared: &mut Prepared, steps: usize) -> Result<f64> {
    let begun = Instant::now();
    (0..steps).try_for_each(|_| prepared.step())?;
    prepared.output()?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Seconds that each of many steps takes which follow each other without a wait: what one and its wait take is subtracted from what
/// several and a wait take, the two in turns.
fn step_seconds(prepared: &mut Prepared, time: Duration) -> Result<f64> {
    let first = run(prepared, 1)?.max(1e-7);
    let more = (time.as_secs_f64() / 6.0 / first).clamp(2.0, 10_000.0) as usize;
    let (mut one, mut many) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    while one.len() < 3 || begun.elapsed() < time {
        one.push(run(prepared, 1)?);
        many.push(run(prepared, 1 + more)?);
    }
    Ok(((undisturbed(&mut many) - undisturbed(&mut one)) / more as f64).max(1e-9))
}

/// The lower quartile: what else the machine does makes times longer, never shorter.
pub fn undisturbed(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

/// What a move and a wait take. `None` if the device has no memory of its own.
///
/// # Errors
/// Whatever the device reports.
pub fn link(device: &dyn Device, time: Duration) -> Result<Option<Link>> {
    let mut h = device.hidden(ROWS, ROW)?;
    if !h.resident().has_mirror() {
        return Ok(None);
    }
    // There and back; and then back alone, of something that was there long before.
    let mut times = |rows: usize, until: Duration| -> Result<(f64, f64)> {
        h.resize(rows)?;
        let (mut both, mut back, begun) = (Vec::new(), Vec::new(), Instant::now());
        while both.len() < 5 || begun.elapsed() < until {
            h.host_mut()?[0] = 1.0;
            let start = Instant::now();
            h.resident().mirror_mut()?;
            h.host()?;
            both.push(start.elapsed().as_secs_f64());
            h.resident().mirror_mut()?;
            let start = Instant::now();
            h.host()?;
            back.push(start.elapsed().as_secs_f64());
        }
        Ok((undisturbed(&mut both), undisturbed(&mut back)))
    };
    let (small, sync) = times(1, time / 2)?;
    let (large, _) = times(ROWS, time / 2)?;
    let bytes = (2 * 4 * ROW * (ROWS - 1)) as f64;
    Ok(Some(Link { bandwidth: bytes / (large - small).max(1e-9), sync: sync.max(1e-9) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pi_engine::{
        pi_core::Serial,
        pi_sparse_cpu::{CpuDevice, Kernels},
    };
    use pi_testkit::sim::{SimDevice, SimOptions};
    use std::sync::Arc;

    fn cpu() -> CpuDevice {
        CpuDevice::new(Kernels::best(), Arc::new(Serial))
    }

    /// So small that the host computes it in no time beside what the simulated device takes.
    fn small() -> Effort {
        let (time, limit) = (Duration::from_millis(60), Duration::from_secs(5));
        Effort { dim: 1024, neurons: 1024, cold: 0, time, limit }
    }

    /// Within a factor of 1.5: a busy machine may be late, so one of a few attempts has to do.
    fn near(attempt: impl Fn() -> Vec<(&'static str, f64, f64)>) {
        let off = |(_, got, want): &(&str, f64, f64)| (got / want).max(want / got);
        let mut seen = Vec::new();
        for _ in 0..6 {
            let found = attempt();
            if found.iter().all(|f| off(f) < 1.5) {
                return;
            }
            seen.push(found);
        }
        panic!("{seen:?}");
    }

    fn assumed(bandwidth: f64) -> SideCosts {
        SideCosts { bandwidth: Figure::assumed(bandwidth), ..pi_engine::costs::Costs::default().host }
    }

    #[test]
    fn the_figures_of_a_simulated_device_are_those_it_was_given() {
        let options =
            SimOptions { bandwidth: 4e8, link: 1e8, latency: Duration::from_micros(400), ..SimOptions::default() };
        let device = SimDevice::new(Arc::new(cpu()), options).unwrap();
        near(|| {
            let mut missing = Vec::new();
            let side = side(&device, &cpu(), &assumed(1.0), &[QuantType::F16], small(), &mut missing).unwrap();
            assert_eq!(missing, [""; 0]);
            assert_eq!(side.prompt.origin, pi_engine::costs::Origin::Measured);
            let link = link(&device, Duration::from_millis(400)).unwrap().expect("memory of its own");
            // a launch takes its time as well: it is a part of what an operator of this size reaches
            let reached = |bytes: f64| bytes / (bytes / 4e8 + 4e-4);
            let dense = 1024.0 * DENSE.row_bytes(1024).unwrap() as f64;
            vec![
                ("dense", side.bandwidth.value, reached(dense)),
                ("neurons", side.neurons(QuantType::F16).value, reached(3.0 * 102.0 * 2048.0)),
                ("link", link.bandwidth, 1e8),
                ("sync", link.sync, 4e-4 + 4.0 * ROW as f64 / 1e8),
            ]
        });
    }

    #[test]
    fn what_a_device_lacks_or_has_no_room_or_time_for_stays_assumed_and_is_said() {
        let with = |options| SimDevice::new(Arc::new(cpu()), options).unwrap();
        let types = [QuantType::F16, QuantType::Q8_0];
        let measured = |device: &dyn Device, effort| {
            let mut missing = Vec::new();
            (side(device, &cpu(), &assumed(7e9), &types, effort, &mut missing).unwrap(), missing)
        };
        let lacking = with(SimOptions { lacking: vec![QuantType::Q4_0, QuantType::F16], ..SimOptions::default() });
        let (found, missing) = measured(&lacking, small());
        assert_eq!((found.bandwidth, missing.len()), (Figure::assumed(7e9), 0));
        assert_eq!(found.neurons.keys().collect::<Vec<_>>(), [&QuantType::Q8_0]);
        let tiny = with(SimOptions { memory: 1 << 20, ..SimOptions::default() });
        let (found, missing) = measured(&tiny, small());
        // the dense matrix has room, but not what 128 tokens make of it
        assert!(found.neurons.is_empty() && missing.len() == 3, "{missing:?}");
        assert!(missing.iter().all(|why| why.contains("no memory")), "{missing:?}");
        assert_eq!(found.prompt, assumed(7e9).prompt);
        let (found, missing) = measured(&cpu(), Effort { limit: Duration::ZERO, ..small() });
        assert!(found.neurons.is_empty() && missing[1].contains("no time left"), "{missing:?}");
        assert_eq!(link(&cpu(), Duration::from_millis(1)), Ok(None), "the CPU has no memory apart");
    }

    /// On the emulated driver, whose speed means nothing: that it is measured at all.
    #[test]
    fn a_gpu_is_measured_as_any_other_device() {
        if let Err(e) = pi_cuda_emu::use_driver() {
            assert!(std::env::var_os("CI").is_none(), "{e}");
            return eprintln!("SKIPPED: {e}");
        }
        let cuda = pi_sparse_cuda::Cuda::open(0).unwrap();
        let effort = Effort { dim: 256, neurons: 64, time: Duration::from_millis(10), ..small() };
        let mut missing = Vec::new();
        let types = [QuantType::F16, QuantType::Q4_K];
        let side = side(&cuda, &cpu(), &assumed(1.0), &types, effort, &mut missing).unwrap();
        assert_eq!(missing, [""; 0]);
        let measured = |f: Figure| f.origin == pi_engine::costs::Origin::Measured && f.value > 0.0;
        assert!(
            measured(side.bandwidth) && measured(side.prompt) && types.iter().all(|ty| measured(side.neurons(*ty)))
        );
        let link = link(&cuda, Duration::from_millis(10)).unwrap().expect("memory of its own");
        assert!(link.bandwidth > 0.0 && link.sync > 0.0);
    }

    #[test]
    fn every_type_is_measured_once() {
        let mut sorted = TYPES;
        sorted.sort();
        let mut all = QuantType::ALL;
        all.sort();
        assert_eq!(sorted, all);
    }
}
