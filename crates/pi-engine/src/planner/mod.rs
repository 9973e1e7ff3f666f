//! What of a model goes to an accelerator, so that a budget of its memory is kept (paper §5, §6.3, §8.3.4).
//!
//! [`plan`] takes a model, a device and a budget, and makes a [`Planned`]: the [`Plan`] for
//! [`EngineBuilder::accelerator`](crate::EngineBuilder::accelerator), every byte that it will take there, and the time that a token is expected to take.
//!
//! # The budget
//!
//! It is a hard limit over everything that is allocated on the device when the model is loaded *and* one session is opened: weights, KV
//! caches, hidden states for the largest step, the operators' scratch, and what the device's runtime takes for itself. How many bytes each of
//! them is, the device says ([`Device::footprint`]).
//!
//! # The order
//!
//! 1. What any use of the device needs: the runtime, and the session's hidden states. If that does not fit, nothing is placed.
//! 2. Layer by layer from the first one: norms, attention with its KV cache, and the predictor, as one block. They are read for every
//!    token, so their bytes are worth the most there (§8.3.4).
//! 3. The last norm and the matrix that gives logits.
//! 4. Neurons, as [`Policy`] says, with all that is left.
//!
//! What does not fit is skipped, and what comes after it is still tried: nothing is left idle that something could use. With a
//! [`Request::hot`] of the caller's own, those neurons come before 2.
//!
//! Types that the device has no kernels for stay on the CPU. Where down matrices lie along the neurons (not neuron-major, and not of a float
//! type, which is transposed when it is loaded), a layer's neurons go there all or none.
//!
//! ```no_run
//! use pi_engine::{Engine, costs::Costs, pi_core::Device, pi_gguf::File, planner::{self, Policy, Request}};
//! use std::sync::Arc;
//!
//! # fn of(device: Arc<dyn Device>) -> pi_engine::Result<()> {
//! let file = File::open("model.gguf")?;
//! let planned = planner::plan(&file, &Request::new(&*device, 8 << 30))?;
//! println!("{} bytes of {}, {:.1} tokens/s expected", planned.memory.total(), planned.budget, 1.0 / planned.times.total());
//! let engine = Engine::builder().accelerator(device, planned.plan).load(&file)?;
//! # Ok(())
//! # }
//! ```
//!
//! What it does not do: measure ([`Costs`] has the figures), or know what else is on the device.

mod blocks;
mod index;
mod line;
mod memory;
mod neurons;
mod policy;
mod split;
mod statistics;
mod streaming;
mod survey;
mod times;
mod topup;
mod whole;

pub use index::{hot_of_index, index_of_plan};
pub use memory::{LayerBytes, MemoryUse};
pub use neurons::Choice;
pub use policy::Policy;
pub use split::{Split, split};
pub use statistics::Statistics;
pub use times::{LayerTime, Times};

use crate::{
    Error, Plan, Predictors, Result, SessionOptions, Side, Sparsity, Streaming, costs::Costs, source::WeightSource,
};
use pi_core::{Activation, Device, KvTypes, NeuronSet};
use pi_predictor::profile::Profile;
use survey::Survey;

/// What a plan is made for. The settings have to be those that the model is then loaded and run with.
#[derive(Clone)]
pub struct Request<'a> {
    /// The accelerator.
    pub device: &'a dyn Device,
    /// Bytes of its memory that may be used, all in all.
    pub budget: u64,
    /// Bytes that the device's runtime takes for itself as soon as it is used (a context, a library). Default: what the device
    /// [says](pi_core::Footprint::runtime).
    pub runtime: Option<u64>,
    /// The session that is to be opened.
    pub session: SessionOptions,
    /// How keys and values are kept.
    pub kv: KvTypes,
    /// What is skipped.
    pub sparsity: Sparsity,
    /// Which predictors [`Sparsity::Predictor`] uses.
    pub predictors: &'a Predictors,
    /// Another activation than the file says.
    pub activation: Option<Activation>,
    /// How often neurons fire. Without it, all are taken to fire equally often.
    pub profile: Option<&'a Profile>,
    /// What tells the model from others ([`model_fingerprint`](crate::profile::model_fingerprint)); with it, a profile of another model of the same shape is
    /// refused as well.
    pub fingerprint: Option<u64>,
    /// What times are made of.
    pub costs: Costs,
    /// What chooses the neurons.
    pub policy: Policy,
    /// Neurons that are placed together (§6.3.3); fewer in layers of few neurons. Default: 64.
    pub group: usize,
    /// Neurons that are to be hot, one set per layer, instead of those that [`policy`](Self::policy) would choose.
    pub hot: Option<&'a [NeuronSet]>,
}

static OF_FILE: Predictors = Predictors::File { threshold: None };

