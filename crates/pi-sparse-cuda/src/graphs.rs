//! Sequences of kernels that are launched in one call, because the same ones were launched before with the same arguments.
//!
//! They are captured on a queue of their own, which nobody else uses: so nothing of another thread can get between, and the queue
//! that computes never is in a state in which calls are refused.
#![allow(unsafe_code)]

use crate::queue::List;
use cudarc::driver::{
    CudaContext, CudaStream, DriverError, result,
    sys::{CUgraphExec, CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode},
};
use std::{collections::HashMap, sync::Arc};

/// One kernel is as fast alone. Two take two calls, or one: a call costs about the same, whatever it launches.
const LEAST: usize = 2;
/// Kernels of all graphs together: those of the steps of some sessions of a deep model. The driver keeps about a KiB for each.
const KERNELS: usize = 16 << 10;
/// Sequences that are known, with a graph or without.
const KNOWN: usize = 4 << 10;
/// A graph that was not used while so many sequences were launched makes room for others.
const OLD: u64 = 4 << 10;

/// Graphs by what they launch.
pub(crate) struct Graphs {
    recorder: Arc<CudaStream>,
    /// By a hash of their words. A sequence that is new has no graph: many come once only.
    known: HashMap<u64, Option<Known>>,
    kernels: usize,
    /// Sequences that were launched.
    turn: u64,
}

struct Known {
    words: Box<[u64]>,
    kernels: usize,
    used: u64,
    graph: Graph,
}

/// A sequence of kernels as the driver keeps it.
pub(crate) struct Graph {
    exec: CUgraphExec,
    context: Arc<CudaContext>,
}

// SAFETY: the driver lets any thread use it, one at a time; it is behind the lock of a queue.
unsafe impl Send for Graph {}

/// What there is for a sequence.
pub(crate) enum Found<'a> {
    /// It is to be launched kernel by kernel.
    None,
    Old(&'a Graph),
    /// It was made just now.
    New(&'a Graph),
}

impl Graphs {
    pub(crate) fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        Ok(Self { recorder: context.new_stream()?, known: HashMap::with_capacity(KNOWN), kernels: 0, turn: 0 })
    }

    /// Frees all of them. False if there were none.
    pub(crate) fn clear(&mut self) -> bool {
        self.known.clear();
        std::mem::take(&mut self.kernels) > 0
    }

    /// The graph of a sequence, which is made when the sequence comes for the second time.
    ///
    /// # Safety
    /// What [`List::launch`] asks for.
    pub(crate) unsafe fn find(&mut self, list: &List) -> Result<Found<'_>, DriverError> {
        if list.kernels() < LEAST {
            return Ok(Found::None);
        }
        self.turn += 1;
        let name = hash(list.words());
        match self.known.get(&name) {
            // two sequences of one name: the second has none
            Some(Some(known)) if *known.words != *list.words() => return Ok(Found::None),
            Some(Some(_)) => {}
            Some(None) => {
                if !self.has_room(list.kernels()) {
                    return Ok(Found::None);
                }
                // SAFETY: the caller's promise.
                let graph = unsafe { self.record(list) }?;
                self.kernels += list.kernels();
                let known = Known { words: list.words().into(), kernels: list.kernels(), used: self.turn, graph };
                let known = self.known.entry(name).insert_entry(Some(known)).into_mut().as_ref();
                return Ok(known.map_or(Found::None, |known| Found::New(&known.graph)));
            }
            None => {
                if self.known.len() >= KNOWN {
                    self.forget(|known| known.is_some());
                    if self.known.len() >= KNOWN {
                        self.forget_old();
                    }
                }
                if self.known.len() < KNOWN {
                    self.known.insert(name, None);
                }
                return Ok(Found::None);
            }
        }
        let turn = self.turn;
        Ok(match self.known.get_mut(&name) {
            Some(Some(known)) => {
                known.used = turn;
                Found::Old(&known.graph)
            }
            _ => Found::None,
        })
    }

    /// Whether there is room for so many kernels more, after what was not used for long is gone.
    fn has_room(&mut self, kernels: usize) -> bool {
        if self.kernels + kernels > KERNELS {
            self.forget_old();
        }
        self.kernels + kernels <= KERNELS
    }

    fn forget_old(&mut self) {
        let turn = self.turn;
        self.forget(|known| known.as_ref().is_none_or(|k| turn - k.used < OLD));
    }

    fn forget(&mut self, keep: impl Fn(&Option<Known>) -> bool) {
        self.known.retain(|_, known| keep(known));
        self.kernels = self.known.values().flatten().map(|k| k.kernels).sum();
    }

    /// # Safety
    /// As [`find`](Self::find).
    unsafe fn record(&self, list: &List) -> Result<Graph, DriverError> {
        let stream = self.recorder.cu_stream();
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the queue is ours alone, and nothing is computed on it.
        unsafe { result::stream::begin_capture(stream, mode) }?;
        // SAFETY: the caller's promise.
        let launched = unsafe { list.launch(stream) };
        // SAFETY: as above; a capture that was begun is ended, whatever happened in between.
        let graph = unsafe { result::stream::end_capture(stream) };
        let graph = graph?;
        if graph.is_null() {
            return launched.and(Err(DriverError(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)));
        }
        // SAFETY: the driver has just made it.
        let exec = launched.and_then(|()| unsafe { result::graph::instantiate(graph, CUgraphInstantiate_flags(0)) });
        // SAFETY: as above; what was made of it does not need it.
        let destroyed = unsafe { result::graph::destroy(graph) };
        let graph = Graph { exec: exec?, context: self.recorder.context().clone() };
        destroyed.map(|()| graph)
    }
}

impl Graph {
    /// Queues the sequence.
    ///
    /// # Safety
    /// What [`List::launch`] asks for has to hold now.
    pub(crate) unsafe fn launch(&self, stream: &CudaStream) -> Result<(), DriverError> {
        // SAFETY: the graph is there as long as `self`.
        unsafe { result::graph::launch(self.exec, stream.cu_stream()) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // a device that failed cannot say so here
        let _ = self.context.bind_to_thread();
        // SAFETY: this is the only owner. What is queued of it still runs, as the driver says.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
    }
}

/// A name of words. Words are compared as well, so it need not be a good one.
fn hash(words: &[u64]) -> u64 {
    words.iter().fold(words.len() as u64, |h, w| (h ^ w).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29))
}

#[cfg(test)]
mod tests {
    use super::hash;

    #[test]
    fn sequences_that_differ_in_a_number_or_in_order_have_other_names() {
        let words: Vec<u64> = (0..100).map(|i| 0x7f00_0000_0000 + 512 * i).collect();
        let mut names = vec![hash(&words), hash(&words[1..]), hash(&[])];
        for i in 0..words.len() {
            let mut other = words.clone();
            other[i] ^= 512 << (i % 8);
            names.push(hash(&other));
            other.copy_from_slice(&words);
            other.swap(i, (i + 1) % words.len());
            names.push(hash(&other));
        }
        let n = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n);
    }
}
