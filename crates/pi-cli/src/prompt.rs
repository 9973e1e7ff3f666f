//! The bytes of a prompt, and its tokens.

use crate::{
    failure::{Failure, Result},
    flags::RunFlags,
};
use pi_engine::{Engine, pi_core::text::TokenId};
use std::{borrow::Cow, fs, io::Read, path::Path};

/// The prompt that the options name, as bytes: it need not be UTF-8.
///
/// # Errors
/// If its file cannot be read, or escapes are wanted where there can be none.
pub fn bytes(flags: &RunFlags) -> Result<Cow<'_, [u8]>> {
    if flags.escape && flags.prompt.is_none() && flags.reverse_prompt.is_empty() {
        return Err(Failure::Usage("--escape has nothing to act on: it is for --prompt and --reverse-prompt".into()));
    }
    match (&flags.prompt, &flags.file) {
        (Some(text), _) if flags.escape => Ok(unescape(text.as_encoded_bytes()).into()),
        (Some(text), _) => Ok(text.as_encoded_bytes().into()),
        (None, Some(path)) => {
            let mut text = read(path)?;
            text.pop_if(|&mut last| last == b'\n');
            Ok(text.into())
        }
        (None, None) => Ok(Cow::Borrowed(&[])),
    }
}

/// No context holds more text than this; what is longer (a device, the wrong file) is not read to its end.
const LONGEST: u64 = 1 << 28;

/// A text's bytes.
///
/// # Errors
/// If the file cannot be read, or is longer than any text.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |e: String| Failure::Work(format!("{}: cannot read: {e}", path.display()));
    let mut text = Vec::new();
    let file = fs::File::open(path).map_err(|e| failed(e.to_string()))?;
    file.take(LONGEST + 1).read_to_end(&mut text).map_err(|e| failed(e.to_string()))?;
    match text.len() as u64 > LONGEST {
        true => Err(failed(format!("expected a text of at most {LONGEST} bytes, got more"))),
        false => Ok(text),
    }
}

/// The stop strings that the options name.
///
/// # Errors
/// If escapes make one that is not UTF-8.
pub fn stops(flags: &RunFlags) -> Result<Vec<String>> {
    let stop = |text: &String| match flags.escape {
        true => String::from_utf8(unescape(text.as_bytes()))
            .map_err(|_| Failure::value(text, "--reverse-prompt <TEXT>", "its escapes do not make UTF-8")),
        false => Ok(text.clone()),
    };
    flags.reverse_prompt.iter().map(stop).collect()
}

/// The prompt's tokens. Where there is no text, the token that begins one.
///
/// # Errors
/// If the vocabulary has no tokens for the text, or there is no text and no token that begins one.
pub fn tokens(engine: &Engine, text: &[u8], path: &Path) -> Result<Vec<TokenId>> {
    let mut ids = engine.encode_prompt(text).map_err(|e| Failure::engine(&e, path))?;
    if text.is_empty() {
        ids.clear();
        ids.extend(engine.tokenizer().special().bos);
    }
    if ids.is_empty() {
        let path = path.display();
        return Err(Failure::Work(format!(
            "{path}: the prompt is empty, and the vocabulary has no begin-of-text token to start from instead"
        )));
    }
    Ok(ids)
}

/// llama.cpp's escapes: `\n`, `\r`, `\t`, `\'`, `\"`, `\\` and `\xHH` for one byte; any other backslash stands for itself.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let digit = |d: u8| (d as char).to_digit(16).map(|d| d as u8);
        let (byte, used) = match (first, tail) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [c @ (b'\'' | b'"' | b'\\'), ..]) => (*c, 2),
            (b'\\', [b'x', a, b, ..]) => match (digit(*a), digit(*b)) {
                (Some(a), Some(b)) => (a * 16 + b, 4),
                _ => (b'\\', 1),
            },
            (c, _) => (*c, 1),
        };
        out.push(byte);
        rest = &rest[used..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_those_of_llama_cpp_and_other_backslashes_stay() {
        for (text, want) in [
            (r#"a\nb\t\r\'\"\\n"#, &b"a\nb\t\r'\"\\n"[..]),
            (r"\xe6\xa8\xA1", "模".as_bytes()),
            (r"\xff\x0", b"\xff\\x0"),
            (r"C:\dir\xyz\", br"C:\dir\xyz\"),
            ("", b""),
        ] {
            assert_eq!(unescape(text.as_bytes()), want, "{text}");
        }
    }
}
