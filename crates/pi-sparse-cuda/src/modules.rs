//! The kernels: what they are made from, and loading them when the first of a file is needed.

use crate::{KernelSource, Unavailable};
use cudarc::{
    driver::{CudaContext, CudaFunction, CudaModule, DriverError},
    nvrtc::{self, CompileError, CompileOptions, Ptx},
};
use std::{collections::HashMap, sync::Arc};

/// A file of kernels, and what `scripts/ptx` made of it.
struct Source {
    name: &'static str,
    text: &'static str,
    ptx: &'static str,
}

macro_rules! source {
    ($name:literal) => {
        Source {
            name: concat!($name, ".cu"),
            text: include_str!(concat!("../kernels/", $name, ".cu")),
            ptx: include_str!(concat!("../ptx/", $name, ".ptx")),
        }
    };
}

const FILES: usize = 5;

static SOURCES: [Source; FILES] =
    [source!("linear"), source!("norm"), source!("attention"), source!("ffn"), source!("predictor")];

/// The PTX of all files.
#[cfg(test)]
pub(crate) fn shipped() -> impl Iterator<Item = &'static str> {
    SOURCES.iter().map(|s| s.ptx)
}

/// What the files include, each after what it includes itself.
const HEADERS: [(&str, &str); 3] = [
    ("pi.cuh", include_str!("../kernels/pi.cuh")),
    ("types.cuh", include_str!("../kernels/types.cuh")),
    ("tile.cuh", include_str!("../kernels/tile.cuh")),
];

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
        let entry = format!(".entry {name}(");
        let i = SOURCES.iter().position(|s| s.ptx.contains(&entry)).ok_or(Missing::Name)?;
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
        let shipped = || Ptx::from_src(source.ptx);
        if self.from == KernelSource::Shipped {
            return context.load_module(shipped());
        }
        let (major, minor) = context.compute_capability()?;
        let made = compile(source, major, minor)
            .and_then(|ptx| context.load_module(ptx).map_err(|e| format!("the driver refuses it: {:?}", e.0)));
        match made {
            Ok(module) => Ok(module),
            Err(why) => {
                self.note = Some(format!("{}: the shipped PTX is used, {why}", source.name));
                context.load_module(shipped())
            }
        }
    }
}

/// The PTX of a file for the chip at hand, or why there is none. [`crate::probe::compiler`] was asked before.
fn compile(source: &Source, major: i32, minor: i32) -> Result<Ptx, String> {
    let options = CompileOptions {
        name: Some(source.name.into()),
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
    fn kernels_have_one_file_each() {
        let entries = |s: &Source| -> Vec<String> {
            s.ptx.lines().filter_map(|l| Some(l.split_once(".entry ")?.1.split_once('(')?.0.to_string())).collect()
        };
        let mut all: Vec<String> = SOURCES.iter().flat_map(entries).collect();
        let n = all.len();
        all.sort();
        all.dedup();
        assert!(n > 100 && all.len() == n, "{n} kernels of {} names", all.len());
    }

    #[test]
    fn no_kernel_was_compiled_with_fast_math() {
        // divisions and roots that are not rounded, arithmetic that takes small numbers for 0
        let fast = ["div.full", "div.approx", "sqrt.approx", "fma.rn.ftz", "mul.ftz", "add.ftz"];
        for source in &SOURCES {
            assert_eq!(fast.into_iter().find(|word| source.ptx.contains(word)), None, "{}", source.name);
        }
        let text: String = SOURCES.iter().map(|s| s.ptx).collect();
        assert!(
            text.contains("div.rn.f32") && text.contains("sqrt.rn.f32"),
            "divisions and roots are found by these names"
        );
    }
}
