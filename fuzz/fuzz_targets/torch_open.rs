//! Opens any bytes as a PyTorch file and as a bare pickle, and reads every tensor of those that open.
//!
//! `cargo +nightly fuzz run torch_open -- -rss_limit_mb=512 -max_len=65536`; small real files make good seeds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pi_convert::{TorchFile, pickle::Pickle};

fuzz_target!(|bytes: &[u8]| {
    // Most of what is not an archive is refused at once: the pickle reader is tried by itself as well.
    if let Ok(pickle) = Pickle::parse(bytes) {
        let _ = pickle.tensors();
    }
    let Ok(file) = TorchFile::from_bytes(bytes.to_vec(), "fuzz.pt") else { return };
    for (_, tensor) in file.tensors() {
        if let Ok(numbers) = file.read(tensor) {
            assert_eq!(numbers.len(), tensor.len());
        }
    }
});
