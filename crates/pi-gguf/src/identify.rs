//! What a file is, from its first bytes: people pass all kinds of files where a model is wanted.

use std::fmt;

/// How many bytes of a file [`identify`] wants to see. More do no harm; with fewer it may know less.
pub const IDENTIFY_LEN: usize = 512;

/// What a file is. Its [`Display`](fmt::Display) form is a noun phrase with advice, made for an error message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// GGUF, little endian.
    Gguf,
    /// GGUF as PowerInfer writes it for models with neuron data: the magic is `PWRI`.
    PowerInfer,
    /// GGUF for big endian machines.
    GgufBigEndian,
    /// A format of before GGUF; the name is its magic.
    OldGgml(&'static str),
    /// Hugging Face safetensors.
    Safetensors,
    /// A PyTorch checkpoint (a zip archive with a pickle in it).
    PyTorch,
    /// A pickle that is not in a zip archive, as old PyTorch checkpoints are.
    Pickle,
    /// Another zip archive.
    Zip,
    /// A compressed file or archive; the name is the compression's.
    Compressed(&'static str),
    /// HDF5, as Keras writes it.
    Hdf5,
    /// A web page, most often a download that ended at a login form or an error message.
    Html,
    /// JSON: a configuration, an index of shards or an error message.
    Json,
    /// The small text file that stands for a large one in git.
    GitLfsPointer,
    /// No bytes at all.
    Empty,
    /// A folder. Never the answer of [`identify`], which only sees bytes.
    Directory,
    /// A pipe, socket or device. Never the answer of [`identify`].
    SpecialFile,
    /// Something else; the first four bytes (zeros where there are fewer).
    Unknown([u8; 4]),
}

/// What a file is that begins with `head` (the whole file, or its first [`IDENTIFY_LEN`] bytes).
///
/// ```
/// use pi_gguf::{Format, identify};
/// assert_eq!(identify(b"PWRI\x03\0\0\0"), Format::PowerInfer);
/// assert_eq!(identify(b"<!DOCTYPE html><html>"), Format::Html);
/// ```
pub fn identify(head: &[u8]) -> Format {
    let four: [u8; 4] = std::array::from_fn(|i| head.get(i).copied().unwrap_or(0));
    match &four {
        _ if head.is_empty() => return Format::Empty,
        b"GGUF" | b"PWRI" if is_swapped_version(head) => return Format::GgufBigEndian,
        b"GGUF" => return Format::Gguf,
        b"PWRI" => return Format::PowerInfer,
        b"FUGG" => return Format::GgufBigEndian,
        // These magics were written as little endian numbers, so that the letters stand in reverse.
        b"lmgg" => return Format::OldGgml("GGML"),
        b"fmgg" => return Format::OldGgml("GGMF"),
        b"tjgg" => return Format::OldGgml("GGJT"),
        b"algg" => return Format::OldGgml("GGLA"),
        b"nsgg" => return Format::OldGgml("GGSN"),
        b"PK\x03\x04" => return if contains(head, b"data.pkl") { Format::PyTorch } else { Format::Zip },
        b"\x28\xb5\x2f\xfd" => return Format::Compressed("zstd"),
        b"\xfd7zX" => return Format::Compressed("xz"),
        b"7z\xbc\xaf" => return Format::Compressed("7z"),
        b"\x89HDF" => return Format::Hdf5,
        [0x1f, 0x8b, ..] => return Format::Compressed("gzip"),
        [b'B', b'Z', b'h', b'1'..=b'9'] => return Format::Compressed("bzip2"),
        [0x80, 2..=5, ..] => return Format::Pickle,
        _ => {}
    }
    if head.starts_with(b"version https://git-lfs") || head.starts_with(b"version https://hawser") {
        return Format::GitLfsPointer;
    }
    if is_safetensors(head) {
        return Format::Safetensors;
    }
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    if ["<!doctype", "<html", "<head", "<body", "<?xml", "<!--"].iter().any(|tag| starts_with_any_case(text, tag)) {
        return Format::Html;
    }
    match text {
        [b'{' | b'[', ..] => Format::Json,
        _ => Format::Unknown(four),
    }
}

/// True if the version of a GGUF file is a small number read the wrong way round.
pub(crate) fn is_swapped_version(head: &[u8]) -> bool {
    match head.get(4..8) {
        Some(&[a, b, c, d]) => a == 0 && b == 0 && (c > 0 || d > 0),
        _ => false,
    }
}

/// Safetensors begin with the length of a JSON object (a little endian u64), and the object.
fn is_safetensors(head: &[u8]) -> bool {
    let Some((len, rest)) = head.split_first_chunk::<8>() else { return false };
    let len = u64::from_le_bytes(*len);
    rest.first() == Some(&b'{') && (2..=1 << 30).contains(&len)
}

fn starts_with_any_case(text: &[u8], tag: &str) -> bool {
    text.get(..tag.len()).is_some_and(|start| start.eq_ignore_ascii_case(tag.as_bytes()))
}

fn contains(head: &[u8], word: &[u8]) -> bool {
    head.windows(word.len()).any(|window| window == word)
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gguf => write!(f, "a GGUF file"),
            Self::PowerInfer => write!(f, "a PowerInfer GGUF file"),
            Self::GgufBigEndian => write!(f, "a big endian GGUF file, which is not supported"),
            Self::OldGgml(magic) => {
                write!(f, "a {magic} file, a format older than GGUF (convert it, or download it anew)")
            }
            Self::Safetensors => write!(f, "a safetensors file (convert it to GGUF first)"),
            Self::PyTorch => write!(f, "a PyTorch checkpoint (convert it to GGUF first)"),
            Self::Pickle => write!(f, "a Python pickle, perhaps an old PyTorch checkpoint (convert it to GGUF first)"),
            Self::Zip => write!(f, "a zip archive (unpack it first)"),
            Self::Compressed(name) => write!(f, "a file compressed with {name} (unpack it first)"),
            Self::Hdf5 => write!(f, "an HDF5 file (convert it to GGUF first)"),
            Self::Html => write!(f, "a web page (the download probably ended at a login or error page)"),
            Self::Json => write!(f, "a JSON file"),
            Self::GitLfsPointer => {
                write!(f, "a git LFS pointer instead of the file it stands for (run `git lfs pull`)")
            }
            Self::Empty => write!(f, "an empty file"),
            Self::Directory => write!(f, "a directory (name a file in it)"),
            Self::SpecialFile => write!(f, "a pipe or device"),
            Self::Unknown(four) => write!(f, "a file that begins with \"{}\"", four.escape_ascii()),
        }
    }
}
