//! What of a model goes to an accelerator: the options of all commands that run one, and from them to a plan.

use crate::{
    accelerator::{Accelerator, KvFlags, Opened, kept_as, note_of},
    failure::{Failure, Result},
    kernels, machine,
    output::{say, size},
    plan_cache::{self, Key},
};
use clap::{Args, ValueHint};
use pi_engine::{
    EngineBuilder, Error, OnDeviceLoss, Predictors, SessionOptions, Sparsity, arch,
    costs::Costs,
    pi_core::{Activation, Device, KvTypes, NeuronSet},
    pi_gguf::{File, NeuronIndex},
    pi_placement::Memory,
    pi_predictor::profile::Profile,
    pi_sparse_cpu::Kernels,
    planner::{self, Planned, Policy, Request, Split, hot_of_index},
    profile::{load, model_fingerprint},
};
use pi_sparse_cuda::KvPlace;
use std::{
    path::{Path, PathBuf},
    sync::Once,
};

/// What goes to an accelerator.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Accelerator")]
pub struct PlacingFlags {
    /// Accelerator beside the CPU: none, cuda or cuda:N (an NVIDIA GPU; the first is 0), auto (the first GPU if there is one), simulated
    /// (one that exists in this program only, to try plans out; it makes nothing faster)
    #[arg(long, value_name = "none|cuda[:N]|auto|simulated", default_value_t, hide_default_value = true)]
    pub device: Accelerator,
    /// Most memory of the accelerator to be used, in GiB: a limit over everything, weights, KV cache, scratch and the driver's own
    /// [default: what is free, but for a 32nd of all and at most 1 GiB; a simulated one has 1]
    #[arg(long, value_name = "GIB", allow_negative_numbers = true, value_parser = gib)]
    pub vram_budget: Option<u64>,
    /// Go on with the CPU alone where there is no accelerator, instead of refusing
    #[arg(long)]
    pub allow_cpu: bool,
    #[command(flatten)]
    pub kv: KvFlags,
    #[command(flatten)]
    pub neurons: NeuronFlags,
    /// When the accelerator fails, at its start or in the middle of its work: error, or cpu: the CPU goes on from where it was, with
    /// the same text [default: error]
    #[arg(long, value_name = "error|cpu")]
    pub on_device_loss: Option<OnDeviceLoss>,
    /// Choose neurons anew, and replace what was kept of an earlier run
    #[arg(long, conflicts_with_all = ["gpu_index", "n_gpu_layers", "n_cpu_ffn"])]
    pub reset_gpu_index: bool,
}

/// Which neurons go to an accelerator.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Accelerator")]
pub struct NeuronFlags {
    /// How often neurons fire, as pi profile counts it [default: all are taken to fire equally often]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub profile: Option<PathBuf>,
    /// What chooses the neurons: time (least expected time), impact (most activations, as the paper does), frequency, random,
    /// random:SEED, in-order (by layers), nothing [default: time]
    #[arg(long, value_name = "NAME")]
    pub policy: Option<Policy>,
    /// Take the neurons of this index (PowerInfer's .gpuidx), whatever a policy would choose
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["policy", "profile"])]
    pub gpu_index: Option<PathBuf>,
    /// Keep all neurons on the CPU: an index is neither read nor kept, and attention alone goes to the accelerator
    #[arg(long, conflicts_with_all = ["policy", "profile", "gpu_index"])]
    pub disable_gpu_index: bool,
    /// Put the last N layers there whole, and the output as well if N is more than there are, instead of choosing neurons; also -ngl. It
    /// must fit: what does not is an error
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with_all = ["n_cpu_ffn", "policy", "gpu_index", "disable_gpu_index"])]
    pub n_gpu_layers: Option<usize>,
    /// Put everything there but the FFNs of the first N layers, instead of choosing neurons. It must fit: what does not is an error
    #[arg(long, value_name = "N", allow_negative_numbers = true, conflicts_with_all = ["policy", "gpu_index", "disable_gpu_index"])]
    pub n_cpu_ffn: Option<usize>,
}

impl NeuronFlags {
    /// The division that is asked for in place of a choice of neurons, if one is.
    pub fn split(&self) -> Option<Split> {
        self.n_gpu_layers.map(Split::Layers).or(self.n_cpu_ffn.map(Split::CpuFfns))
    }

    /// The plan, without looking for one that is kept.
    ///
    /// # Errors
    /// As those of the planner.
    pub fn plan(&self, file: &File, request: &Request<'_>) -> Result<Planned, Error> {
        match self.split() {
            Some(split) => planner::split(file, request, split),
            None => planner::plan(file, request),
        }
    }
}

/// What a plan depends on besides these options.
pub struct Setup<'a> {
    pub session: SessionOptions,
    pub kv: KvTypes,
    pub sparsity: Sparsity,
    pub predictors: &'a Predictors,
    pub activation: Option<Activation>,
}

