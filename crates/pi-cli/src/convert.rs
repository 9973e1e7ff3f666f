//! `pi convert`: makes a model file of a Hugging Face checkpoint.

use crate::{
    failure::Result,
    writing::{check_output, write},
};
use clap::{Args, ValueEnum, ValueHint, value_parser};
use pi_convert::ConvertOptions;
use pi_engine::{pi_core::QuantType, pi_gguf::Kind};
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// The options of `pi convert`.
#[derive(Args, Debug)]
pub struct ConvertFlags {
    /// The checkpoint: a folder with config.json, *.safetensors and a tokenizer
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: PathBuf,
    /// The file to write [default: the folder's name with .gguf or .powerinfer.gguf, in the folder]
    #[arg(short, long, visible_alias = "outfile", value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Type of the matrices: f32, f16, bf16, q8_0; auto: bf16 if the checkpoint has that, else f16
    #[arg(long, value_name = "TYPE", default_value = "auto", hide_possible_values = true)]
    outtype: OutType,
    /// Folder with predictors: model_0.pt, model_1.pt, …
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    predictors: Option<PathBuf>,
    /// gguf: ordinary; pwri: PowerInfer's, with down matrices stored neuron by neuron [default: pwri if there are predictors]
    #[arg(long, value_name = "gguf|pwri", hide_possible_values = true)]
    format: Option<Format>,
    /// Store down matrices neuron by neuron in an ordinary file as well
    #[arg(long)]
    transpose_down: bool,
    /// The model's name [default: the folder's]
    #[arg(long, value_name = "NAME")]
    model_name: Option<String>,
    /// How the tokenizer splits text (tokenizer.ggml.pre), if that is not recognised
    #[arg(long, value_name = "NAME")]
    pre: Option<String>,
    /// Threads [default: as many as cores]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum OutType {
    Auto,
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Gguf,
    Pwri,
}

/// Makes a model file of a checkpoint.
///
/// # Errors
/// If the checkpoint is not complete or of a family that is not known, or the file cannot be written.
pub fn convert(flags: &ConvertFlags) -> Result {
    let kind = match (flags.format, &flags.predictors) {
        (Some(Format::Pwri), _) | (None, Some(_)) => Kind::PowerInfer,
        (Some(Format::Gguf), _) | (None, None) => Kind::Gguf,
    };
    let output = flags.output.clone().unwrap_or_else(|| inside(&flags.dir, kind));
    let options = ConvertOptions {
        matrices: match flags.outtype {
            OutType::Auto => None,
            OutType::F32 => Some(QuantType::F32),
            OutType::F16 => Some(QuantType::F16),
            OutType::Bf16 => Some(QuantType::BF16),
            OutType::Q8 => Some(QuantType::Q8_0),
        },
        kind: Some(kind),
        predictors: flags.predictors.clone(),
        transpose_down: flags.transpose_down,
        name: flags.model_name.clone(),
        pre: flags.pre.clone(),
        threads: flags.threads.map(|n| n as usize),
    };
    if output.exists() {
        let read: Vec<_> =
            [Some(&flags.dir), flags.predictors.as_ref()].into_iter().flatten().flat_map(|d| files(d)).collect();
        check_output(&output, read.iter().map(|path| ("a file of the checkpoint", path.as_path())))?;
    }
    write(&output, |progress| pi_convert::convert(&flags.dir, &output, &options, Some(progress)))
}

/// The folder's name, whatever it is made of, in the folder.
fn inside(dir: &Path, kind: Kind) -> PathBuf {
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let mut name = whole.file_name().unwrap_or(OsStr::new("model")).to_owned();
    name.push(if kind == Kind::PowerInfer { ".powerinfer.gguf" } else { ".gguf" });
    dir.join(name)
}

/// The files in a folder, without models: these are made, not read, and may be made again.
fn files(dir: &Path) -> Vec<PathBuf> {
    let model = |path: &PathBuf| path.extension().is_some_and(|end| end == "gguf");
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|path| path.is_file() && !model(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_folder_s_name() {
        assert_eq!(inside(Path::new("a/b.c"), Kind::Gguf), Path::new("a/b.c/b.c.gguf"));
        assert_eq!(inside(Path::new("a/b/"), Kind::PowerInfer), Path::new("a/b/b.powerinfer.gguf"));
        assert_eq!(inside(Path::new("/"), Kind::Gguf), Path::new("/model.gguf"));
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStrExt;
            let path = |bytes: &'static [u8]| Path::new(OsStr::from_bytes(bytes));
            assert_eq!(inside(path(b"a/m\xff"), Kind::Gguf), path(b"a/m\xff/m\xff.gguf"));
        }
    }
}
