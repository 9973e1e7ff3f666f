//! A device from outside: the engine uses what it offers, asks what it supports, and passes on what it reports.

use crate::common::{exact, ids, logits, refusal, same_bits};
use pi_core::{
    Attention, AttentionSpec, Dense, Device, DeviceInfo, Error, FfnWeights, Hidden, LinearSpec, MlpSpec, NeuronSet,
    NormSpec, Predictor, QuantType, Result, SparseFfn,
};
use pi_engine::SessionOptions;
use pi_sparse_cpu::{CpuDevice, Kernels, Pool};
use pi_testkit::TinyModel;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The CPU device behind a name of its own, without `lacking`, and with room for `room` hidden states.
struct Own {
    cpu: CpuDevice,
    lacking: Option<QuantType>,
    room: AtomicUsize,
    asked: AtomicUsize,
}

fn own(lacking: Option<QuantType>, room: usize) -> Arc<Own> {
    let cpu = CpuDevice::new(Kernels::reference(), Arc::new(Pool::new(1).unwrap()));
    Arc::new(Own { cpu, lacking, room: room.into(), asked: 0.into() })
}

impl Device for Own {
    fn info(&self) -> DeviceInfo {
        DeviceInfo { name: "mine:0".into(), detail: "a test".into() }
    }

    fn supports(&self, ty: QuantType) -> bool {
        self.lacking != Some(ty)
    }

    fn hidden(&self, max_tokens: usize, dim: usize) -> Result<Hidden> {
        if self.room.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_err() {
            return Err(Error::Device { device: "mine:0".into(), message: "out of memory".into() });
        }
        self.cpu.hidden(max_tokens, dim)
    }

    fn norm(&self, spec: &NormSpec) -> Result<Arc<dyn Dense>> {
        self.asked.fetch_add(1, Relaxed);
        self.cpu.norm(spec)
    }

    fn linear(&self, spec: &LinearSpec) -> Result<Arc<dyn Dense>> {
        self.asked.fetch_add(1, Relaxed);
        self.cpu.linear(spec)
    }

    fn attention(&self, spec: &AttentionSpec) -> Result<Arc<dyn Attention>> {
        self.asked.fetch_add(1, Relaxed);
        self.cpu.attention(spec)
    }

    fn sparse_ffn(&self, weights: &FfnWeights, neurons: &NeuronSet) -> Result<Arc<dyn SparseFfn>> {
        self.asked.fetch_add(1, Relaxed);
        self.cpu.sparse_ffn(weights, neurons)
    }

    fn mlp(&self, spec: &MlpSpec) -> Result<Arc<dyn Predictor>> {
        self.cpu.mlp(spec)
    }
}

#[test]
fn every_operator_comes_from_the_device() {
    let file = TinyModel::default().file();
    let device = own(None, 1000);
    let engine = exact().device(device.clone()).load(&file).unwrap();
    // Two layers of two norms, attention and FFN; a norm and a head.
    assert_eq!(device.asked.load(Relaxed), 2 * 4 + 2);
    assert_eq!(engine.device().info().name, "mine:0");
    let tokens = ids(9, 1);
    assert!(same_bits(&logits(&engine, &tokens), &logits(&exact().load(&file).unwrap(), &tokens)));
}

#[test]
fn a_type_that_the_device_lacks_is_an_error_with_tensor_type_and_device() {
    for (tied, neuron_major, ty) in [(false, false, QuantType::Q4_0), (true, true, QuantType::F16)] {
        let file = TinyModel { tied, neuron_major, ..TinyModel::wide(ty) }.file();
        let e = refusal(exact().device(own(Some(ty), 1000)), &file).to_string();
        assert!(e.contains("blk.0.attn_q.weight") && e.contains(ty.name()) && e.contains("mine:0"), "{e}");
    }
    // Only the head is of that type.
    let layers = TinyModel { layers: 1, ..TinyModel::wide(QuantType::F32) };
    let (_, mut tensors) = layers.parts().unwrap();
    let mut b = pi_gguf::Builder::new(layers.kind);
    for (key, value) in layers.file().metadata().iter() {
        b.set(key, value).unwrap();
    }
    for m in &mut tensors {
        if m.name() == "output.weight" {
            *m = pi_testkit::requantise(m, QuantType::Q8_0).unwrap();
        }
        let dims = if m.rows() == 1 { vec![m.cols()] } else { vec![m.cols(), m.rows()] };
        b.tensor(m.name(), m.ty(), &dims).unwrap();
    }
    let file = pi_gguf::File::from_bytes(pi_testkit::tiny::write(b, &tensors), "head.gguf").unwrap();
    let e = refusal(exact().device(own(Some(QuantType::Q8_0), 1000)), &file).to_string();
    assert!(e.contains("output.weight") && e.contains("Q8_0") && e.contains("mine:0"), "{e}");
}

#[test]
fn a_device_without_memory_is_an_error_of_the_session() {
    for room in 0..5 {
        let engine = exact().device(own(None, room)).load(&TinyModel::default().file()).unwrap();
        let e = engine.session(&SessionOptions::default()).err().expect("no room").to_string();
        assert!(e.contains("mine:0") && e.contains("out of memory"), "{e}");
    }
    assert!(
        exact()
            .device(own(None, 5))
            .load(&TinyModel::default().file())
            .unwrap()
            .session(&SessionOptions::default())
            .is_ok()
    );
}
