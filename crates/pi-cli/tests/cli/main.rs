//! Tests of the program `pi`. One program, since each would be linked by itself; those of one file: `cargo test -p pi-cli --test cli FILE::`.

mod ablation;
mod bench;
mod calls;
mod chat;
mod common;
mod convert;
mod cuda;
mod doctor;
mod families;
mod gpu_check;
mod inspect;
mod perplexity;
mod plan;
mod prepare;
mod profile;
mod run;
mod serve;
mod synth;
mod train;
