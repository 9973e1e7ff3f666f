//! The kernels: what they are made from, and loading them when the first of a file is needed.

use crate::{KernelSource, Unavailable};
use cudarc::{
    driver::{CudaContext, CudaFunction, CudaModule, DriverError, sys::CUresult},
    nvrtc::{self, CompileError, CompileOptions, Ptx},
};
use flate2::read::GzDecoder;
use std::{
    collections::HashMap,
    io::{self, Read},
    sync::Arc,
};

/// A file of kernels, and what `scripts/ptx` made of it.
struct Source {
    name: &'static str,
    text: &'static str,
    /// PTX, packed, for chips of some compute capability on, as 75 for 7.5; oldest first.
    ptx: &'static [(i32, &'static [u8])],
}

/// Of all drivers that know these kernels, the oldest chip is a Pascal.
pub(crate) const OLDEST: i32 = 61;

macro_rules! source {
    ($name:literal) => {
        source!($name, OLDEST, "")
    };
    ($name:literal $(, $chip:expr, $suffix:literal)+) => {
        Source {
            name: $name,
            text: include_str!(concat!("../kernels/", $name, ".cu")),
            ptx: &[$(($chip, include_bytes!(concat!("../ptx/", $name, $suffix, ".ptx.gz")))),+],
        }
    };
}

const FILES: usize = 7;

static SOURCES: [Source; FILES] = [
    source!("linear"),
    source!("norm"),
    source!("attention"),
    source!("ffn"),
    source!("predictor"),
    source!("tensor", 75, "_75", 80, "_80"),
    source!("tensor_down", 75, "_75", 80, "_80"),
];

/// The kernels of each file, in a line each.
const KERNELS: &str = include_str!("../ptx/KERNELS");

/// What the files include, each after what it includes itself.
const HEADERS: [(&str, &str); 6] = [
    ("pi.cuh", include_str!("../kernels/pi.cuh")),
    ("types.cuh", include_str!("../kernels/types.cuh")),
    ("tile.cuh", include_str!("../kernels/tile.cuh")),
    ("codes.cuh", include_str!("../kernels/codes.cuh")),
    ("tensor.cuh", include_str!("../kernels/tensor.cuh")),
    ("attend.cuh", include_str!("../kernels/attend.cuh")),
];

/// The PTX of all files.
#[cfg(test)]
pub(crate) fn shipped() -> impl Iterator<Item = String> {
    SOURCES.iter().flat_map(|s| s.ptx).map(|(_, packed)| unpacked(packed).expect("our own file"))
}

fn unpacked(packed: &[u8]) -> io::Result<String> {
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text)?;
    Ok(text)
}

impl Source {
    /// The PTX for a chip.
    fn shipped(&self, chip: i32) -> Result<Ptx, DriverError> {
        let fits = self.ptx.iter().rev().find(|(from, _)| *from <= chip);
        let (_, packed) = fits.ok_or(DriverError(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU))?;
        Ok(Ptx::from_src(unpacked(packed).map_err(|_| DriverError(CUresult::CUDA_ERROR_INVALID_PTX))?))
    }
}

/// The place of the file that has a kernel.
fn file_of(kernel: &str) -> Option<usize> {
    let line = KERNELS.lines().find_map(|line| {
        let (file, kernels) = line.split_once(": ")?;
        kernels.split(' ').any(|k| k == kernel).then_some(file)
    })?;
    SOURCES.iter().position(|s| s.name == line)
}

/// Kernels by their names. A driver compiles a file when it is loaded, which takes a while; a model needs two or three of them.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: [Option<Arc<CudaModule>>; FILES],
    kernels: HashMap<String, CudaFunction>,
    from: KernelSource,
    /// Why shipped kernels are used although others were asked for.
    note: Option<String>,
}

/// Why there is no kernel.
pub(crate) enum Missing {
    /// No file has one of this name.
    Name,
    Driver(DriverError),
}

impl From<DriverError> for Missing {
    fn from(e: DriverError) -> Self {
        Self::Driver(e)
    }
}

impl Modules {
    /// None is loaded yet.
    ///
    /// # Errors
    /// If kernels are to be compiled, and the compiler's library is not there.
    pub(crate) fn new(from: KernelSource) -> Result<Self, Unavailable> {
        if from == KernelSource::Nvrtc {
            crate::probe::compiler()?;
        }
        Ok(Self { from, ..Self::default() })
    }

    pub(crate) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Files that were loaded.
    pub(crate) fn count(&self) -> usize {
        self.loaded.iter().flatten().count()
    }

