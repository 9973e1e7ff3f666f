//! What can be wrong with a model file, or with a request to write one.

use std::path::PathBuf;

use crate::identify::Format;

/// Result of reading and writing GGUF.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error about a model file. Every variant names the file, and the key or tensor where there is one; names from a file
/// are shown with what does not print escaped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the fields are what the messages say they are
pub enum Error {
    /// The operating system refused something.
    #[error("{}: cannot {action}: {source}", path.display())]
    Io { path: PathBuf, action: &'static str, source: std::io::Error },

    /// The file is something else; [`Format`] says what.
    #[error("{}: expected a GGUF file, got {found}", path.display())]
    NotGguf { path: PathBuf, found: Format },

    /// A version of GGUF that is not read here.
    #[error("{}: GGUF version {version} is not supported, expected 2 or 3", path.display())]
    Version { path: PathBuf, version: u32 },

    /// The file was written for big endian machines.
    #[error("{}: expected a little endian GGUF file, got a big endian one, which is not supported", path.display())]
    BigEndian { path: PathBuf },

    /// The file ends inside its header.
    #[error("{}: truncated: {what} at byte {offset} needs {need} bytes, the file has {left} left", path.display())]
    Truncated { path: PathBuf, what: String, offset: u64, need: u64, left: u64 },

    /// A count that the rest of the file cannot hold. Raised before anything is allocated for it.
    #[error("{}: truncated or damaged: {what} is {count}, but the rest of the file can hold at most {limit}", path.display())]
    Count { path: PathBuf, what: String, count: u64, limit: u64 },

    /// A key or tensor name that cannot be one.
    #[error("{}: name of {what}: expected {expected}, got {got}", path.display())]
    Name { path: PathBuf, what: String, expected: &'static str, got: String },

    /// A key appears twice.
    #[error("{}: key '{}' appears twice", path.display(), key.escape_debug())]
    DuplicateKey { path: PathBuf, key: String },

    /// A tensor appears twice, in one file or in two parts of a split one.
    #[error("{}: tensor '{}' appears twice", path.display(), tensor.escape_debug())]
    DuplicateTensor { path: PathBuf, tensor: String },

    /// A value that is invalid whoever asks for it, so that the file is refused.
    #[error("{}: key '{}': expected {expected}, got {got}", path.display(), key.escape_debug())]
    Value { path: PathBuf, key: String, expected: String, got: String },

    /// A value is not of the type that was asked for, and cannot be converted to it without loss.
    #[error("{}: key '{}': expected {expected}, got {got}", path.display(), key.escape_debug())]
    KeyType { path: PathBuf, key: String, expected: String, got: String },

    /// A key that was required is not there.
    #[error("{}: key '{}' is missing", path.display(), key.escape_debug())]
    MissingKey { path: PathBuf, key: String },

    /// A tensor that was required is not there.
    #[error("{}: tensor '{}' is missing", path.display(), tensor.escape_debug())]
    MissingTensor { path: PathBuf, tensor: String },

    /// A tensor of a type that was removed from the format, or that was never in it.
    #[error("{}: tensor '{}': unsupported tensor type {id}", path.display(), tensor.escape_debug())]
    TensorType { path: PathBuf, tensor: String, id: u32 },

    /// A shape that cannot be stored.
    #[error("{}: tensor '{}': expected {expected}, got {got}", path.display(), tensor.escape_debug())]
    Shape { path: PathBuf, tensor: String, expected: String, got: String },

    /// A tensor's data does not start at a multiple of the file's alignment.
    #[error("{}: tensor '{}': expected an offset that is a multiple of {alignment}, got {offset}", path.display(), tensor.escape_debug())]
    Misaligned { path: PathBuf, tensor: String, alignment: u64, offset: u64 },

    /// A tensor's data is not within the file.
    #[error(
        "{}: tensor '{}' is not within the file bounds: its {size} bytes start at {start}, the file has {len} bytes \
         (is the download complete?)", path.display(), tensor.escape_debug()
    )]
    OutOfBounds { path: PathBuf, tensor: String, start: u64, size: u64, len: u64 },

    /// Two tensors share bytes.
    #[error("{}: tensors '{}' and '{}' overlap", path.display(), first.escape_debug(), second.escape_debug())]
    Overlap { path: PathBuf, first: String, second: String },

    /// The parts of a split file do not belong together.
    #[error("{}: split file: expected {expected}, got {got}", path.display())]
    Split { path: PathBuf, expected: String, got: String },

    /// A part of a split file is not there.
    #[error("{}: is part of a model in {count} files, and part {part} is missing: expected it at {}", path.display(), missing.display())]
    MissingPart { path: PathBuf, missing: PathBuf, part: u32, count: u32 },

    /// Parts of a split file were joined with `cat`, which does not make a GGUF file.
    #[error(
        "{}: split.count says that the model is in {count} files, and another GGUF file follows the first inside this one: \
         parts must not be joined with `cat`; keep them side by side under their own names (…-00001-of-{count:05}.gguf) and \
         name any of them, or merge them with a tool that rewrites the header", path.display()
    )]
    Concatenated { path: PathBuf, count: u32 },

    /// The file does not fit in memory (or in this machine's address space).
    #[error("{}: cannot hold {bytes} bytes in memory", path.display())]
    Memory { path: PathBuf, bytes: u64 },

    /// A request to the writer that would not give a valid file.
    #[error("cannot write {what}: expected {expected}, got {got}")]
    Unwritable { what: String, expected: String, got: String },

    /// Writing failed.
    #[error("cannot write: {0}")]
    Write(#[from] std::io::Error),
}
