//! Answers that have a form: JSON schemas, grammars and regular expressions as constraints on tokens.
//!
//! A [`Compiler`] is made once for a vocabulary. It turns a [`Grammar`] into a [`Matcher`], which follows one answer and says which
//! tokens may come next; [`pi_engine::Constrained`] puts it before a sampler:
//!
//! ```no_run
//! use pi_engine::{Constrained, Engine, SamplingParams, sampler::Chain};
//! use pi_grammar::{Compiler, Grammar};
//!
//! let engine = Engine::open("model.gguf")?;
//! let compiler = Compiler::new(&**engine.tokenizer())?;
//! let schema = serde_json::json!({"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]});
//! let matcher = compiler.compile(&Grammar::Schema { schema, strict: true })?;
//! let sampler = Constrained::new(Chain::new(SamplingParams::greedy(), engine.vocab())?, Box::new(matcher));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Forms come from people who are not trusted: they read nothing from elsewhere, and the work and memory that they can cause are
//! bounded, when they are compiled and with every token. The compiling itself is done by llguidance.
//!
//! | module | what |
//! |---|---|
//! | `compiler` | the vocabulary as a tree, and what compiles for it |
//! | `matcher` | the constraint on one answer |
//! | `aside` | the thread that computes an answer's masks beside the model |
//! | `grammar` | the forms there are |
//! | `schema`, `multiples` | JSON schemas, made ready for llguidance |
//! | `gbnf` | llama.cpp's grammars |
//! | `lark` | schemas within llguidance's kind of Lark |
//! | `cache` | forms that were compiled lately |
//! | `error` | what can be wrong |

mod aside;
mod cache;
mod compiler;
mod error;
mod gbnf;
mod grammar;
mod lark;
mod matcher;
mod multiples;
mod schema;
#[cfg(test)]
mod tests;

pub use compiler::Compiler;
pub use error::GrammarError;
pub use grammar::{Grammar, Part};
pub use matcher::Matcher;
