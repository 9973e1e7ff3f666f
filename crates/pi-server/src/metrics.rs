//! What is counted, as Prometheus reads it.

use pi_engine::Session;
use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Over how much work the speed and the active share are taken.
const WINDOW: Duration = Duration::from_millis(500);

/// Counters and gauges. Handlers and the engine's thread write to it at any time.
#[derive(Debug)]
pub(crate) struct Metrics {
    slots: usize,
    running: AtomicUsize,
    waiting: AtomicUsize,
    cancelled: AtomicU64,
    failed: AtomicU64,
    finished: AtomicU64,
    refused: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    cache_hits: AtomicU64,
    cache_misses: AtomicU64,
    generated_tokens: AtomicU64,
    steps: AtomicU64,
    busy_nanos: AtomicU64,
    request_nanos: AtomicU64,
    http: Mutex<BTreeMap<(String, u16), u64>>,
    recent: Mutex<Recent>,
}

/// What the last stretch of work was like.
#[derive(Debug, Default)]
struct Recent {
    /// Of the stretch that is not over yet.
    time: Duration,
    generated: u64,
    /// Of the one before.
    tokens_per_second: f64,
    active: Vec<f32>,
    bytes_per_token: u64,
}

impl Metrics {
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            slots,
            running: AtomicUsize::default(),
            waiting: AtomicUsize::default(),
            cancelled: AtomicU64::default(),
            failed: AtomicU64::default(),
            finished: AtomicU64::default(),
            refused: AtomicU64::default(),
            prompt_tokens: AtomicU64::default(),
            cached_tokens: AtomicU64::default(),
            cache_hits: AtomicU64::default(),
            cache_misses: AtomicU64::default(),
            generated_tokens: AtomicU64::default(),
            steps: AtomicU64::default(),
            busy_nanos: AtomicU64::default(),
            request_nanos: AtomicU64::default(),
            http: Mutex::default(),
            recent: Mutex::default(),
        }
    }

    /// So many slots are taken, and so many requests wait for one.
    pub(crate) fn occupied(&self, running: usize, waiting: usize) {
        self.running.store(running, Relaxed);
        self.waiting.store(waiting, Relaxed);
    }

    /// Nothing to do: what was measured last is over.
    pub(crate) fn idle(&self) {
        self.occupied(0, 0);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.tokens_per_second = 0.0;
        (recent.time, recent.generated) = (Duration::ZERO, 0);
    }

    /// A request got a slot.
    pub(crate) fn begun(&self, prompt: usize, cached: usize) {
        self.prompt_tokens.fetch_add((prompt - cached) as u64, Relaxed);
        self.cached_tokens.fetch_add(cached as u64, Relaxed);
        (if cached > 0 { &self.cache_hits } else { &self.cache_misses }).fetch_add(1, Relaxed);
    }

    /// Answers became so many tokens longer.
    pub(crate) fn generated(&self, tokens: usize) {
        self.generated_tokens.fetch_add(tokens as u64, Relaxed);
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).generated += tokens as u64;
    }

    /// An answer is done.
    pub(crate) fn finished(&self, time: Duration) {
        self.finished.fetch_add(1, Relaxed);
        self.request_nanos.fetch_add(time.as_nanos() as u64, Relaxed);
    }

    /// How long an answer has its slot, on average; zero before there was one.
    pub(crate) fn mean_request(&self) -> Duration {
        let finished = self.finished.load(Relaxed);
        Duration::from_nanos(self.request_nanos.load(Relaxed).checked_div(finished).unwrap_or(0))
    }

    /// The client left.
    pub(crate) fn cancelled(&self) {
        self.cancelled.fetch_add(1, Relaxed);
    }

    /// The engine failed, or it took too long.
    pub(crate) fn failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    /// There was no room in the queue.
    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    /// A response was begun.
    pub(crate) fn response(&self, route: &str, status: u16) {
        let mut http = self.http.lock().unwrap_or_else(PoisonError::into_inner);
        *http.entry((route.into(), status)).or_default() += 1;
    }

    /// A step was computed. Now and then the session's figures are looked at, and begin anew.
    pub(crate) fn step(&self, session: &mut Session, time: Duration) {
        self.steps.fetch_add(1, Relaxed);
        self.busy_nanos.fetch_add(time.as_nanos() as u64, Relaxed);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.time += time;
        if recent.time < WINDOW && !recent.active.is_empty() {
            return;
        }
        let stats = session.stats();
        recent.tokens_per_second = recent.generated as f64 / recent.time.as_secs_f64().max(1e-9);
        recent.bytes_per_token = stats.bytes_per_token().unwrap_or(0);
        recent.active = stats.active;
        (recent.time, recent.generated) = (Duration::ZERO, 0);
        session.reset_stats();
    }

    /// All of it in Prometheus' text format. `ready`: whether requests are answered; `lost`: whether without the
    /// accelerator; `compiled`: forms that were compiled.
    pub(crate) fn text(&self, ready: bool, lost: bool, compiled: u64) -> String {
        let mut out = String::with_capacity(4096);
        let mut one = |name: &str, kind: &str, help: &str, value: f64| {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
        };
        let seconds = |nanos: &AtomicU64| nanos.load(Relaxed) as f64 / 1e9;
        let count = |n: &AtomicU64| n.load(Relaxed) as f64;
        one("pi_ready", "gauge", "1 if requests are answered", f64::from(u8::from(ready)));
        one("pi_device_lost", "gauge", "1 if an accelerator failed and the CPU goes on", f64::from(u8::from(lost)));
        one("pi_slots", "gauge", "Requests that can be computed at the same time", self.slots as f64);
        one("pi_requests_running", "gauge", "Requests that have a slot", self.running.load(Relaxed) as f64);
        one("pi_requests_waiting", "gauge", "Requests that wait for a slot", self.waiting.load(Relaxed) as f64);
        one("pi_requests_finished_total", "counter", "Answers that were completed", count(&self.finished));
        one("pi_requests_cancelled_total", "counter", "Requests whose client left", count(&self.cancelled));
        one("pi_requests_failed_total", "counter", "Requests that failed or took too long", count(&self.failed));
        one(
            "pi_requests_refused_total",
            "counter",
            "Requests refused because the queue was full",
            count(&self.refused),
        );
        one(
            "pi_request_seconds_total",
            "counter",
            "Time of completed answers in their slots",
            seconds(&self.request_nanos),
        );
        one(
            "pi_prompt_tokens_total",
            "counter",
            "Tokens of prompts that were to be computed",
            count(&self.prompt_tokens),
        );
        one(
            "pi_cached_tokens_total",
            "counter",
            "Tokens of prompts that a slot had already",
            count(&self.cached_tokens),
        );
        one(
            "pi_cache_hits_total",
            "counter",
            "Requests that found the beginning of their prompt",
            count(&self.cache_hits),
        );
        one("pi_cache_misses_total", "counter", "Requests that did not", count(&self.cache_misses));
        one("pi_generated_tokens_total", "counter", "Tokens of answers", count(&self.generated_tokens));
        one("pi_forms_compiled_total", "counter", "Forms of answers that were not known from before", compiled as f64);
        one("pi_steps_total", "counter", "Steps of the model", count(&self.steps));
        one("pi_busy_seconds_total", "counter", "Time of these steps", seconds(&self.busy_nanos));
        {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            let speed = "Tokens of answers per second, lately; 0 when idle";
            one("pi_tokens_per_second", "gauge", speed, recent.tokens_per_second);
            one(
                "pi_bytes_per_token",
                "gauge",
                "Bytes of weights and caches read per token, lately",
                recent.bytes_per_token as f64,
            );
            if !recent.active.is_empty() {
                let mean = recent.active.iter().sum::<f32>() / recent.active.len() as f32;
                one("pi_active_share", "gauge", "Share of neurons that contributed, lately", mean.into());
                let name = "pi_layer_active_share";
                let _ = write!(out, "# HELP {name} The same for each layer\n# TYPE {name} gauge\n");
                for (layer, share) in recent.active.iter().enumerate() {
                    let _ = writeln!(out, "{name}{{layer=\"{layer}\"}} {share}");
                }
            }
        }
        if let Some(memory) = memory_stats::memory_stats() {
            let name = "process_resident_memory_bytes";
            let (kind, help) = ("gauge", "Memory of this process that is in use");
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {}\n", memory.physical_mem);
        }
        let name = "pi_http_responses_total";
        let _ = write!(out, "# HELP {name} Responses by route and status\n# TYPE {name} counter\n");
        for ((route, status), n) in self.http.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "{name}{{route=\"{route}\",status=\"{status}\"}} {n}");
        }
        out
    }
}
