//! Runs the program, and makes files for it.
#![allow(dead_code)] // no test file uses all of it

use pi_core::QuantType;
use pi_gguf::{Builder, File, Kind, Tensor, TensorType};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Output},
};

pub const PROMPT: &str = "Once upon a time";

/// The demo model.
pub fn demo() -> PathBuf {
    repository("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf")
}

pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The program, untouched by the environment's settings.
pub fn pi() -> Command {
    program(env!("CARGO_BIN_EXE_pi"))
}

pub fn program(path: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(path);
    command.env_remove("PI_ISA").env_remove("PI_MODEL_DIR");
    // What a doctor measured for this user must not matter.
    command.env("PI_CACHE_DIR", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// What a call said, and its exit code.
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

pub fn said(command: &mut Command) -> Said {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said { code: status.code(), out: text(stdout), err: text(stderr) }
}

/// `pi` with these arguments.
pub fn call<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Said {
    said(pi().args(args))
}

/// `pi run` with `line`, split at spaces, before the usual prompt.
pub fn run(line: &str) -> Said {
    call(["run"].into_iter().chain(line.split_whitespace()).chain(["-p", PROMPT]))
}

/// The same, which must succeed, and its JSON object.
pub fn run_json(line: &str) -> serde_json::Value {
    object(&run(&format!("--json {line}")))
}

/// The names of what is in a folder, sorted.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub fn object(said: &Said) -> serde_json::Value {
    assert_eq!(said.code, Some(0), "{}", said.err);
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {:?}", said.out))
}

/// A tensor of a file to be written.
pub struct Made {
    pub ty: TensorType,
    pub data: Vec<u8>,
}

impl Made {
    pub fn copy(tensor: &Tensor<'_>) -> Self {
        Self { ty: tensor.ty(), data: tensor.data().to_vec() }
    }

    /// The tensor in another type.
    pub fn stored_as(tensor: &Tensor<'_>, ty: QuantType) -> Self {
        let decode = tensor.quant().unwrap().info().decode;
        let (mut row, mut data) = (vec![0.0; tensor.cols()], Vec::new());
        for bytes in tensor.data().chunks_exact(tensor.data().len() / tensor.rows()) {
            decode(bytes, &mut row);
            let mut encoded = vec![0; ty.row_bytes(row.len()).unwrap()];
            (ty.info().encode)(&row, &mut encoded);
            data.extend(encoded);
        }
        Self { ty: ty.into(), data }
    }
}

/// The demo model again, at `path`: some keys with another text or left out, and with tensors made by `make`.
pub fn remake(path: &Path, changed: &[(&str, Option<&str>)], make: impl Fn(&Tensor<'_>) -> Made) {
    let file = File::open(demo()).unwrap();
    let mut builder = Builder::new(Kind::Gguf);
    for (key, value) in file.metadata().iter() {
        match changed.iter().find(|(changed, _)| *changed == key) {
            None => builder.set(key, value).unwrap(),
            Some((_, Some(text))) => builder.set(key, *text).unwrap(),
            Some((_, None)) => continue,
        };
    }
    let made: Vec<_> = file.tensors().map(|t| (t, make(&t))).collect();
    for (t, m) in &made {
        builder.tensor(t.name(), m.ty, t.dims()).unwrap();
    }
    let mut writer = builder.create(path).unwrap();
    for (t, m) in &made {
        writer.write(t.name(), &m.data).unwrap();
    }
    writer.finish().unwrap().commit().unwrap();
}
