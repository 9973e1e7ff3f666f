//! A server without requests does not work. (The only test of its file, since it measures the whole process.)

mod common;

use common::*;
use cpu_time::ProcessTime;
use pi_engine::Engine;
use serde_json::json;
use std::{thread, time::Duration};

#[test]
fn an_idle_server_takes_no_time_of_the_cpu() {
    // P17
    let server = start_with(options(), || Ok(loaded(Engine::builder().threads(2).open(demo_path()).unwrap())));
    server.ready();
    server.complete(json!({}));
    thread::sleep(Duration::from_millis(200));
    let before = ProcessTime::now();
    thread::sleep(Duration::from_secs(2));
    let worked = before.elapsed();
    assert!(worked < Duration::from_millis(40), "{worked:?} of 2 s");
    server.is_well();
}
