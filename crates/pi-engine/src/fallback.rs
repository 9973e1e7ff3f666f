//! What is done when an accelerator fails in the middle of a step.

use crate::{
    Engine, Error, Predictors, Result, Sparsity,
    engine::Inner,
    load::{self, LoadOptions},
    predictors,
    source::Kept,
};
use pi_core::{Device, KvTypes, Predictor};
use std::{
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

/// What is done when the accelerator fails: while a model is loaded onto it, when a session is opened, or in the middle of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDeviceLoss {
    /// What was asked for fails; sequences are as they were before.
    #[default]
    Error,
    /// The session goes on with the CPU alone: what the device knew of its sequences is computed again from their tokens, then
    /// the step is repeated. To be able to do that it keeps the tokens (4 bytes for each position of its context), and the
    /// engine keeps the file's weights in reach.
    Cpu,
}

impl FromStr for OnDeviceLoss {
    type Err = pi_core::Error;

    fn from_str(s: &str) -> Result<Self, pi_core::Error> {
        match s {
            "error" => Ok(Self::Error),
            "cpu" => Ok(Self::Cpu),
            _ => Err(pi_core::Error::unsupported(format!("{s:?} on the loss of a device"), "known: error, cpu")),
        }
    }
}

/// What it takes to make the same model for the CPU alone.
pub(crate) struct Fallback {
    pub source: Arc<Kept>,
    pub sparsity: Sparsity,
    pub predictors: Predictors,
    /// Put in after loading.
    pub own: Option<Vec<Option<Arc<dyn Predictor>>>>,
    pub kv: KvTypes,
    /// The engine without the device, and what the device said, once it was lost.
    pub made: Mutex<Option<(Engine, Arc<str>)>>,
}

impl Fallback {
    /// The same with other predictors.
    pub(crate) fn with_predictors(&self, own: &[Option<Arc<dyn Predictor>>]) -> Self {
        Self {
            source: self.source.clone(),
            sparsity: self.sparsity,
            predictors: self.predictors.clone(),
            own: Some(own.to_vec()),
            kv: self.kv,
            made: Mutex::default(),
        }
    }
}

/// Whether a device, of which something failed, was lost. It is asked, as errors of loading name tensors, and one without the room that
/// was asked for is not lost.
pub(crate) fn is_lost(device: &dyn Device) -> bool {
    device.hidden(1, 1).is_err_and(|e| !e.to_string().contains("no memory for"))
}

impl Engine {
    /// Whether the accelerator is lost: it is asked for next to nothing, and refuses. What needs it will not be computed any more. False
    /// without one, and of the engine of the CPU that [goes on](OnDeviceLoss::Cpu) in its place.
    pub fn has_lost_device(&self) -> bool {
        let inner = &self.inner;
        !Arc::ptr_eq(&inner.device, &inner.cpu) && is_lost(&*inner.device)
    }
}

impl Inner {
    /// The engine that is to open a session after `error`, if that says that the accelerator was lost, and what it said.
    ///
    /// # Errors
    /// `error`, if it says something else; as loading.
    pub(crate) fn lost_before(&self, error: Error) -> Result<(Engine, Arc<str>)> {
        if !self.is_loss(&error) || !is_lost(&*self.device) {
            return Err(error);
        }
        self.lose(&error)?.ok_or(error)
    }

    /// Whether an error says that the accelerator failed.
    pub(crate) fn is_loss(&self, error: &Error) -> bool {
        let Error::Core(pi_core::Error::Device { device, .. }) = error else { return false };
        !Arc::ptr_eq(&self.device, &self.cpu) && *device == self.device.info().name
    }

    /// The engine that goes on after the accelerator was lost, if it was, and what it said.
    pub(crate) fn after_loss(&self) -> Option<(Engine, Arc<str>)> {
        self.fallback.as_ref()?.made.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The engine without the accelerator, which failed with `loss`; made once. `None` if there is to be none.
    ///
    /// # Errors
    /// As loading.
    pub(crate) fn lose(&self, loss: &Error) -> Result<Option<(Engine, Arc<str>)>> {
        let Some(fallback) = &self.fallback else { return Ok(None) };
        let mut made = fallback.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.is_none() {
            let options = LoadOptions {
                device: &self.cpu,
                accelerator: None,
                streaming: None,
                sparsity: fallback.sparsity,
                predictors: &fallback.predictors,
                exec: &self.exec,
                kv: fallback.kv,
                check: self.check,
            };
            let mut model = load::load(&*fallback.source, self.arch, &self.config, &options)?;
            if let Some(own) = &fallback.own {
                predictors::put(&mut model.layers, own, &self.config)?;
                model.sparsity = self.model.sparsity.clone();
                model = model.rescheduled(self.arch);
            }
            let engine = Engine { inner: Arc::new(self.on_cpu(model)) };
            *made = Some((engine, loss.to_string().into()));
        }
        Ok(made.clone())
    }
}
