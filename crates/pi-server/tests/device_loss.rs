//! A server whose accelerator fails in the middle of its work.

mod common;

use common::{Running, demo, demo_path, loaded, options, start_with, until};
use pi_engine::{
    Engine, OnDeviceLoss, Plan, Side,
    pi_core::Serial,
    pi_sparse_cpu::{CpuDevice, Kernels},
};
use pi_server::{Phase, ServerOptions};
use pi_testkit::sim::{SimDevice, SimOptions};
use serde_json::{Value, json};
use std::sync::Arc;

/// A server of the demo model, all of which is on a simulated device.
fn start(on_loss: OnDeviceLoss, options: ServerOptions) -> (Running, Arc<SimDevice>) {
    let cpu = CpuDevice::new(Kernels::best(), Arc::new(Serial));
    let device = Arc::new(SimDevice::new(Arc::new(cpu), SimOptions::default()).unwrap());
    let plan = Plan::whole(demo().config(), Side::Accelerator);
    let builder = Engine::builder().threads(1).on_device_loss(on_loss).accelerator(device.clone(), plan);
    let running = start_with(options, move || Ok(loaded(builder.open(demo_path()).unwrap())));
    running.ready();
    (running, device)
}

fn request() -> Value {
    json!({"model": "demo", "prompt": common::PROMPT, "max_tokens": 12, "temperature": 0})
}

fn text(server: &Running) -> String {
    server.post("/v1/completions", &request()).ok()["choices"][0]["text"].as_str().unwrap().into()
}

#[test]
fn where_the_cpu_goes_on_health_is_good_and_says_so() {
    let (server, device) = start(OnDeviceLoss::Cpu, options());
    let metric = |server: &Running, line: &str| server.get("/metrics").text.lines().any(|l| l == line);
    let want = text(&server);
    assert_eq!(server.get("/health").ok(), json!({"status": "ok"}));
    assert!(metric(&server, "pi_device_lost 0"));
    device.lose_after(3);
    for _ in 0..2 {
        assert_eq!(text(&server), want);
        assert_eq!(server.get("/health").ok(), json!({"status": "ok", "device_lost": true}));
    }
    assert!(metric(&server, "pi_device_lost 1") && metric(&server, "pi_ready 1"));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let said = runtime.block_on(server.server.device_lost());
    assert!(said.contains("sim:0"), "{said}");
}

#[test]
fn where_it_is_not_to_everybody_is_told_and_health_is_not_good() {
    let (server, device) = start(OnDeviceLoss::Error, ServerOptions { parallel: 2, ..options() });
    text(&server);
    device.lose_after(3);
    // two that have a slot, and some that wait
    std::thread::scope(|scope| {
        let all = [(); 5].map(|()| scope.spawn(|| server.post("/v1/completions", &request())));
        for reply in all.map(|one| one.join().unwrap()) {
            reply.refused(503);
            assert!(reply.text.contains("not running"), "{}", reply.text);
        }
    });
    until("it is known", || server.get("/health").status == 503);
    let Phase::Failed(why) = server.server.phase() else { panic!("{:?}", server.server.phase()) };
    assert!(why.starts_with("the accelerator was lost: ") && why.contains("sim:0"), "{why}");
    let health = server.get("/health");
    health.refused(503);
    assert!(!health.text.contains("sim:0"), "what exactly is not for everybody: {}", health.text);
    server.post("/v1/completions", &request()).refused(503);
    assert!(server.get("/metrics").text.contains("\npi_requests_running 0\n"));
}
