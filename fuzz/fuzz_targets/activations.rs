//! Reads any pickle and any numbers as the activations of a layer: the archive around them is sound.
//!
//! `cargo +nightly fuzz run activations -- -rss_limit_mb=512 -max_len=65536`. The first byte says how long the pickle is, in
//! steps of 16; the rest are the numbers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pi_convert::{TorchFile, activations};
use std::io::{Cursor, Write};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

fuzz_target!(|bytes: &[u8]| {
    let Some((&len, rest)) = bytes.split_first() else { return };
    let (pickle, numbers) = rest.split_at(rest.len().min(16 * usize::from(len)));
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, record) in [("a/data.pkl", pickle), ("a/data/0", numbers)] {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        zip.start_file(name, options).expect("a record");
        zip.write_all(record).expect("a record's bytes");
    }
    let archive = zip.finish().expect("an archive").into_inner();
    let Ok(file) = TorchFile::from_bytes(archive, "fuzz.pt") else { return };
    if let Ok(counts) = activations(&file, None) {
        // The tensor cannot have more numbers than the record has bytes.
        assert!(counts.len() <= numbers.len());
    }
});
