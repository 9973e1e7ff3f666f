//! Unsafe code stays in a short list of files, nothing is left unwritten, and no reported fault is without a test.

use pi_testkit::data::test_data;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Every file that may contain unsafe code, and why it must.
const LIST: [(&str, &str); 29] = [
    ("crates/pi-cuda-emu/src/driver.rs", "loads the emulated driver"),
    ("crates/pi-cuda-emu/src/lib.rs", "runs the emulator, which is C++"),
    ("crates/pi-cuda-emu/tests/attention.rs", "runs kernels"),
    ("crates/pi-cuda-emu/tests/emulator.rs", "runs kernels"),
    ("crates/pi-cuda-emu/tests/kernels.rs", "runs kernels"),
    ("crates/pi-engine/tests/engine/common/counting.rs", "a global allocator that counts"),
    ("crates/pi-gguf/src/mmap.rs", "maps model files"),
    ("crates/pi-sparse-cpu/src/arch/x86_64/avx2/attention.rs", "AVX2 instructions, called after asking the CPU"),
    ("crates/pi-sparse-cpu/src/arch/x86_64/avx2/encode.rs", "AVX2 instructions"),
    ("crates/pi-sparse-cpu/src/arch/x86_64/avx2/lanes.rs", "AVX2 loads and stores"),
    ("crates/pi-sparse-cpu/src/arch/x86_64/avx2/mod.rs", "calls AVX2 code after asking the CPU"),
    ("crates/pi-sparse-cpu/src/pool.rs", "lends closures to threads"),
    ("crates/pi-sparse-cpu/src/split.rs", "hands out disjoint parts of an array"),
    ("crates/pi-sparse-cuda/src/array.rs", "copies between host and device in the background"),
    ("crates/pi-sparse-cuda/src/attention.rs", "queues kernels"),
    ("crates/pi-sparse-cuda/src/counts.rs", "copies what kernels count"),
    ("crates/pi-sparse-cuda/src/ffn/run.rs", "queues kernels"),
    ("crates/pi-sparse-cuda/src/gpu.rs", "queues kernels"),
    ("crates/pi-sparse-cuda/src/graphs.rs", "records kernels"),
    ("crates/pi-sparse-cuda/src/linear.rs", "queues kernels"),
    ("crates/pi-sparse-cuda/src/memory.rs", "allocates in the device's memory"),
    ("crates/pi-sparse-cuda/src/norm.rs", "queues kernels"),
    ("crates/pi-sparse-cuda/src/pinned.rs", "memory that the device copies from and to"),
    ("crates/pi-sparse-cuda/src/predictor.rs", "queues kernels"),
    ("crates/pi-sparse-cuda/src/probe.rs", "opens the driver's and the compiler's library"),
    ("crates/pi-sparse-cuda/src/queue.rs", "launches kernels"),
    ("crates/pi-sparse-cuda/src/shared.rs", "copies tables to the device"),
    ("crates/pi-sparse-cuda/src/stub.rs", "opens libraries of the driver's name"),
    ("crates/pi-sparse-cuda/src/upload.rs", "copies weights to the device"),
];

/// All Rust files of the workspace, with their paths from its root.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for top in ["crates", "examples", "benches", "fuzz"] {
        walk(&root.join(top), &mut found);
    }
    found.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).expect("below the root").display().to_string().replace('\\', "/");
        (name, fs::read_to_string(&path).expect("a source file"))
    };
    found.into_iter().map(read).collect()
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            if path.file_name().is_none_or(|n| n != "target") {
                walk(&path, found);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn only_the_files_of_the_list_may_contain_unsafe_code() {
    let all = sources();
    assert!(all.len() > 50, "the sources were not found");
    for lint in ["unsafe_code", "undocumented_unsafe_blocks"] {
        for word in ["allow", "expect", "warn"] {
            let opens = format!("{word}({lint}");
            let files: Vec<&str> = all.iter().filter(|(_, text)| text.contains(&opens)).map(|f| f.0.as_str()).collect();
            let want: Vec<&str> = match (word, lint) {
                ("allow", "unsafe_code") => LIST.iter().map(|f| f.0).collect(),
                _ => Vec::new(),
            };
            assert_eq!(files, want, "files with {opens})");
        }
    }
}

#[test]
fn nothing_is_left_unwritten() {
    for (name, text) in sources() {
        for word in ["todo", "unimplemented", "dbg"] {
            let call = format!("{word}!");
            assert!(!text.contains(&call), "{name} contains {call}");
        }
    }
}

#[test]
fn every_row_about_servers_and_gpus_is_named_at_a_test() {
    let Some(list) = test_data("buglog.md") else { return };
    let list = fs::read_to_string(list).expect("the list");
    let rows = list.lines().filter_map(|line| line.strip_prefix("| ")?.split([' ', '|']).next());
    // sampling and streaming, HTTP, contexts and caches; what GPUs got wrong
    let gpu = ["P03", "P05", "P08", "P13", "P14", "P18", "N06", "N07", "N14", "N15", "G24"];
    let is_row = |id: &str| {
        let server = id.strip_prefix(['S', 'H', 'C']);
        gpu.contains(&id) || server.is_some_and(|n| n.len() == 2 && n.bytes().all(|b| b.is_ascii_digit()))
    };
    let rows: Vec<&str> = rows.filter(|id| is_row(id)).collect();
    assert!(rows.len() > 45, "{rows:?}");
    let all = sources();
    let named = |id: &str| {
        // in a comment, as `// H01, H02` or `// C09: why`
        all.iter().any(|(_, text)| {
            let comments = text.lines().filter_map(|line| Some(line.split_once("// ")?.1));
            comments.flat_map(|comment| comment.split([',', ' ', ':'])).any(|word| word == id)
        })
    };
    let missing: Vec<&&str> = rows.iter().filter(|id| !named(id)).collect();
    assert!(missing.is_empty(), "no test names {missing:?}");
}