/// Bytes, from GiB.
pub fn gib(text: &str) -> Result<u64, String> {
    let value = text.trim().parse::<f64>().ok().filter(|v| v.is_finite() && *v >= 0.0);
    value.and_then(|v| Memory::gib(v).ok()).ok_or_else(|| "expected a number of GiB from 0 on".into())
}

/// Figures of this machine that times are made of: what pi doctor measured with all cores, of the CPU and of this device.
pub fn costs(device: &dyn Device) -> Costs {
    // What PI_ISA must not be is said by those who load the model.
    let isa = kernels::forced().ok().flatten().unwrap_or_else(Kernels::best).isa();
    crate::costs::stored(isa, machine::usable_cores(), Some(kept_as(&device.info())))
}

impl PlacingFlags {
    /// Whether any of these options is given.
    pub fn is_asked(&self) -> bool {
        self.device != Accelerator::None || self.given().next().is_some()
    }

    /// The options that mean nothing without an accelerator and are given.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let n = &self.neurons;
        let all = [
            ("--vram-budget", self.vram_budget.is_some()),
            ("--kv-place", self.kv.kv_place.is_some()),
            ("--on-device-loss", self.on_device_loss.is_some()),
            ("--profile", n.profile.is_some()),
            ("--policy", n.policy.is_some()),
            ("--gpu-index", n.gpu_index.is_some()),
            ("--reset-gpu-index", self.reset_gpu_index),
            ("--disable-gpu-index", n.disable_gpu_index),
            ("--n-gpu-layers", n.n_gpu_layers.is_some()),
            ("--n-cpu-ffn", n.n_cpu_ffn.is_some()),
        ];
        all.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// Where keys and values are to be.
    ///
    /// # Errors
    /// If a place is named that the accelerator cannot have, unless the CPU will do.
    pub fn kv_place(&self) -> Result<KvPlace> {
        match self.device {
            Accelerator::None if self.allow_cpu => Ok(KvPlace::default()), // and it is said that there is no accelerator
            device => self.kv.of(device),
        }
    }

    /// `builder` with the accelerator that these options ask for, if they do.
    ///
    /// # Errors
    /// If there is none and that is not allowed, or a plan cannot be made.
    pub fn apply(&self, file: &File, setup: &Setup<'_>, builder: EngineBuilder) -> Result<EngineBuilder> {
        let kv = self.kv_place()?;
        let Some(Opened { device, budget, .. }) = self.open(kv)? else { return Ok(builder) };
        let mut planned = self.plan(file, setup, &*device, budget, kv)?;
        planned.notes.extend(note_of(kv));
        planned.notes.iter().for_each(|note| say(&format!("note: {note}")));
        say(&format!("plan: {}", summary(&planned)));
        let streaming = planned.affordable_streaming();
        if let Some(s) = streaming {
            let (from, memory) = (s.from, size(s.memory));
            say(&format!(
                "streaming: steps of {from} tokens or more send the CPU's neurons to the device, {memory} at a time"
            ));
        }
        let builder = builder.on_device_loss(self.on_device_loss.unwrap_or_default());
        Ok(builder.streaming(streaming).accelerator(device, planned.plan))
    }

    /// The accelerator; `None` for the CPU alone.
    fn open(&self, kv: KvPlace) -> Result<Option<Opened>> {
        match self.device {
            Accelerator::None => self.without(None),
            Accelerator::Simulated => {
                say(
                    "device: simulated by the CPU, to try plans out: nothing gets faster by it, and its memory is that of this machine",
                );
                Ok(Some(Opened::simulated(self.vram_budget)?))
            }
            Accelerator::Cuda(ordinal) => match Opened::cuda(ordinal, self.vram_budget, kv) {
                Ok(opened) => Ok(Some(opened)),
                Err(why) if self.allow_cpu => {
                    say_once(&format!("--device {}: {why}; all of the model is on the CPU (--allow-cpu)", self.device));
                    Ok(None)
                }
                Err(why) if why.failed && self.on_device_loss == Some(OnDeviceLoss::Cpu) => {
                    let all = "all of the model is on the CPU (--on-device-loss cpu)";
                    say_once(&format!("--device {}: {why}; {all}", self.device));
                    Ok(None)
                }
                Err(why) => Err(Failure::Work(format!(
                    "--device {}: {why} (--allow-cpu goes on with the CPU alone)",
                    self.device
                ))),
            },
            Accelerator::Auto => match Opened::cuda(0, self.vram_budget, kv) {
                Ok(opened) => Ok(Some(opened)),
                Err(why) => self.without(Some(&why.to_string())),
            },
        }
    }

    /// No accelerator, `why` it is not there if one was looked for.
    fn without(&self, why: Option<&str>) -> Result<Option<Opened>> {
        let there_is = match why {
            Some(why) => format!("there is no accelerator: {why}"),
            None => "there is no accelerator, as --device names none".into(),
        };
        // what to do if a device is lost asks for none, where one is looked for anyway
        let asks = |flag: &&str| why.is_none() || *flag != "--on-device-loss";
        match (self.given().find(asks), why) {
            (Some(flag), _) if self.allow_cpu => {
                say_once(&format!("{flag}: {there_is}, so all of the model is on the CPU (--allow-cpu)"));
            }
            (Some(flag), _) => {
                let ways = "--allow-cpu goes on with the CPU alone; --device says which there is, --device simulated tries plans out";
                return Err(Failure::Work(format!("{flag}: {there_is} ({ways})")));
            }
            (None, Some(_)) => say_once(&format!("device: the CPU alone: {there_is}")),
            (None, None) => {}
        }
        Ok(None)
    }

