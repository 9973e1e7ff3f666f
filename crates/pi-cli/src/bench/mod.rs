//! `pi bench`: how fast a model is, and how fast single operators are.
//!
//! | file | what |
//! |---|---|
//! | `model`, `model_row` | whole models, with llama-bench's tests, columns and defaults |
//! | `operator`, `operator_flags`, `operator_row` | `pi bench gemv`, `gemm`, `ffn`, `attention` |
//! | `list` | lists and ranges of numbers |
//! | `machine_speed` | what the figures are compared with |
//! | `table` | Markdown, CSV and JSON |

pub mod list;
mod machine_speed;
mod model;
mod model_row;
mod operator;
mod operator_flags;
mod operator_row;
pub mod table;

use crate::failure::Result;
use clap::{Args, Subcommand};

/// What is to be timed.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct BenchFlags {
    #[command(subcommand)]
    operator: Option<Operator>,
    #[command(flatten)]
    model: model::ModelFlags,
}

#[derive(Subcommand, Debug)]
enum Operator {
    /// Time a matrix by a vector
    Gemv(operator_flags::GemvFlags),
    /// Time a matrix by the vectors of a prompt
    Gemm(operator_flags::GemmFlags),
    /// Time an FFN of which some neurons are active
    Ffn(operator_flags::FfnFlags),
    /// Time attention to a context
    Attention(operator_flags::AttentionFlags),
}

/// Times models, or an operator.
///
/// # Errors
/// Wrong flags, models that cannot be loaded, results that are wrong.
pub fn bench(flags: &BenchFlags) -> Result {
    match &flags.operator {
        None => model::bench(&flags.model),
        Some(Operator::Gemv(flags)) => operator::gemv(flags),
        Some(Operator::Gemm(flags)) => operator::gemm(flags),
        Some(Operator::Ffn(flags)) => operator::ffn(flags),
        Some(Operator::Attention(flags)) => operator::attention(flags),
    }
}
