//! The queue of a device's kernels. What is launched is kept until anything else is queued, or somebody waits: then all of it goes to the
//! driver, in one call if the same kernels had the same arguments before ([`Graphs`]). A decoded token's kernels do: what differs from token
//! to token is in the device's memory (places, rotations, marks), never in arguments. So a graph is found by what is to be launched, and
//! arrays that come, go or grow need no notice: their addresses are arguments.
#![allow(unsafe_code)]

use crate::{
    error::Code,
    graphs::{Found, Graphs},
    memory::Counter,
};
use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, result,
    sys::{CUfunction, CUstream},
};
use std::{
    ffi::c_void,
    fmt, ptr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Most arguments of a kernel.
pub(crate) const ARGUMENTS: usize = 20;
/// Kernels that are kept at most, so that the device does not idle for long while they are collected.
const SEGMENT: usize = 128;

/// What was launched on a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launches {
    /// Kernels.
    pub kernels: u64,
    /// Calls of the driver that launched them.
    pub calls: u64,
    /// Graphs that were made of them.
    pub graphs: u64,
    /// How often one was launched.
    pub replays: u64,
    /// Graphs that the driver did not make or launch. After the first there are none any more.
    pub refused: u64,
}

/// Kernels in the order in which they are launched, as words: what is compared, and what is launched from.
#[derive(Default)]
pub(crate) struct List {
    words: Vec<u64>,
    kernels: usize,
}

/// Words of a kernel before its arguments: its function, its sizes, and how many arguments follow.
const HEAD: usize = 5;

impl List {
    pub(crate) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(crate) fn kernels(&self) -> usize {
        self.kernels
    }

    fn clear(&mut self) {
        self.words.clear();
        self.kernels = 0;
    }

    fn push(&mut self, kernel: CUfunction, size: LaunchConfig, args: &[u64]) {
        let LaunchConfig { grid_dim: (gx, gy, gz), block_dim: (bx, by, bz), shared_mem_bytes } = size;
        let two = |a: u32, b: u32| u64::from(a) | u64::from(b) << 32;
        self.words.extend_from_slice(&[
            kernel as u64,
            two(gx, gy),
            two(gz, shared_mem_bytes),
            two(bx, by),
            two(bz, args.len() as u32),
        ]);
        self.words.extend_from_slice(args);
        self.kernels += 1;
    }

    /// Launches all of it.
    ///
    /// # Safety
    /// As [`Queue::launch`], for each.
    pub(crate) unsafe fn launch(&self, stream: CUstream) -> Result<(), DriverError> {
        let mut left = self.words.as_slice();
        while let Some((&[kernel, grid, more, block, last], rest)) = left.split_first_chunk::<HEAD>() {
            let (low, high) = (|w: u64| w as u32, |w: u64| (w >> 32) as u32);
            let (args, rest) = rest.split_at((high(last) as usize).min(rest.len()));
            let mut pointers = [ptr::null_mut::<c_void>(); ARGUMENTS];
            pointers.iter_mut().zip(args).for_each(|(p, arg)| *p = ptr::from_ref(arg).cast_mut().cast());
            // SAFETY: the caller's promise; the driver copies arguments, each of which is at the beginning of its word.
            unsafe {
                result::launch_kernel(
                    kernel as CUfunction,
                    (low(grid), high(grid), low(more)),
                    (low(block), high(block), low(last)),
                    high(more),
                    stream,
                    &mut pointers[..args.len()],
                )
            }?;
            left = rest;
        }
        Ok(())
    }
}

/// See the [module](self).
pub(crate) struct Queue {
    stream: Arc<CudaStream>,
    /// What is allocated.
    pub taken: Arc<Counter>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pending: List,
    /// `None`: kernels are launched one by one, at once.
    graphs: Option<Graphs>,
    /// Until something else is queued, kernels run for so long that launching them costs nothing beside.
    long: bool,
    /// A failure that nobody was told of.
    failed: Option<DriverError>,
    launches: Launches,
    /// Why there are no graphs although there should be.
    note: Option<String>,
}

