//! Tests of reading and writing files. One program, since each would be linked by itself; those of one file: `cargo test -p pi-gguf --test gguf FILE::`.

mod common;
mod hostile;
mod identify;
mod malformed;
mod metadata;
mod samples;
mod split;
mod vocabulary;
mod writing;