    /// The plan that is kept from an earlier run, or a new one, which is then kept.
    fn plan(&self, file: &File, setup: &Setup<'_>, device: &dyn Device, budget: u64, kv: KvPlace) -> Result<Planned> {
        let asked = Asked::new(&self.neurons, file, setup)?;
        let request = asked.request(setup, device, budget, &self.neurons);
        let failure = |e: Error| Failure::engine(&e, file.path());
        let n = &self.neurons;
        if n.disable_gpu_index || n.gpu_index.is_some() || n.split().is_some() {
            return n.plan(file, &request).map_err(failure);
        }
        let key = Key::new(&request, kv, asked.fingerprint, asked.profile_sum);
        if !self.reset_gpu_index
            && let Some(planned) = plan_cache::find(&key, file, &request)
        {
            return Ok(planned);
        }
        let planned = planner::plan(file, &request).map_err(failure)?;
        plan_cache::keep(&key, &planned);
        Ok(planned)
    }
}

/// Commands that load several models say it for the first.
fn say_once(text: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| say(text));
}

/// The files that the options name, read and checked.
pub struct Asked {
    pub fingerprint: u64,
    pub profile: Option<Profile>,
    /// Tells the profile from others; 0 without one.
    profile_sum: u64,
    pub hot: Option<Vec<NeuronSet>>,
}

impl Asked {
    /// # Errors
    /// If a file cannot be read, or is of another model.
    pub fn new(flags: &NeuronFlags, file: &File, setup: &Setup<'_>) -> Result<Self> {
        let (_, config) = arch::detect(file).map_err(|e| Failure::engine(&e, file.path()))?;
        let fingerprint = model_fingerprint(file, setup.activation.unwrap_or(config.activation));
        let profile = match &flags.profile {
            None => None,
            Some(path) => {
                let profile = load(path).map_err(|e| Failure::engine(&e, path))?;
                let neurons = u32::try_from(config.neurons).unwrap_or(u32::MAX);
                let shape: Vec<_> = (0..config.layers as u32).map(|i| (i, neurons)).collect();
                let fits = profile.expect_model(fingerprint, &shape);
                fits.map_err(|e| Failure::Work(format!("{}: {e}", path.display())))?;
                Some(profile)
            }
        };
        let profile_sum = profile.as_ref().map_or(0, plan_cache::sum_of);
        let hot = flags.gpu_index.as_deref().map(|path| hot_of(path, &config)).transpose()?;
        Ok(Self { fingerprint, profile, profile_sum, hot })
    }

    /// What the planner is asked for.
    pub fn request<'a>(
        &'a self,
        setup: &Setup<'a>,
        device: &'a dyn Device,
        budget: u64,
        flags: &NeuronFlags,
    ) -> Request<'a> {
        Request {
            session: setup.session.clone(),
            kv: setup.kv,
            sparsity: setup.sparsity,
            predictors: setup.predictors,
            activation: setup.activation,
            profile: self.profile.as_ref(),
            fingerprint: Some(self.fingerprint),
            costs: costs(device),
            policy: if flags.disable_gpu_index { Policy::Nothing } else { flags.policy.unwrap_or_default() },
            hot: self.hot.as_deref(),
            ..Request::new(device, budget)
        }
    }
}

/// The hot neurons of an index file.
fn hot_of(path: &Path, config: &pi_engine::ModelConfig) -> Result<Vec<NeuronSet>> {
    let index = NeuronIndex::open(path).map_err(|e| Failure::Work(e.to_string()))?;
    hot_of_index(&index, config).map_err(|e| Failure::Work(format!("{}: {e}", path.display())))
}

/// A line about a plan.
fn summary(planned: &Planned) -> String {
    if !planned.plan.uses_accelerator() {
        return format!("nothing on the device (budget {})", size(planned.budget));
    }
    let counted = if planned.statistics.is_known() { "" } else { " (assumed: no profile)" };
    format!(
        "{} of {} on the device; {:.1} % of the neurons, which give {:.1} % of the activations{counted}",
        size(planned.memory.total()),
        size(planned.budget),
        100.0 * planned.hot_share(),
        100.0 * planned.hit_rate(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_numbers_of_gib() {
        assert_eq!(
            (gib("0"), gib("1"), gib("0.5"), gib("1e9")),
            (Ok(0), Ok(1 << 30), Ok(1 << 29), Ok(1e9 as u64 * (1 << 30)))
        );
        for bad in ["", "-1", "nan", "inf", "1G"] {
            assert!(gib(bad).is_err(), "{bad}");
        }
    }
}
