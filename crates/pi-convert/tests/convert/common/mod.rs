//! Small models, and comparing them.
#![allow(dead_code)] // not every test uses everything

use pi_gguf::{Builder, File, Kind};

/// A model in the making: every tensor is of floats.
pub struct Model {
    pub builder: Builder,
    tensors: Vec<(String, Vec<u8>)>,
}

impl Model {
    pub fn new(kind: Kind, architecture: &str) -> Self {
        let mut builder = Builder::new(kind);
        builder.set("general.architecture", architecture).unwrap();
        Self { builder, tensors: Vec::new() }
    }

    /// Adds a tensor whose numbers are given by their index. Dimensions in the format's order.
    pub fn add(&mut self, name: &str, dims: &[usize], number: impl Fn(usize) -> f32) {
        self.builder.tensor(name, pi_core::QuantType::F32, dims).unwrap();
        let count: usize = dims.iter().product();
        self.tensors.push((name.into(), (0..count).flat_map(|i| number(i).to_le_bytes()).collect()));
    }

    pub fn file(self) -> File {
        let mut writer = self.builder.start(Vec::new()).unwrap();
        for (name, bytes) in &self.tensors {
            writer.write(name, bytes).unwrap();
        }
        File::from_bytes(writer.finish().unwrap(), "model.gguf").unwrap()
    }
}

/// The numbers of a tensor.
pub fn decoded(file: &File, name: &str) -> Vec<f32> {
    let tensor = file.require_tensor(name).unwrap();
    let mut numbers = vec![0.0; tensor.rows() * tensor.cols()];
    (tensor.quant().unwrap().info().decode)(tensor.data(), &mut numbers);
    numbers
}

/// Asserts that both files have the same tensors: names, types, shapes, bytes. Their order may differ.
pub fn same_tensors(a: &File, b: &File) {
    let names = |file: &File| {
        let mut names: Vec<_> = file.tensors().map(|t| t.name().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(a), names(b));
    for x in a.tensors() {
        let y = b.require_tensor(x.name()).unwrap();
        assert_eq!((x.ty(), x.dims()), (y.ty(), y.dims()), "{}", x.name());
        assert!(x.data() == y.data(), "the bytes of {} differ", x.name());
    }
}

/// What went wrong.
pub fn error<T>(result: pi_convert::Result<T>) -> String {
    result.err().expect("an error").to_string()
}
