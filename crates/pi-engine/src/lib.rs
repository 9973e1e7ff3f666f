//! (under construction)

pub mod tokenizer;
