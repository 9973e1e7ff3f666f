//! `pi convert`
use crate::failure::{Failure, Result};
use clap::Args;
/// x
#[derive(Args, Debug)]
pub struct ConvertFlags {}
/// x
pub fn convert(_: &ConvertFlags) -> Result {
    Err(Failure::Work("x".into()))
}