    pub(crate) fn kernel(&mut self, context: &Arc<CudaContext>, name: &str) -> Result<CudaFunction, Missing> {
        if let Some(kernel) = self.kernels.get(name) {
            return Ok(kernel.clone());
        }
        let i = file_of(name).ok_or(Missing::Name)?;
        let module = match &self.loaded[i] {
            Some(module) => module.clone(),
            None => {
                let module = self.load(context, &SOURCES[i])?;
                self.loaded[i].insert(module).clone()
            }
        };
        let kernel = module.load_function(name)?;
        self.kernels.insert(name.into(), kernel.clone());
        Ok(kernel)
    }

    fn load(&mut self, context: &Arc<CudaContext>, source: &Source) -> Result<Arc<CudaModule>, DriverError> {
        let (major, minor) = context.compute_capability()?;
        let shipped = || context.load_module(source.shipped(10 * major + minor)?);
        if self.from == KernelSource::Shipped {
            return shipped();
        }
        let made = compile(source, major, minor)
            .and_then(|ptx| context.load_module(ptx).map_err(|e| format!("the driver refuses it: {:?}", e.0)));
        match made {
            Ok(module) => Ok(module),
            Err(why) => {
                self.note = Some(format!("{}.cu: the shipped PTX is used, {why}", source.name));
                shipped()
            }
        }
    }
}

/// The PTX of a file for the chip at hand, or why there is none. [`crate::probe::compiler`] was asked before.
fn compile(source: &Source, major: i32, minor: i32) -> Result<Ptx, String> {
    let options = CompileOptions {
        name: Some(format!("{}.cu", source.name)),
        options: vec![
            format!("--gpu-architecture=compute_{major}{minor}"),
            "--std=c++17".into(),
            "--fmad=true".into(),
            "--extra-device-vectorization".into(),
        ],
        ..CompileOptions::default()
    };
    nvrtc::compile_ptx_with_opts(whole(source), options).map_err(|e| match e {
        CompileError::CompileError { log, .. } => {
            let log = log.to_string_lossy();
            format!("NVRTC does not compile it: {}", log.lines().next().unwrap_or("it does not say why"))
        }
        other => format!("NVRTC does not compile it: {other:?}"),
    })
}

/// A file with its headers in the places where it includes them first.
fn whole(source: &Source) -> String {
    let mut seen = Vec::new();
    let mut text = String::new();
    include(source.text, &mut seen, &mut text);
    text
}

fn include(from: &str, seen: &mut Vec<&'static str>, to: &mut String) {
    for line in from.lines() {
        let name = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        match name.and_then(|name| HEADERS.iter().find(|h| h.0 == name)) {
            Some((name, text)) => {
                if !seen.contains(name) {
                    seen.push(name);
                    include(text, seen, to);
                }
            }
            None if line.trim() == "#pragma once" => {}
            None => {
                to.push_str(line);
                to.push('\n');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_without_their_headers() {
        for source in &SOURCES {
            let text = whole(source);
            assert!(!text.contains("#include"), "{}", source.name);
            assert_eq!(text.matches("#define WARP 32").count(), 1, "{}", source.name);
        }
    }

    #[test]
    fn kernels_have_one_file_each_and_are_in_its_ptx_for_every_chip() {
        let entries = |ptx: &str| -> Vec<String> {
            ptx.lines().filter_map(|l| Some(l.split_once(".entry ")?.1.split_once('(')?.0.to_string())).collect()
        };
        let mut all = 0;
        for (i, source) in SOURCES.iter().enumerate() {
            for (chip, packed) in source.ptx {
                let names = entries(&unpacked(packed).unwrap());
                assert!(!names.is_empty() && names.iter().all(|n| file_of(n) == Some(i)), "{} {chip}", source.name);
                all += if *chip == source.ptx[0].0 { names.len() } else { 0 };
            }
        }
        assert_eq!(all, KERNELS.lines().map(|l| l.split(' ').count() - 1).sum::<usize>());
        assert!(all > 150, "{all}");
        let error = SOURCES[FILES - 1].shipped(70).err().map(|e| e.0);
        assert_eq!(error, Some(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU), "no tensor cores of that kind");
    }

    // N15
    #[test]
    fn no_kernel_was_compiled_with_fast_math() {
        // divisions and roots that are not rounded, arithmetic that takes small numbers for 0
        let fast = ["div.full", "div.approx", "sqrt.approx", "fma.rn.ftz", "mul.ftz", "add.ftz"];
        let mut rounded = [false; 2];
        for text in shipped() {
            assert_eq!(fast.into_iter().find(|word| text.contains(word)), None);
            rounded[0] |= text.contains("div.rn.f32");
            rounded[1] |= text.contains("sqrt.rn.f32");
        }
        assert_eq!(rounded, [true; 2], "divisions and roots are found by these names");
    }
}
