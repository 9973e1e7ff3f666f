//! The options of `pi bench gemv`, `gemm`, `ffn` and `attention`.

use super::{
    list::{Numbers, items},
    table::Format,
};
use crate::{
    accelerator::{Accelerator, KvFlags},
    failure::{Failure, Result},
    kernels,
    repack::Repack,
};
use clap::Args;
use pi_engine::{
    pi_core::{KvType, QuantType},
    pi_sparse_cpu::{Isa, Kernels},
};
use pi_testkit::cases::{Case, Select};

/// Options of all operators.
#[derive(Args, Debug)]
pub struct Common {
    /// Time an accelerator instead of the CPU: many calls and one wait for all, not each call; see pi run
    #[arg(long, value_name = "none|cuda[:N]|auto|simulated", default_value_t, hide_default_value = true)]
    pub(super) device: Accelerator,
    /// Types of the weights, as in q4_0,f16 [default: a usual selection]
    #[arg(long = "type", value_name = "TYPE,…", value_parser = types)]
    pub(super) ty: Option<Types>,
    /// Instruction sets of the kernels [default: what PI_ISA says, or the best]
    #[arg(long, value_name = "ISA,…", value_parser = isas)]
    pub(super) isa: Option<Isas>,
    /// Threads [default: the cores this process may use]
    #[arg(short, long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) threads: Vec<Numbers>,
    /// Repack weights: auto, on, off; see pi run
    #[arg(long, value_enum, value_name = "auto|on|off", default_value_t)]
    pub(super) repack: Repack,
    /// One copy of the weights, which stays in the caches if it fits
    #[arg(long)]
    pub(super) warm: bool,
    /// How long an operator is run
    #[arg(long, value_name = "S", default_value_t = 1.0, allow_negative_numbers = true, value_parser = seconds)]
    pub(super) seconds: f32,
    /// The memory's speed in GB/s, instead of measuring it; 0: do not compare with it. Of a GPU, what is read and written while it copies
    /// within its own memory
    #[arg(long, value_name = "GB/S", allow_negative_numbers = true, value_parser = crate::values::from_zero)]
    pub(super) bandwidth: Option<f32>,
    /// Form of the results
    #[arg(short, long, value_name = "FORM", default_value = "md")]
    pub(super) output: Format,
}

/// A matrix by a vector.
#[derive(Args, Debug)]
pub struct GemvFlags {
    /// Outputs [default: 4096]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) rows: Vec<Numbers>,
    /// Inputs [default: 4096]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) cols: Vec<Numbers>,
    #[command(flatten)]
    pub(super) common: Common,
}

/// A matrix by many vectors.
#[derive(Args, Debug)]
pub struct GemmFlags {
    /// Vectors at once [default: 512]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) tokens: Vec<Numbers>,
    #[command(flatten)]
    pub(super) matrix: GemvFlags,
}

/// An FFN.
#[derive(Args, Debug)]
pub struct FfnFlags {
    /// Width of input and output [default: 4096]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) dim: Vec<Numbers>,
    /// Neurons [default: 11008]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) ffn: Vec<Numbers>,
    /// Tokens at once [default: 1]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) tokens: Vec<Numbers>,
    /// Shares of active neurons, 0 to 1 [default: 0.05,0.1,0.2,0.5,1]
    #[arg(long, value_name = "SHARE,…", value_parser = shares, allow_hyphen_values = true)]
    pub(super) active: Option<Shares>,
    /// Who says which neurons are active: marks (a predictor; others are not read), gate (it is read for all), dense (all are
    /// computed)
    #[arg(long, value_name = "WHO,…", value_parser = selects)]
    pub(super) select: Option<Selects>,
    /// Share of active neurons from which every neuron is computed [default: 1, never]
    #[arg(long, value_name = "SHARE", default_value_t = 1.0, allow_negative_numbers = true, value_parser = crate::values::share)]
    pub(super) crossover: f32,
    #[command(flatten)]
    pub(super) common: Common,
}

