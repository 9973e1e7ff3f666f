//! Opens any bytes as a model, and reads everything from those that open.
//!
//! `cargo +nightly fuzz run gguf_open -- -rss_limit_mb=512 -max_len=65536`; small real files make good seeds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pi_gguf::{File, NeuronIndex};

fuzz_target!(|bytes: &[u8]| {
    let Ok(file) = File::from_bytes(bytes.to_vec(), "fuzz.gguf") else { return };
    for (key, value) in file.metadata().iter() {
        assert_eq!(file.metadata().value(key).map(|found| found.ty()), Some(value.ty()));
        let _ = (value.to_string(), value.to::<Vec<f32>>(), value.to::<Vec<&str>>());
    }
    let mut total = 0;
    for tensor in file.tensors() {
        assert_eq!(file.tensor(tensor.name()).map(|found| found.range()), Some(tensor.range()));
        let row = tensor.cols() / tensor.ty().block_len() * tensor.ty().block_bytes();
        assert_eq!(row * tensor.rows(), tensor.data().len());
        total += tensor.data().len();
    }
    assert!(total <= bytes.len(), "tensors have more bytes than the file");
    let _ = NeuronIndex::from_file(&file);
});
