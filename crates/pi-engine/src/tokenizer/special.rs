//! Which tokens have a meaning of their own: as the file states, by default, or known by their text.
//!
//! Published files often lack the keys, so the usual texts are looked for too. In particular every end-of-turn token must
//! stop generation, or the model goes on to write the other side's turn.

use std::collections::BTreeSet;

use pi_core::text::{SpecialTokens, TokenId, TokenKind};

use super::error::{VocabError, VocabWarning};
use super::gguf;
use super::pre::Pre;
use super::vocab::{Vocab, VocabModel};

/// Ends of turns, the likelier first.
const END_OF_TURN: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
/// Further texts that end generation.
const END_OF_GENERATION: &[&str] = &[
    "<|eom_id|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "</s>",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
];
const FIM_PREFIX: &[&str] = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUFFIX: &[&str] = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MIDDLE: &[&str] = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: &[&str] = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REPO: &[&str] = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_FILE: &[&str] = &["<|file_sep|>"];
/// Tokens that frame channels of a message: shown, although files call them control tokens.
const SHOWN: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Finds the special tokens; tokens that serve as control tokens become [`TokenKind::Control`].
pub(super) fn detect(
    vocab: &Vocab,
    pre: &Pre,
    len: usize,
    find: &dyn Fn(&str) -> Option<TokenId>,
    kinds: &mut [TokenKind],
    warnings: &mut Vec<VocabWarning>,
) -> Result<SpecialTokens, VocabError> {
    let mut ids = vocab.special.clone();
    for &(key, field) in gguf::IDS {
        if let Some(id) = *field(&mut ids)
            && id as usize >= len
        {
            return Err(VocabError::IdOutOfRange { key, id: id.into(), len });
        }
    }
    let default = |id: TokenId| (id as usize).lt(&len).then_some(id);
    match vocab.model {
        VocabModel::Spm => {
            ids.bos = ids.bos.or(default(1));
            ids.eos = ids.eos.or(default(2));
            ids.unk = ids.unk.or(default(0));
        }
        VocabModel::Bpe => {
            ids.bos = ids.bos.or(if pre.no_default_bos { None } else { default(11) });
            ids.eos = ids.eos.or(default(11));
        }
    }
    let add_bos = vocab.add_bos.unwrap_or(pre.add_bos);
    let add_eos = vocab.add_eos.unwrap_or(false);
    if add_bos && ids.bos.is_none() {
        return Err(VocabError::NotSet { flag: gguf::ADD_BOS, key: gguf::BOS });
    }
    if add_eos && ids.eos.is_none() {
        return Err(VocabError::NotSet { flag: gguf::ADD_EOS, key: gguf::EOS });
    }

    let mut control = |id: TokenId| {
        let kind = &mut kinds[id as usize];
        if *kind != TokenKind::Control {
            *kind = TokenKind::Control;
            warnings.push(VocabWarning::NotControl { id });
        }
        id
    };
    // A vocabulary may have several; one that is not the end of text says more.
    let turns = || END_OF_TURN.iter().filter_map(|text| find(text));
    ids.eot = ids.eot.or(turns().find(|&id| Some(id) != ids.eos)).or_else(|| turns().next());
    ids.eom = ids.eom.or_else(|| find("<|eom_id|>"));
    for (id, texts) in [
        (&mut ids.fim_prefix, FIM_PREFIX),
        (&mut ids.fim_suffix, FIM_SUFFIX),
        (&mut ids.fim_middle, FIM_MIDDLE),
        (&mut ids.fim_pad, FIM_PAD),
        (&mut ids.fim_repo, FIM_REPO),
        (&mut ids.fim_file, FIM_FILE),
    ] {
        if id.is_none() {
            *id = texts.iter().find_map(|text| find(text)).map(&mut control);
        }
    }
    let mut eog: BTreeSet<TokenId> = [ids.fim_pad, ids.fim_repo, ids.fim_file].into_iter().flatten().collect();
    eog.extend(END_OF_TURN.iter().chain(END_OF_GENERATION).filter_map(|text| find(text)).map(control));
    for text in SHOWN {
        if let Some(id) = find(text) {
            kinds[id as usize] = TokenKind::UserDefined;
        }
    }
    eog.extend([ids.eos, ids.eot, ids.eom].into_iter().flatten());

    let ends = |text| find(text).filter(|id| eog.contains(id));
    // With message channels `<|end|>` ends one channel only.
    let channels = (ends("<|call|>").is_some() || ends("<|calls|>").is_some())
        && (ends("<|return|>").is_some() || ends("<|flush|>").is_some());
    let end = ends("<|end|>").filter(|_| channels);
    // A vocabulary with `<|tool_response>` has `</s>` only as the HTML tag.
    let tag = ends("</s>").filter(|_| ends("<|tool_response>").is_some());
    for (id, kind) in [(end, TokenKind::UserDefined), (tag, TokenKind::Normal)] {
        if let Some(id) = id {
            eog.remove(&id);
            kinds[id as usize] = kind;
        }
    }

    let mut special = SpecialTokens::default();
    special.bos = ids.bos;
    special.eos = ids.eos;
    special.eot = ids.eot;
    special.eom = ids.eom;
    special.unk = ids.unk;
    special.sep = ids.sep;
    special.pad = ids.pad;
    special.mask = ids.mask;
    special.fim = [ids.fim_prefix, ids.fim_suffix, ids.fim_middle];
    special.add_bos = add_bos;
    special.add_eos = add_eos;
    special.add_space_prefix = vocab.add_space_prefix.unwrap_or(vocab.model == VocabModel::Spm);
    special.clean_spaces = pre.clean_spaces;
    special.eog = eog.into_iter().collect();
    Ok(special)
}