impl<'a> Request<'a> {
    /// `budget` bytes of a device, and the defaults for everything else.
    pub fn new(device: &'a dyn Device, budget: u64) -> Self {
        Self {
            device,
            budget,
            runtime: None,
            session: SessionOptions::default(),
            kv: KvTypes::default(),
            sparsity: Sparsity::default(),
            predictors: &OF_FILE,
            activation: None,
            profile: None,
            fingerprint: None,
            costs: Costs::default(),
            policy: Policy::default(),
            group: pi_placement::DEFAULT_BATCH,
            hot: None,
        }
    }
}

/// A plan, and what is known of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Planned {
    /// Where everything is.
    pub plan: Plan,
    /// The limit that was kept.
    pub budget: u64,
    /// What is allocated on the device: nothing at all if the plan does not use it.
    pub memory: MemoryUse,
    /// Seconds that a token is expected to take.
    pub times: Times,
    /// From how many tokens of a step on it pays to send the neurons that are on the CPU to the device for that step, by the request's costs,
    /// and the memory that the largest layer needs for the session's largest step. `None` if it does not pay for any step of the session. The
    /// memory is not a part of [`memory`](Self::memory).
    pub streaming: Option<Streaming>,
    /// How often neurons fire, and from where that is known.
    pub statistics: Statistics,
    /// How the neurons were chosen; `None` if the plan was given.
    pub choice: Option<Choice>,
    /// What is worth saying: what was assumed, and what did not fit.
    pub notes: Vec<String>,
}

impl Planned {
    /// [`streaming`](Self::streaming) if it fits into what the plan leaves of the budget.
    pub fn affordable_streaming(&self) -> Option<Streaming> {
        self.streaming.filter(|s| s.memory <= self.budget.saturating_sub(self.memory.total()))
    }

    /// Neurons on the device.
    pub fn hot(&self) -> usize {
        self.plan.layers.iter().map(|l| l.hot.len()).sum()
    }

    /// Neurons of all layers.
    pub fn neurons(&self) -> usize {
        self.plan.layers.iter().map(|l| l.hot.total()).sum()
    }

    /// The share of neurons on the device, 0 to 1; 0 without neurons.
    pub fn hot_share(&self) -> f64 {
        if self.neurons() == 0 { 0.0 } else { self.hot() as f64 / self.neurons() as f64 }
    }

    /// The share of a token's active neurons that are on the device, 0 to 1, on average: the expected hit rate.
    pub fn hit_rate(&self) -> f64 {
        let (mut hot, mut all) = (0.0, 0.0);
        for (i, layer) in self.plan.layers.iter().enumerate() {
            hot += self.statistics.fired(i, &layer.hot);
            all += self.statistics.fired_by_all(i);
        }
        if all == 0.0 { 0.0 } else { hot / all }
    }
}

/// A plan that keeps the request's budget.
///
/// # Errors
/// If the model cannot be loaded with these settings, the profile or the given neurons are of another model, or the given neurons
/// do not fit.
pub fn plan(source: &dyn WeightSource, request: &Request<'_>) -> Result<Planned> {
    let survey = Survey::new(source, request)?;
    let statistics = Statistics::new(&survey, request)?;
    let mut notes = statistics.notes(request);
    let (plan, choice) = blocks::place(&survey, &statistics, request, &mut notes)?;
    Ok(finish(survey, statistics, plan, choice, request, notes))
}

/// What is known of a plan that was made elsewhere or earlier.
///
/// # Errors
/// As [`plan`]; also if the plan is of another model, or does not keep the budget.
pub fn assess(source: &dyn WeightSource, request: &Request<'_>, plan: Plan) -> Result<Planned> {
    let survey = Survey::new(source, request)?;
    plan.check(&survey.config)?;
    survey.check_divided(&plan)?;
    let used = MemoryUse::of(&survey, &plan).total();
    if used > request.budget {
        let expected = format!("one that keeps the budget of {} bytes", request.budget);
        return Err(Error::setting("plan", expected, format!("one that takes {used} bytes")));
    }
    let statistics = Statistics::new(&survey, request)?;
    let notes = statistics.notes(request);
    Ok(finish(survey, statistics, plan, None, request, notes))
}

fn finish(
    survey: Survey,
    statistics: Statistics,
    plan: Plan,
    choice: Option<Choice>,
    request: &Request<'_>,
    mut notes: Vec<String>,
) -> Planned {
    notes.extend(survey.notes(&plan));
    let memory = MemoryUse::of(&survey, &plan);
    let times = Times::of(&survey, &statistics, &plan, &request.costs);
    let cpu = Times::of(&survey, &statistics, &Plan::whole(&survey.config, Side::Cpu), &request.costs);
    if cpu.total() < times.total() {
        let [cpu, this] = [&cpu, &times].map(|times| 1.0 / times.total());
        notes.push(format!("by these figures the CPU alone is faster: {cpu:.1} tokens/s instead of {this:.1}"));
    }
    let streaming = streaming::pays(&survey, &plan, &request.costs);
    Planned { plan, budget: request.budget, memory, times, streaming, statistics, choice, notes }
}

/// A number that is as good as random.
fn mixed(seed: u64, n: u64) -> u64 {
    let x = (seed ^ n.rotate_left(17)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31)
}
