//! Tests of conversions. One program, since each would be linked by itself; those of one file: `cargo test -p pi-convert --test convert FILE::`.

mod common;
mod convert;
mod quantize;
mod torch;
