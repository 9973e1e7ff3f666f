//! Made-up vocabularies: bytes, and all words of a few letters.

use super::{error::Result, shape::Family};
use pi_gguf::Builder;

/// Tokens before the bytes, in every vocabulary.
const SPM_SPECIAL: [&str; 3] = ["<unk>", "<s>", "</s>"];
const BPE_SPECIAL: [&str; 2] = ["<s>", "</s>"];
/// Fewest tokens: special ones, bytes, and one that a merge makes.
pub(super) const LEAST: usize = 260;

/// What the model needs to know of its vocabulary.
#[derive(Clone, Copy)]
pub(super) struct Vocab {
    /// Begin of text.
    pub bos: usize,
    /// Special tokens are the first of all. None of them is to be generated.
    pub special: usize,
}

impl Vocab {
    pub fn of(family: Family) -> Self {
        match is_spm(family) {
            true => Self { bos: 1, special: SPM_SPECIAL.len() },
            false => Self { bos: 0, special: BPE_SPECIAL.len() },
        }
    }
}

fn is_spm(family: Family) -> bool {
    matches!(family, Family::Llama | Family::Bamboo)
}

/// All words of lower-case letters, the shorter first; each once as it is and once behind `space`.
fn words(space: char) -> impl Iterator<Item = String> {
    (1u32..).flat_map(|len| (0..26u32.saturating_pow(len)).map(move |n| (len, n))).flat_map(move |(len, n)| {
        let letter = |place: u32| char::from(b'a' + (n / 26u32.pow(place) % 26) as u8);
        let word: String = (0..len).rev().map(letter).collect();
        [format!("{space}{word}"), word]
    })
}

/// The keys of the vocabulary.
pub(super) fn set(b: &mut Builder, family: Family, size: usize) -> Result<()> {
    let special = Vocab::of(family).special;
    let kind = |i: usize| if i < special { 3 } else { 1 };
    let mut kinds: Vec<i32> = (0..size).map(kind).collect();
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    if is_spm(family) {
        kinds[0] = 2; // unknown
        kinds[special..special + 256].fill(6); // bytes
        let bytes = (0..256).map(|i| format!("<0x{i:02X}>"));
        let letters = std::iter::once("\u{2581}".to_string()).chain(words('\u{2581}'));
        let tokens = SPM_SPECIAL.into_iter().map(String::from).chain(bytes).chain(letters).take(size);
        // The longer a word, the better its score, so that texts become few tokens; within a length the order does not matter.
        let tokens: Vec<_> = tokens.collect();
        let scores: Vec<f32> = tokens.iter().map(|t| t.chars().count() as f32).collect();
        b.set(&key("model"), "llama")?;
        b.set_strings(&key("tokens"), &tokens)?;
        b.set_array(&key("scores"), &scores)?;
        b.set_array(&key("token_type"), &kinds)?;
        b.set(&key("bos_token_id"), 1u32)?;
        b.set(&key("eos_token_id"), 2u32)?;
        b.set(&key("unknown_token_id"), 0u32)?;
        return Ok(());
    }
    let bytes = alphabet();
    let space = bytes[usize::from(b' ')];
    let whole = bytes.iter().map(char::to_string);
    // Single letters are bytes already.
    let new = || words(space).filter(|w| w.chars().count() > 1).take(size - special - bytes.len());
    let tokens = BPE_SPECIAL.into_iter().map(String::from).chain(whole).chain(new());
    let merges = new().map(|word| {
        let last = word.char_indices().next_back().map_or(0, |(at, _)| at);
        format!("{} {}", &word[..last], &word[last..])
    });
    b.set(&key("model"), "gpt2")?;
    b.set(&key("pre"), if family == Family::Falcon { "falcon" } else { "gpt-2" })?;
    b.set_strings(&key("tokens"), tokens)?;
    b.set_array(&key("token_type"), &kinds)?;
    b.set_strings(&key("merges"), merges)?;
    b.set(&key("bos_token_id"), 0u32)?;
    b.set(&key("eos_token_id"), 1u32)?;
    b.set(&key("add_bos_token"), true)?;
    Ok(())
}

/// The characters that stand for bytes in vocabularies of GPT-2's kind: printable ones for themselves, the others from U+0100.
fn alphabet() -> [char; 256] {
    let mut next = 0x100;
    std::array::from_fn(|byte| match byte as u32 {
        c @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => char::from(c as u8),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or(' ')
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pi_gguf::{Array, File, Kind};
    use std::collections::HashSet;

    fn strings(file: &File, key: &str) -> Vec<String> {
        let array: Array<'_> = file.metadata().require(key).unwrap();
        array.iter().map(|v| v.to::<&str>().unwrap().to_string()).collect()
    }

    #[test]
    fn a_vocabulary_has_as_many_different_tokens_as_asked_and_every_merge_makes_one() {
        for family in Family::ALL {
            for size in [LEAST, 1000, 65024] {
                let mut b = Builder::new(Kind::Gguf);
                set(&mut b, family, size).unwrap();
                let file = File::from_bytes(b.start(Vec::new()).unwrap().finish().unwrap(), "vocab").unwrap();
                let tokens = strings(&file, "tokenizer.ggml.tokens");
                let set: HashSet<&str> = tokens.iter().map(String::as_str).collect();
                assert_eq!((tokens.len(), set.len()), (size, size), "{family}");
                if !is_spm(family) {
                    let merges = strings(&file, "tokenizer.ggml.merges");
                    assert!(!merges.is_empty());
                    for merge in merges {
                        let (left, right) = merge.split_once(' ').unwrap();
                        assert!([left, right, &format!("{left}{right}")].iter().all(|t| set.contains(t)), "{merge}");
                    }
                }
            }
        }
    }
}
