//! What `pi doctor` says.

use super::crossing::Found;
use crate::{
    backends,
    costs::measure::Link,
    machine::{self, Cache},
    output::size,
};
use pi_engine::{
    costs::{Figure, Origin, SideCosts},
    pi_core::{Form, QuantType},
    pi_sparse_cpu::{Activations, Isa, Kernels},
};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write, ptr::fn_addr_eq, time::Duration};

/// Bytes per second read from memory.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// By one thread.
    pub one: f64,
    /// By all threads.
    pub all: f64,
}

/// Where figures were stored, and what went wrong.
#[derive(Serialize)]
pub struct Stored {
    pub path: String,
    pub error: Option<String>,
}

/// All findings. What is not known is null.
#[derive(Serialize)]
pub struct Report {
    version: &'static str,
    cpu: Cpu,
    memory: RamReport,
    /// Instruction sets of the kernels that this CPU can run, the plainest first.
    isas: Vec<String>,
    /// The one in use, and whether PI_ISA chose it.
    isa: String,
    isa_forced: bool,
    threads: usize,
    backends: Vec<Backend>,
    /// Empty if crossovers were not asked for.
    types: Vec<TypeReport>,
    crossover_file: Option<Stored>,
    /// Of the CPU, and of the accelerator if there is one.
    costs: Vec<CostsReport>,
}

/// What plans are made of, for one side.
#[derive(Serialize)]
pub struct CostsReport {
    /// Null for the CPU.
    device: Option<String>,
    /// What a dense matrix of a token is read with.
    bytes_per_second: FigureReport,
    /// Multiply-adds per second of dense matrices that many tokens share.
    prompt_per_second: FigureReport,
    /// What neurons that fire here and there are read with, by type.
    neuron_bytes_per_second: BTreeMap<&'static str, FigureReport>,
    /// Of an accelerator with memory of its own: what moves go with, and how long a wait for a small result takes.
    link_bytes_per_second: Option<f64>,
    sync_seconds: Option<f64>,
    /// Why some were not measured.
    missing: Vec<String>,
    /// What measuring took.
    seconds: f64,
    file: Option<Stored>,
}

#[derive(Serialize)]
struct FigureReport {
    value: f64,
    /// `measured` or `assumed`.
    origin: &'static str,
}

impl From<Figure> for FigureReport {
    fn from(f: Figure) -> Self {
        let origin = match f.origin {
            Origin::Measured => "measured",
            Origin::Assumed => "assumed",
        };
        Self { value: f.value.round(), origin }
    }
}

impl CostsReport {
    pub fn new(
        device: Option<&str>,
        side: &SideCosts,
        link: Option<Link>,
        missing: Vec<String>,
        time: Duration,
        file: Option<Stored>,
    ) -> Self {
        Self {
            device: device.map(Into::into),
            link_bytes_per_second: link.map(|l| l.bandwidth.round()),
            sync_seconds: link.map(|l| l.sync),
            bytes_per_second: side.bandwidth.into(),
            prompt_per_second: side.prompt.into(),
            neuron_bytes_per_second: QuantType::ALL.map(|ty| (ty.name(), side.neurons(ty).into())).into(),
            missing,
            seconds: time.as_secs_f64(),
            file,
        }
    }

    fn text(&self) -> String {
        let shown = |f: &FigureReport| match f.origin {
            "measured" => format!("{:.1}", f.value / 1e9),
            other => format!("{:.1} ({other})", f.value / 1e9),
        };
        let neurons = self.neuron_bytes_per_second.iter();
        let neurons: Vec<_> = neurons.map(|(name, f)| format!("{name} {}", shown(f))).collect();
        let mut t = format!(
            "\nWhat plans are made of, {}, in GB/s (measured in {:.1} s): dense matrices {}, picked neurons\n",
            self.device.as_ref().map_or("CPU".into(), |name| format!("accelerator {name}")),
            self.seconds,
            shown(&self.bytes_per_second)
        );
        neurons.chunks(8).for_each(|line| {
            let _ = writeln!(t, "  {}", line.join(", "));
        });
        if let (Some(link), Some(sync)) = (self.link_bytes_per_second, self.sync_seconds) {
            let _ = writeln!(t, "  moves {:.1}; a wait takes {:.0} µs", link / 1e9, sync * 1e6);
        }
        let _ = writeln!(t, "  long prompts: 10⁹ multiply-adds/s {}", shown(&self.prompt_per_second));
        self.missing.iter().for_each(|why| {
            let _ = writeln!(t, "  not measured: {why}");
        });
        t + &where_to("figures", self.file.as_ref())
    }
}

