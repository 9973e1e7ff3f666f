//! Tests of placements. One program, since each would be linked by itself; those of one file: `cargo test -p pi-placement --test placement FILE::`.

mod agreement;
mod common;
mod models;
mod silly;
mod simulation;
mod size;
