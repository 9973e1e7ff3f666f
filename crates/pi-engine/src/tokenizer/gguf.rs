//! Reads a vocabulary from GGUF metadata.

use pi_core::text::{TokenId, TokenKind};
use pi_gguf::{Array, Metadata, Text};

use super::error::VocabError;
use super::vocab::{SpecialIds, Texts, Vocab, VocabModel};

pub(super) const TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const SCORES: &str = "tokenizer.ggml.scores";
pub(super) const KINDS: &str = "tokenizer.ggml.token_type";
pub(super) const MERGES: &str = "tokenizer.ggml.merges";
pub(super) const BOS: &str = "tokenizer.ggml.bos_token_id";
pub(super) const EOS: &str = "tokenizer.ggml.eos_token_id";
pub(super) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(super) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";

/// One special token's key and the field it fills.
type IdField = (&'static str, fn(&mut SpecialIds) -> &mut Option<TokenId>);

/// The keys of special tokens. Where two keys fill one field, the later one wins.
pub(super) const IDS: &[IdField] = &[
    (BOS, |ids| &mut ids.bos),
    (EOS, |ids| &mut ids.eos),
    ("tokenizer.ggml.eot_token_id", |ids| &mut ids.eot),
    ("tokenizer.ggml.eom_token_id", |ids| &mut ids.eom),
    ("tokenizer.ggml.unknown_token_id", |ids| &mut ids.unk),
    ("tokenizer.ggml.seperator_token_id", |ids| &mut ids.sep), // sic: the key is misspelt in published files
    ("tokenizer.ggml.padding_token_id", |ids| &mut ids.pad),
    ("tokenizer.ggml.mask_token_id", |ids| &mut ids.mask),
    ("tokenizer.ggml.fim_pre_token_id", |ids| &mut ids.fim_prefix),
    ("tokenizer.ggml.fim_suf_token_id", |ids| &mut ids.fim_suffix),
    ("tokenizer.ggml.fim_mid_token_id", |ids| &mut ids.fim_middle),
    ("tokenizer.ggml.fim_pad_token_id", |ids| &mut ids.fim_pad),
    ("tokenizer.ggml.fim_rep_token_id", |ids| &mut ids.fim_repo),
    ("tokenizer.ggml.fim_sep_token_id", |ids| &mut ids.fim_file),
    ("tokenizer.ggml.prefix_token_id", |ids| &mut ids.fim_prefix),
    ("tokenizer.ggml.suffix_token_id", |ids| &mut ids.fim_suffix),
    ("tokenizer.ggml.middle_token_id", |ids| &mut ids.fim_middle),
];

impl Vocab {
    /// The vocabulary of a file.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, VocabError> {
        let text = |key| -> Result<Option<String>, VocabError> {
            Ok(metadata.get::<Text<'_>>(key)?.map(|text| text.to_string_lossy().into_owned()))
        };
        let name = metadata.require::<Text<'_>>("tokenizer.ggml.model")?;
        let model = match name.as_bytes() {
            b"llama" => VocabModel::Spm,
            b"gpt2" => VocabModel::Bpe,
            _ => return Err(VocabError::UnknownModel { model: name.to_string_lossy().into_owned() }),
        };
        let mut vocab = Self::new::<&[u8]>(model, []);
        vocab.tokens = texts(TOKENS, metadata.require(TOKENS)?)?;
        if let Some(merges) = metadata.get(MERGES)? {
            vocab.merges = texts(MERGES, merges)?;
        }
        if let Some(scores) = metadata.get::<Array<'_>>(SCORES)? {
            vocab.scores = scores
                .iter()
                .enumerate()
                .map(|(index, value)| {
                    let number = value.to::<f32>().or_else(|| value.as_integer().map(|x| x as f32));
                    number.ok_or(VocabError::Element { key: SCORES, index, expected: "a number" })
                })
                .collect::<Result<_, _>>()?;
        }
        if let Some(kinds) = metadata.get::<Array<'_>>(KINDS)? {
            vocab.kinds = kinds
                .iter()
                .enumerate()
                .map(|(index, value)| {
                    let number = value.as_integer();
                    number.map(kind).ok_or(VocabError::Element { key: KINDS, index, expected: "an integer" })
                })
                .collect::<Result<_, _>>()?;
        }
        let len = vocab.tokens.len();
        for &(key, field) in IDS {
            let Some(value) = metadata.value(key) else { continue };
            let id = value.as_integer().ok_or(VocabError::Element { key, index: 0, expected: "an integer" })?;
            match TokenId::try_from(id) {
                Ok(token) if (token as usize) < len => *field(&mut vocab.special) = Some(token),
                _ => return Err(VocabError::IdOutOfRange { key, id, len }),
            }
        }
        vocab.name = text("general.name")?.unwrap_or_default();
        vocab.pre = text("tokenizer.ggml.pre")?.filter(|pre| !pre.is_empty());
        vocab.add_bos = metadata.get(ADD_BOS)?;
        vocab.add_eos = metadata.get(ADD_EOS)?;
        vocab.add_space_prefix = metadata.get("tokenizer.ggml.add_space_prefix")?;
        Ok(vocab)
    }
}

fn texts(key: &'static str, array: Array<'_>) -> Result<Texts, VocabError> {
    let mut texts = Texts::new();
    for (index, value) in array.iter().enumerate() {
        let text = value.to::<Text<'_>>().ok_or(VocabError::Element { key, index, expected: "a string" })?;
        texts.push(text.as_bytes());
    }
    Ok(texts)
}

/// The numbers of a file are those of SentencePiece.
fn kind(number: i128) -> TokenKind {
    match number {
        1 => TokenKind::Normal,
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        _ => TokenKind::Undefined,
    }
}
