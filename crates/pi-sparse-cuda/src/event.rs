//! When a copy is done.

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError};
use std::sync::Arc;

/// The end of the last copy from or to an array of the host.
#[derive(Debug)]
pub(crate) struct Done {
    event: CudaEvent,
    /// Whether the host does not know yet that it came.
    pending: bool,
}

impl Done {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        Ok(Self { event: context.new_event(None)?, pending: false })
    }

    /// What is queued so far on `stream` has to be done.
    pub(crate) fn record(&mut self, stream: &CudaStream) -> Result<(), DriverError> {
        self.pending = true;
        self.event.record(stream)
    }

    /// What is queued on `stream` from now on comes after it. The host goes on.
    pub(crate) fn before(&self, stream: &CudaStream) -> Result<(), DriverError> {
        if self.pending { stream.wait(&self.event) } else { Ok(()) }
    }

    /// The host waits, if it does not know that it came already.
    pub(crate) fn wait(&mut self) -> Result<(), DriverError> {
        if self.pending {
            if !self.event.try_is_complete()? {
                self.event.synchronize()?;
            }
            self.pending = false;
        }
        Ok(())
    }
}
