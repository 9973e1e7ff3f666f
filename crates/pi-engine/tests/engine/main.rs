//! Tests of the engine. One program, since each would be linked by itself; those of one file: `cargo test -p pi-engine --test engine FILE::`.

mod buglog;
mod buglog_hybrid;
mod common;
mod device_loss;
mod evaluate;
mod families;
mod golden_demo;
mod golden_smollm;
mod golden_tiny;
mod hostile;
mod hybrid;
mod inspect;
mod invariance;
mod law;
mod own_device;
mod planner;
mod powerinfer_samples;
mod predicted;
mod predictor_file;
mod profile;
mod schedule;
mod split;
mod streaming;
mod tokenizer;
mod tokenizer_goldens;
mod train;