/// Attention.
#[derive(Args, Debug)]
pub struct AttentionFlags {
    /// Positions in the cache [default: 128,512,1024]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) context: Vec<Numbers>,
    /// Query heads [default: 32]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) heads: Vec<Numbers>,
    /// Heads of keys and values [default: 8]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) kv_heads: Vec<Numbers>,
    /// Numbers per head [default: 128]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) head_dim: Vec<Numbers>,
    /// Width of input and output of the projections, which are a part of the operator [default: 32, nearly nothing]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) dim: Vec<Numbers>,
    /// New tokens at once [default: 1]
    #[arg(long, value_name = "N,…", allow_hyphen_values = true)]
    pub(super) tokens: Vec<Numbers>,
    /// How keys and values are kept [default: f16]
    #[arg(long, value_name = "KV,…", value_parser = kv_types)]
    pub(super) kv: Option<KvTypes>,
    #[command(flatten)]
    pub(super) place: KvFlags,
    #[command(flatten)]
    pub(super) common: Common,
}

macro_rules! list {
    ($name:ident, $of:ty, $read:ident, $expected:expr) => {
        #[derive(Clone, Debug)]
        pub(super) struct $name(pub(super) Vec<$of>);

        fn $read(text: &str) -> Result<$name, String> {
            Ok($name(items(text, &$expected)?))
        }
    };
}

list!(Isas, Isa, isas, format!("instruction sets ({} on this machine)", kernels::available()));
list!(Selects, Select, selects, "marks, gate or dense");
list!(KvTypes, KvType, kv_types, "f32, f16 or q8_0");

#[derive(Clone, Debug)]
pub(super) struct Types(pub(super) Vec<QuantType>);

pub(super) fn types(text: &str) -> Result<Types, String> {
    let known = || QuantType::ALL.map(|ty| ty.name().to_lowercase()).join(", ");
    let one = |t: &str| QuantType::from_name(t.trim()).ok_or_else(|| format!("'{t}' is none of {}", known()));
    text.split(',').map(one).collect::<Result<_, _>>().map(Types)
}

#[derive(Clone, Debug)]
pub(super) struct Shares(pub(super) Vec<f64>);

pub(super) fn shares(text: &str) -> Result<Shares, String> {
    let all: Vec<f64> = items(text, "numbers from 0 to 1")?;
    match all.iter().find(|s| !(0.0..=1.0).contains(*s)) {
        Some(s) => Err(format!("expected numbers from 0 to 1, not {s}")),
        None => Ok(Shares(all)),
    }
}

pub(super) fn seconds(text: &str) -> Result<f32, String> {
    let value = crate::values::positive(text)?;
    if value <= 3600.0 { Ok(value) } else { Err("expected at most 3600".into()) }
}

impl Common {
    /// Refuses options that are of the CPU where an accelerator is timed.
    ///
    /// # Errors
    /// If one is given.
    pub(super) fn check(&self, crossover: f32) -> Result<()> {
        let given = [
            ("--isa", self.isa.is_some()),
            ("--threads", !self.threads.is_empty()),
            ("--repack", self.repack != Repack::default()),
            ("--crossover", crossover < 1.0),
        ];
        match given.iter().find(|(_, given)| *given && self.device != Accelerator::None) {
            Some((flag, _)) => {
                Err(Failure::Usage(format!("{flag} is of the CPU, and --device {} is timed", self.device)))
            }
            None => Ok(()),
        }
    }

    /// The types that are wanted, or those of the usual cases.
    pub(super) fn types(&self, usual: &[Case]) -> Vec<QuantType> {
        if let Some(types) = &self.ty {
            return types.0.clone();
        }
        let mut types: Vec<_> = usual.iter().map(Case::ty).collect();
        types.dedup();
        types
    }

    /// A table per instruction set that is wanted.
    ///
    /// # Errors
    /// If this CPU lacks one.
    pub(super) fn kernels(&self) -> Result<Vec<Kernels>> {
        match &self.isa {
            None => Ok(vec![kernels::forced()?.unwrap_or_else(Kernels::best)]),
            Some(isas) => {
                let one = |isa: &Isa| {
                    let why = |_| {
                        let why = format!("this CPU does not have it (it can run: {})", kernels::available());
                        Failure::value(isa.to_string(), "--isa", why)
                    };
                    Kernels::for_isa(*isa).map_err(why)
                };
                isas.0.iter().map(one).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_types_and_shares_are_refused_with_what_would_do() {
        assert_eq!(types("q4_0, F16").unwrap().0, [QuantType::Q4_0, QuantType::F16]);
        assert!(types("q4_0,q9").unwrap_err().contains("'q9' is none of f32, f16"));
        assert!(shares("0.1,1.1").is_err() && shares("").is_err() && shares("nan").is_err());
        assert!(seconds("0").is_err() && seconds("1e9").is_err());
    }
}