impl Queue {
    /// A queue of its own. `graphs`: why there are none, if there is something to be said.
    pub(crate) fn new(context: &Arc<CudaContext>, graphs: Result<bool, String>) -> Result<Arc<Self>, DriverError> {
        let (graphs, note) = match graphs {
            Ok(true) => (Some(Graphs::new(context)?), None),
            Ok(false) => (None, None),
            Err(why) => (None, Some(why)),
        };
        let state = State { graphs, note, ..State::default() };
        Ok(Arc::new(Self { stream: context.new_stream()?, taken: Arc::default(), state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Launches a kernel, soon. `long`: it has many tokens, so that it takes longer than launching it.
    ///
    /// # Safety
    /// Arguments must be those of the kernel, each at the beginning of its word, and it must stay within its arrays.
    pub(crate) unsafe fn launch(
        &self,
        kernel: &CudaFunction,
        size: LaunchConfig,
        args: &[u64],
        long: bool,
    ) -> Result<(), DriverError> {
        let mut state = self.state();
        state.pending.push(kernel.cu_function(), size, args);
        state.launches.kernels += 1;
        state.long |= long;
        match state.long || state.graphs.is_none() || state.pending.kernels >= SEGMENT {
            true => state.flush(&self.stream),
            false => Ok(()),
        }
    }

    /// Hands what was launched over to the driver.
    pub(crate) fn flush(&self) -> Result<(), DriverError> {
        self.state().flush(&self.stream)
    }

    /// The driver's queue, after that, for whoever queues something else or waits.
    pub(crate) fn stream(&self) -> Result<&Arc<CudaStream>, DriverError> {
        let mut state = self.state();
        state.long = false;
        state.flush(&self.stream)?;
        Ok(&self.stream)
    }

    /// The driver's queue, for whoever needs to know which it is, and queues nothing that kernels have to do with.
    pub(crate) fn as_it_is(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Before an array of kernels is freed, which cannot report a failure.
    pub(crate) fn settle(&self) {
        let mut state = self.state();
        if let Err(e) = state.flush(&self.stream) {
            state.failed = Some(e);
        }
    }

    /// Frees all graphs; those that are needed are made again. False if there were none.
    pub(crate) fn forget(&self) -> bool {
        self.state().graphs.as_mut().is_some_and(Graphs::clear)
    }

    pub(crate) fn launches(&self) -> Launches {
        self.state().launches
    }

    pub(crate) fn note(&self) -> Option<String> {
        self.state().note.clone()
    }
}

impl State {
    fn flush(&mut self, stream: &CudaStream) -> Result<(), DriverError> {
        let failed = self.failed.take().map_or(Ok(()), Err);
        if self.pending.kernels == 0 {
            return failed;
        }
        let done = failed.and_then(|()| self.run(stream));
        self.pending.clear();
        done
    }

    fn run(&mut self, stream: &CudaStream) -> Result<(), DriverError> {
        stream.context().bind_to_thread()?;
        if let Some(graphs) = self.graphs.as_mut().filter(|_| !self.long) {
            // SAFETY: what `launch` promised holds for what is pending, and a graph is found by the very same words.
            let replayed = match unsafe { graphs.find(&self.pending) } {
                Ok(Found::None) => Ok(false),
                // SAFETY: as above.
                Ok(Found::Old(graph)) => unsafe { graph.launch(stream) }.map(|()| true),
                Ok(Found::New(graph)) => {
                    self.launches.graphs += 1;
                    // SAFETY: as above.
                    unsafe { graph.launch(stream) }.map(|()| true)
                }
                Err(e) => Err(e),
            };
            match replayed {
                Ok(false) => {}
                Ok(true) => {
                    self.launches.calls += 1;
                    self.launches.replays += 1;
                    return Ok(());
                }
                Err(e) => {
                    // nothing of it ran; if the device is lost, this is what says so
                    self.one_by_one(stream)?;
                    self.launches.refused += 1;
                    let why = Code::from(e);
                    self.note =
                        Some(format!("kernels are launched one by one: the driver refused a graph, error {why}"));
                    self.graphs = None;
                    return Ok(());
                }
            }
        }
        self.one_by_one(stream)
    }

    fn one_by_one(&mut self, stream: &CudaStream) -> Result<(), DriverError> {
        self.launches.calls += self.pending.kernels as u64;
        // SAFETY: as `Queue::launch` promised.
        unsafe { self.pending.launch(stream.cu_stream()) }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}