/// Where something was stored, or why not.
fn where_to(what: &str, stored: Option<&Stored>) -> String {
    match stored {
        None => format!("The system has no cache folder: {what} were not stored (PI_CACHE_DIR names one)\n"),
        Some(Stored { path, error: None }) => format!("The {what} are stored in {path}\n"),
        Some(Stored { path, error: Some(e) }) => format!("The {what} could not be stored in {path}: {e}\n"),
    }
}

#[derive(Serialize)]
struct Cpu {
    name: String,
    architecture: &'static str,
    usable_cores: usize,
    physical_cores: Option<usize>,
    features: Vec<&'static str>,
    caches: Vec<Cache>,
}

#[derive(Serialize)]
struct RamReport {
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    read_bytes_per_second_one_thread: Option<f64>,
    read_bytes_per_second: Option<f64>,
}

#[derive(Serialize)]
struct Backend {
    name: &'static str,
    /// What there is.
    found: Option<String>,
    /// Why there is nothing.
    missing: Option<String>,
}

impl Backend {
    fn new(name: &'static str, there: Result<String, String>) -> Self {
        Self { name, missing: there.as_ref().err().cloned(), found: there.ok() }
    }
}

#[derive(Serialize)]
struct TypeReport {
    name: &'static str,
    /// What activations are encoded to before they meet weights of this type.
    activation: &'static str,
    kernels: Vec<KernelReport>,
    crossover: f32,
    /// Shares of active neurons, and the sparse path's time as a part of the dense path's.
    measured: Vec<(f64, f64)>,
}

/// Which instruction set computes what when `isa` is asked for.
#[derive(Serialize, PartialEq)]
struct KernelReport {
    isa: String,
    dot: String,
    axpy: String,
    /// Encoding of activations; null if they stay as they are.
    encode: Option<String>,
}

impl Report {
    pub fn new(
        kernels: &Kernels,
        isa_forced: bool,
        threads: usize,
        memory: Option<Memory>,
        found: &[Found],
        crossover_file: Option<Stored>,
        costs: Vec<CostsReport>,
    ) -> Self {
        let ram = machine::memory();
        let tables: Vec<_> = Isa::available().into_iter().filter_map(|isa| Kernels::for_isa(isa).ok()).collect();
        let of_type = |f: &Found| TypeReport {
            name: f.ty.name(),
            activation: kernels.get(f.ty).activations.form.0,
            kernels: tables.iter().map(|table| kernel(table, f.ty)).collect(),
            crossover: f.share,
            measured: f.ratios.clone(),
        };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            cpu: Cpu {
                name: machine::cpu_name(),
                architecture: std::env::consts::ARCH,
                usable_cores: machine::usable_cores(),
                physical_cores: machine::physical_cores(),
                features: machine::features(),
                caches: machine::caches(),
            },
            memory: RamReport {
                total_bytes: ram.map(|r| r.0),
                available_bytes: ram.map(|r| r.1),
                read_bytes_per_second_one_thread: memory.map(|m| m.one.round()),
                read_bytes_per_second: memory.map(|m| m.all.round()),
            },
            isas: tables.iter().map(|t| t.isa().to_string()).collect(),
            isa: kernels.isa().to_string(),
            isa_forced,
            threads,
            backends: vec![
                Backend { name: "cpu", found: Some(kernels.isa().to_string()), missing: None },
                Backend::new("cuda", backends::cuda().map_err(|e| e.to_string())),
            ],
            types: found.iter().map(of_type).collect(),
            crossover_file,
            costs,
        }
    }

    /// The same for people.
    pub fn text(&self) -> String {
        let mut t = String::new();
        let or_unknown = |text: Option<String>| text.unwrap_or_else(|| "unknown".into());
        let speed = |v: Option<f64>| or_unknown(v.map(|v| format!("{:.1} GB/s", v / 1e9)));
        let cpu = &self.cpu;
        let caches = cpu.caches.iter().filter(|c| c.kind != "instruction");
        let caches: Vec<_> = caches.map(|c| format!("L{} {} KiB", c.level, c.bytes >> 10)).collect();
        let cores = cpu.physical_cores.map_or_else(String::new, |n| format!(" of {n} cores"));
        let rows: [(&str, String); 9] = [
            ("pi", self.version.into()),
            ("cpu", format!("{} ({})", cpu.name, cpu.architecture)),
            ("threads", format!("{} (this process may use {}{cores})", self.threads, cpu.usable_cores)),
            ("features", cpu.features.join(" ")),
            ("caches", or_unknown(Some(caches.join(", ")).filter(|c| !c.is_empty()))),
            (
                "memory",
                format!(
                    "{}, {} free",
                    or_unknown(self.memory.total_bytes.map(size)),
                    or_unknown(self.memory.available_bytes.map(size))
                ),
            ),
            (
                "memory reads",
                format!(
                    "{} with one thread, {} with {}",
                    speed(self.memory.read_bytes_per_second_one_thread),
                    speed(self.memory.read_bytes_per_second),
                    self.threads
                ),
            ),
            (
                "kernels",
                format!(
                    "{}{} (of {})",
                    self.isa,
                    if self.isa_forced { ", forced by PI_ISA" } else { "" },
                    self.isas.join(", ")
                ),
            ),
            (
                "back ends",
                self.backends
                    .iter()
                    .map(|b| format!("{}: {}", b.name, b.found.as_ref().or(b.missing.as_ref()).map_or("", |s| s)))
                    .collect::<Vec<_>>()
                    .join("; "),
            ),
        ];
        // with --costs the memory's speed is not measured
        for (name, value) in rows.into_iter().filter(|(name, _)| *name != "memory reads" || !self.types.is_empty()) {
            let _ = writeln!(t, "{name:<13} {value}");
        }
        self.costs.iter().for_each(|costs| t += &costs.text());
        if self.types.is_empty() { t } else { t + &self.crossovers() }
    }

    fn crossovers(&self) -> String {
        let mut t = String::new();
        let _ = writeln!(
            t,
            "\nWhat computes each type, per instruction set, and from which share of active neurons every neuron"
        );
        let _ = writeln!(t, "of an FFN is computed ({} kernels, {} threads):\n", self.isa, self.threads);
        let mut head = format!("{:<7} {:<10}", "type", "activation");
        self.isas.iter().for_each(|isa| {
            let _ = write!(head, " {isa:<24}");
        });
        let _ = writeln!(t, "{head} crossover");
        for ty in &self.types {
            let _ = write!(t, "{:<7} {:<10}", ty.name, ty.activation);
            for k in &ty.kernels {
                let _ = write!(t, " {:<24}", k.short());
            }
            let _ = writeln!(t, " {:>8.0} %", 100.0 * ty.crossover);
        }
        t + "\n" + &where_to("crossovers", self.crossover_file.as_ref())
    }
}

