//! A line about an operator.

use super::{
    operator::Measured,
    table::{Align, Column, Row},
};
use crate::{accelerator::name_of, machine};
use pi_engine::{pi_core::DeviceInfo, pi_sparse_cpu::Kernels};
use pi_sparse_cuda::KvPlace;
use pi_testkit::cases::Case;
use serde_json::Value;

/// What was found for a case.
pub(super) struct Line<'a> {
    pub(super) case: &'a Case,
    pub(super) on: On<'a>,
    pub(super) error: f64,
    pub(super) measured: Measured,
    pub(super) ratio: Option<f64>,
    pub(super) bandwidth: Option<f64>,
    /// Bytes that do not fit the caches.
    pub(super) cold: u64,
}

/// Who computed it.
#[derive(Clone, Copy)]
pub(super) enum On<'a> {
    /// This CPU.
    Cpu {
        /// The kernels that were asked for.
        kernels: &'a Kernels,
        /// Cores that computed.
        threads: usize,
    },
    /// An accelerator, and where it has keys and values if there is a choice.
    Device(&'a DeviceInfo, Option<KvPlace>),
}

/// The table's columns, wide enough for the names of these cases.
pub(super) fn columns(cases: &[Case]) -> Vec<Column> {
    use Align::{Left, Right};
    let name = cases.iter().map(|case| case.to_string().chars().count()).max().unwrap_or(0);
    vec![
        ("operator", name, Left),
        ("kernel", 9, Left),
        ("threads", 7, Right),
        ("median", 10, Right),
        ("min", 10, Right),
        ("GB/s", 6, Right),
        ("of memory", 9, Right),
        ("GMAC/s", 7, Right),
        ("of dense", 8, Right),
        ("dense path", 10, Right),
        ("weights", 8, Left),
        ("error", 7, Right),
    ]
}

impl Line<'_> {
    fn read_per_second(&self) -> f64 {
        self.measured.stats.bytes as f64 / self.measured.median
    }

    /// The name of who computed it.
    fn device(&self) -> Value {
        match self.on {
            On::Cpu { .. } => "cpu".into(),
            On::Device(info, _) => info.name.as_str().into(),
        }
    }

    /// What an accelerator is.
    fn detail(&self) -> Value {
        match self.on {
            On::Cpu { .. } => Value::Null,
            On::Device(info, _) => info.detail.as_str().into(),
        }
    }

    /// Where a GPU has keys and values, of operators that have some.
    fn kv_place(&self) -> Value {
        match (self.case, self.on) {
            (Case::Attention(_), On::Device(_, Some(place))) => name_of(place).into(),
            _ => Value::Null,
        }
    }

    /// What is so of the CPU alone.
    fn cpu(&self, what: impl Fn(&Kernels, usize) -> Value) -> Value {
        match self.on {
            On::Cpu { kernels, threads } => what(kernels, threads),
            On::Device(..) => Value::Null,
        }
    }

    fn share(part: u64, of: u64) -> Option<f64> {
        (of > 0).then(|| part as f64 / of as f64)
    }

    /// Where the weights come from: `memory`, or `caches` if all that was read fits them more or less.
    fn weights(&self) -> &'static str {
        if self.measured.working_set >= self.cold { "memory" } else { "caches" }
    }
}

impl Row for Line<'_> {
    fn fields(&self) -> Vec<(&'static str, Value)> {
        let (m, stats) = (&self.measured, &self.measured.stats);
        let mut fields: Vec<(&'static str, Value)> = vec![
            ("build_version", env!("CARGO_PKG_VERSION").into()),
            ("cpu_info", machine::cpu_name().into()),
            ("operator", self.case.to_string().into()),
            ("type", self.case.ty().name().into()),
        ];
        fields.extend(shape(self.case));
        fields.extend([
            ("device", self.device()),
            ("device_info", self.detail()),
            ("kv_place", self.kv_place()),
            ("isa", self.cpu(|kernels, _| kernels.isa().to_string().into())),
            ("kernel_isa", self.cpu(|kernels, _| kernels.get(self.case.ty()).isa.to_string().into())),
            ("n_threads", self.cpu(|_, threads| threads.into())),
            ("error", self.error.into()),
            ("tolerance", self.case.tolerance().into()),
            ("calls", m.calls.into()),
            ("median_ns", (m.median * 1e9).into()),
            ("min_ns", (m.min * 1e9).into()),
            ("max_ns", (m.max * 1e9).into()),
            ("bytes", stats.bytes.into()),
            ("read_bytes_per_second", self.read_per_second().round().into()),
            ("memory_bytes_per_second", self.bandwidth.map(f64::round).into()),
            ("memory_share", self.bandwidth.map(|b| self.read_per_second() / b).into()),
            ("macs", m.macs.into()),
            ("macs_per_second", (m.macs as f64 / m.median).round().into()),
            ("active_share", Self::share(stats.active, stats.neurons).into()),
            ("dense_share", Self::share(stats.dense, stats.neurons).into()),
            ("of_dense", self.ratio.into()),
            ("copies", m.turns.into()),
            ("working_set", m.working_set.into()),
            ("weights_from", self.weights().into()),
        ]);
        fields
    }

    fn cells(&self) -> Vec<String> {
        let m = &self.measured;
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let percent = |share: Option<f64>| or_dash(share.map(|s| format!("{:.1} %", 100.0 * s)));
        vec![
            self.case.to_string(),
            match self.on {
                On::Cpu { kernels, .. } => kernels.get(self.case.ty()).isa.to_string(),
                On::Device(info, _) => info.name.clone(),
            },
            match self.on {
                On::Cpu { threads, .. } => threads.to_string(),
                On::Device(..) => "-".into(),
            },
            duration(m.median),
            duration(m.min),
            format!("{:.2}", self.read_per_second() / 1e9),
            percent(self.bandwidth.map(|b| self.read_per_second() / b)),
            format!("{:.1}", m.macs as f64 / m.median / 1e9),
            or_dash(self.ratio.map(|r| format!("{r:.3}"))),
            percent(Self::share(m.stats.dense, m.stats.neurons)),
            self.weights().into(),
            format!("{:.0e}", self.error),
        ]
    }
}

/// The numbers in a case's name, as fields.
fn shape(case: &Case) -> Vec<(&'static str, Value)> {
    match case {
        Case::Product(p) => vec![("rows", p.rows.into()), ("cols", p.cols.into()), ("tokens", p.tokens.into())],
        Case::Ffn(f) => vec![
            ("dim", f.dim.into()),
            ("ffn", f.neurons.into()),
            ("tokens", f.tokens.into()),
            ("active", f.active.into()),
            ("select", f.select.to_string().into()),
        ],
        Case::Attention(a) => vec![
            ("dim", a.dim.into()),
            ("heads", a.heads.into()),
            ("kv_heads", a.kv_heads.into()),
            ("head_dim", a.head_dim.into()),
            ("context", a.context.into()),
            ("tokens", a.tokens.into()),
            ("kv", format!("{:?}", a.kv).to_lowercase().into()),
        ],
        _ => Vec::new(),
    }
}

/// As in `12.3 µs`.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} µs", s * 1e6),
        s if s < 1.0 => format!("{:.3} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_that_suits_them() {
        let all = [1.5e-6, 0.0123, 2.0].map(duration);
        assert_eq!(all, ["1.5 µs", "12.300 ms", "2.000 s"]);
    }
}
