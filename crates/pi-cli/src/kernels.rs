//! Which kernels the CPU device uses: the fastest, or what the variable `PI_ISA` names.

use crate::failure::{Failure, Result};
use pi_engine::pi_sparse_cpu::{Isa, Kernels};
use std::env;

const VARIABLE: &str = "PI_ISA";

/// The kernels that the environment forces; `None` if it leaves the choice to the engine.
///
/// # Errors
/// If the variable names an instruction set that is not known, or that this CPU lacks.
pub fn forced() -> Result<Option<Kernels>> {
    let Some(name) = env::var_os(VARIABLE).filter(|v| !v.is_empty()) else { return Ok(None) };
    let refused = |why: &str| {
        let name = name.to_string_lossy();
        Failure::Usage(format!("{VARIABLE}={name}: {why} (this machine can run: {})", available()))
    };
    let isa: Isa = name.to_str().and_then(|n| n.parse().ok()).ok_or_else(|| refused("unknown instruction set"))?;
    Kernels::for_isa(isa).map(Some).map_err(|_| refused("this CPU does not have it"))
}

/// The instruction sets of this machine, the plainest first.
pub fn available() -> String {
    Isa::available().iter().map(Isa::to_string).collect::<Vec<_>>().join(", ")
}
