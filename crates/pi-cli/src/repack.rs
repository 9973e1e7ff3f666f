//! Whether weights are kept a second time, in the layout that the CPU is fastest with.

use crate::machine;
use clap::ValueEnum;

/// `--repack`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Repack {
    /// As far as half of the memory that is free goes.
    #[default]
    Auto,
    /// All weights that gain from it.
    On,
    /// Weights stay in the file.
    Off,
}

impl Repack {
    /// Most bytes to be repacked.
    pub fn limit(self) -> u64 {
        match self {
            Self::Auto => machine::memory().map_or(0, |(_, free)| free / 2),
            Self::On => u64::MAX,
            Self::Off => 0,
        }
    }
}