/// Functions that are the reference's own show that the type fell back, whatever the table's entry is called.
fn kernel(table: &Kernels, ty: QuantType) -> KernelReport {
    let reference = Kernels::reference();
    let (k, r) = (table.get(ty), reference.get(ty));
    let name = |fell_back: bool| if fell_back { Isa::Reference } else { table.isa() }.to_string();
    let encoded = k.activations.form != Form::F32;
    KernelReport {
        isa: table.isa().to_string(),
        dot: name(fn_addr_eq(k.dot, r.dot)),
        axpy: name(fn_addr_eq(k.axpy, r.axpy)),
        encode: encoded.then(|| {
            let plain = [Activations::SPLIT15, Activations::PAIRS15].map(|a| a.encode);
            name(plain.into_iter().any(|plain| fn_addr_eq(k.activations.encode, plain)))
        }),
    }
}

impl KernelReport {
    /// The set's name alone if it computes all; else what falls back.
    fn short(&self) -> String {
        let parts = [("dot", Some(&self.dot)), ("axpy", Some(&self.axpy)), ("encode", self.encode.as_ref())];
        let fallen: Vec<_> = parts.iter().filter(|(_, by)| by.is_some_and(|by| *by != self.isa)).collect();
        match fallen.len() {
            0 => self.isa.clone(),
            _ => {
                let names: Vec<_> = fallen.iter().map(|(what, _)| *what).collect();
                let by = fallen[0].1.map_or("", |by| by.as_str());
                format!("{} by {by}", names.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_is_seen_for_each_function() {
        let best = Kernels::best();
        if best.isa() == Isa::Reference {
            return; // nothing to fall back from
        }
        let reference = Kernels::reference();
        let mut mixed = *best.get(QuantType::Q4_0);
        mixed.axpy = reference.get(QuantType::Q4_0).axpy;
        let report = kernel(&best.clone().with(QuantType::Q4_0, mixed), QuantType::Q4_0);
        assert_eq!((report.dot, report.axpy), (best.isa().to_string(), "reference".into()));
        let fallen = best.clone().with(QuantType::Q4_0, *reference.get(QuantType::Q4_0));
        let report = kernel(&fallen, QuantType::Q4_0);
        assert_eq!((report.dot.as_str(), report.encode.as_ref()), ("reference", None));
        assert_eq!(report.short(), "dot, axpy by reference");
    }
}
