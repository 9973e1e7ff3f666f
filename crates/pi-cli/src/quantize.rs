//! `pi quantize`: writes a model with other number types.

use crate::{
    failure::{Failure, Result},
    writing::{check_output, quant_type, write},
};
use clap::{Args, ValueHint, value_parser};
use pi_convert::{FileType, QuantizeOptions};
use pi_engine::{pi_core::QuantType, pi_gguf::File};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// The options of `pi quantize`.
#[derive(Args, Debug)]
pub struct QuantizeFlags {
    /// The model, the file to write [default: the model's name with the type], and the kind of file: F32, F16, BF16, Q4_0, Q4_1,
    /// Q5_0, Q5_1, Q8_0, Q2_K, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S, Q4_K_M, Q5_K_S, Q5_K_M, Q6_K, IQ4_NL, IQ4_XS, or COPY
    #[arg(value_names = ["MODEL", "OUT", "TYPE"], num_args = 2..=3, required = true, value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Store down matrices neuron by neuron, so that the rows of neurons that do not fire can be skipped
    #[arg(long)]
    transpose_down: bool,
    /// Type of the predictors' matrices [default: Q4_0 if TYPE is Q4_0, else Q5_0]
    #[arg(long, value_name = "T", value_parser = quant_type)]
    predictor_type: Option<QuantType>,
    /// Type of output.weight
    #[arg(long, value_name = "T", value_parser = quant_type)]
    output_tensor_type: Option<QuantType>,
    /// Type of token_embd.weight
    #[arg(long, value_name = "T", value_parser = quant_type)]
    token_embedding_type: Option<QuantType>,
    /// The same type for all matrices
    #[arg(long)]
    pure: bool,
    /// Leave output.weight as it is
    #[arg(long)]
    leave_output_tensor: bool,
    /// Quantise matrices that are quantised already: loses more than starting from floats
    #[arg(long)]
    allow_requantize: bool,
    /// Threads [default: as many as cores]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
}

/// Writes a model with other number types.
///
/// # Errors
/// If the type is not known, the model cannot be read, or the file cannot be written.
pub fn quantize(flags: &QuantizeFlags) -> Result {
    let (input, output, ty) = match &flags.files[..] {
        [input, ty] => (input, None, ty),
        [input, output, ty, ..] => (input, Some(output), ty),
        _ => return Err(Failure::Usage("expected MODEL [OUT] TYPE".into())),
    };
    let name = ty.to_string_lossy();
    let ty = match &*name {
        copy if copy.eq_ignore_ascii_case("copy") => None,
        name => Some(name.parse::<FileType>().map_err(|e| Failure::Usage(e.to_string()))?),
    };
    if ty.is_none() {
        refuse_types(flags)?;
    }
    let output = output.cloned().unwrap_or_else(|| beside(input, ty));
    let file = File::open(input).map_err(|e| Failure::Work(e.to_string()))?;
    check_output(&output, (0..file.parts()).filter_map(|i| Some(("the model", file.part_path(i)?))))?;
    let options = QuantizeOptions {
        transpose_down: flags.transpose_down,
        predictor_type: flags.predictor_type,
        output_tensor_type: flags.output_tensor_type,
        token_embedding_type: flags.token_embedding_type,
        pure: flags.pure,
        leave_output_tensor: flags.leave_output_tensor,
        allow_requantize: flags.allow_requantize,
        threads: flags.threads.map(|n| n as usize),
    };
    write(&output, |progress| pi_convert::quantize(&file, &output, ty, &options, Some(progress)))
}

/// A copy keeps its number types: what chooses them would be ignored.
fn refuse_types(flags: &QuantizeFlags) -> Result<()> {
    let given = [
        ("--output-tensor-type", flags.output_tensor_type.is_some()),
        ("--token-embedding-type", flags.token_embedding_type.is_some()),
        ("--predictor-type", flags.predictor_type.is_some()),
        ("--pure", flags.pure),
    ];
    match given.into_iter().find(|(_, given)| *given) {
        Some((flag, _)) => Err(Failure::Usage(format!("{flag} means nothing with COPY, which keeps number types"))),
        None => Ok(()),
    }
}

/// `model.gguf` as Q4_0 is `model.Q4_0.gguf`; what PowerInfer's files have behind their names stays there.
fn beside(input: &Path, ty: Option<FileType>) -> PathBuf {
    let (whole, ends) = (Path::new(input.file_name().unwrap_or_default()), |path: &Path, end| {
        path.extension() == Some(OsStr::new(end))
    });
    let stem = |path: &Path| PathBuf::from(path.file_stem().unwrap_or_default());
    let (name, end) = match whole {
        name if !ends(name, "gguf") => (name.to_owned(), ".gguf"),
        name if ends(&stem(name), "powerinfer") => (stem(&stem(name)), ".powerinfer.gguf"),
        name => (stem(name), ".gguf"),
    };
    // names need not be UTF-8
    let mut name = name.into_os_string();
    name.push(format!(".{}{end}", ty.map_or("COPY", FileType::name)));
    input.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_goes_into_the_name() {
        for (input, ty, output) in [
            ("a/model.gguf", Some(FileType::Q4_0), "a/model.Q4_0.gguf"),
            ("a/x.powerinfer.gguf", Some(FileType::Q4_K_M), "a/x.Q4_K_M.powerinfer.gguf"),
            ("model", None, "model.COPY.gguf"),
            ("a/x.v1.gguf", None, "a/x.v1.COPY.gguf"),
        ] {
            assert_eq!(beside(Path::new(input), ty), Path::new(output));
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_name_that_is_not_utf_8_keeps_its_bytes() {
        use std::os::unix::ffi::OsStrExt;
        let path = |bytes: &'static [u8]| Path::new(OsStr::from_bytes(bytes));
        assert_eq!(beside(path(b"a/m\xff.gguf"), Some(FileType::Q4_0)), path(b"a/m\xff.Q4_0.gguf"));
        assert_eq!(beside(path(b"\xfe.powerinfer.gguf"), None), path(b"\xfe.COPY.powerinfer.gguf"));
    }
}
