//! What the server's two sides share: how far it is, the model once it is there, what was counted.

use crate::{
    chat::{ChatTemplate, TemplateError},
    metrics::Metrics,
};
use pi_engine::{Engine, pi_gguf::Metadata};
use pi_grammar::{Compiler, GrammarError};
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};
use tokio::sync::watch;

/// What the loader brings.
pub struct Loaded {
    /// The model.
    pub engine: Engine,
    /// Its chat template, if it has one; or why that cannot be used. Either way, completions work.
    pub chat: Result<Option<ChatTemplate>, TemplateError>,
}

impl Loaded {
    /// A model with the chat template of its file, of which these are the keys.
    pub fn new(engine: Engine, metadata: &Metadata) -> Self {
        let chat = ChatTemplate::of(metadata, engine.tokenizer().clone()).map(Some);
        Self { engine, chat }
    }

    /// A model for completions alone.
    pub fn without_chat(engine: Engine) -> Self {
        Self { engine, chat: Ok(None) }
    }
}

/// How far a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// The model is being loaded.
    Loading,
    /// Requests are answered.
    Ready,
    /// The model could not be loaded, or the engine ended: nothing will ever be answered.
    Failed(String),
    /// No new requests are taken.
    Draining,
}

/// A model that requests can be made for.
pub(crate) struct Model {
    pub engine: Engine,
    pub chat: Result<Option<ChatTemplate>, TemplateError>,
    /// Positions of a slot.
    pub context: usize,
    /// Seconds since 1970 when it was there.
    pub created: u64,
    /// What compiles forms of answers for its vocabulary: made when it is first asked for, for good.
    forms: OnceLock<Result<Compiler, GrammarError>>,
}

impl Model {
    pub(crate) fn new(loaded: Loaded, context: usize) -> Self {
        let Loaded { engine, chat } = loaded;
        Self { engine, chat, context, created: now(), forms: OnceLock::new() }
    }

    /// Compiles forms of answers. The first call takes a while.
    pub(crate) fn compiler(&self) -> Result<&Compiler, &GrammarError> {
        self.forms.get_or_init(|| Compiler::new(&**self.engine.tokenizer())).as_ref()
    }

    /// Forms that were compiled so far.
    pub(crate) fn compiled(&self) -> u64 {
        self.forms.get().and_then(|forms| forms.as_ref().ok()).map_or(0, Compiler::compiled)
    }
}

/// Shared by handlers and the engine's thread.
pub(crate) struct State {
    pub phase: watch::Sender<Phase>,
    pub model: OnceLock<Arc<Model>>,
    pub metrics: Metrics,
    /// What the accelerator said when it failed, if the CPU goes on without it.
    pub lost: watch::Sender<Option<String>>,
}

impl State {
    pub(crate) fn new(slots: usize) -> Self {
        let (phase, lost) = (watch::Sender::new(Phase::Loading), watch::Sender::new(None));
        Self { phase, model: OnceLock::new(), metrics: Metrics::new(slots), lost }
    }

    /// The model may be asked from now on, unless the server is to end already.
    pub(crate) fn ready(&self, model: Model) {
        let _ = self.model.set(Arc::new(model));
        self.phase.send_if_modified(|phase| {
            let loading = *phase == Phase::Loading;
            if loading {
                *phase = Phase::Ready;
            }
            loading
        });
    }

    /// The session goes on without its accelerator, if `loss` says so; that is told once.
    pub(crate) fn lose(&self, loss: Option<&str>) {
        if let Some(loss) = loss
            && self.lost.borrow().is_none()
        {
            self.lost.send_replace(Some(loss.into()));
        }
    }

    pub(crate) fn fail(&self, why: impl Into<String>) {
        self.phase.send_replace(Phase::Failed(why.into()));
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
