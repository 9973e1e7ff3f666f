//! The splitters against the regular expressions that vocabularies are published with.

use fancy_regex::Regex;
use proptest::prelude::*;

use super::pre::Pre;
use super::unicode::Codes;

const CONTRACTIONS: &str = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const REST: &str = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const REST_SLASH: &str = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LEAD: &str = r"[^\r\n\p{L}\p{N}]?";
/// A letter that is no small (first) or no capital (second) letter of ASCII.
const CASED: [&str; 2] = [r"[\p{L}&&[^a-z]]", r"[\p{L}&&[^A-Z]]"];

/// Every stage of the pre-tokenizer of this name as a regular expression.
fn expressions(name: &str) -> Vec<String> {
    let words = |numbers: &str| format!(r"{CONTRACTIONS}|{LEAD}\p{{L}}+|{numbers}|{REST}");
    let cased = |classes: [&str; 2], behind: &str| {
        let [a, b] = classes;
        format!("{LEAD}{a}*{b}+{behind}|{LEAD}{a}+{b}*{behind}")
    };
    let deepseek3 = concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"##,
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    match name {
        "default" => vec![r"[\p{P}$+<=>\^~|]+".into(), GPT2.into(), r"\p{N}+".into(), "[0-9][0-9][0-9]".into()],
        "falcon" => vec![r"[\p{P}$+<=>\^~|`]+".into(), GPT2.into(), "[0-9][0-9][0-9]".into()],
        "gpt-2" => vec![GPT2.into()],
        "starcoder" => vec![r"\p{N}".into(), GPT2.into()],
        "llama-bpe" => vec![words(r"\p{N}{1,3}")],
        "qwen2" => vec![words(r"\p{N}")],
        "minicpm5" => vec![r"\p{N}{1,3}".into(), words(r"\p{N}+")],
        "laguna" => vec![r"[^\n]+|\n+".into(), words(r"\p{N}")],
        "ufakzeka" => vec![format!(r"{LEAD}\p{{L}}+|\p{{N}}|{REST}")],
        "qwen35" => vec![format!(
            r"{CONTRACTIONS}|{LEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )],
        "seed-coder" => {
            vec![format!(r"{CONTRACTIONS}|{LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+")]
        }
        "bailingmoe" => vec![format!(
            r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{LEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        )],
        "exaone-moe" => vec![format!(
            r"{CONTRACTIONS}|{LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        )],
        "tekken" => vec![format!(r"{}|\p{{N}}|{REST_SLASH}", cased(CASED, ""))],
        "gpt-4o" => vec![format!(r"{}|\p{{N}}{{1,3}}|{REST_SLASH}", cased(CASED, &format!("{CONTRACTIONS}?")))],
        "granite-embed-multi-97m" => {
            let classes = [r"[[\p{L}\p{M}]&&[^a-z]]", r"[[\p{L}\p{M}]&&[^A-Z]]"];
            vec![format!(r"{}|\p{{N}}{{1,3}}|{REST_SLASH}", cased(classes, &format!("{CONTRACTIONS}?")))]
        }
        "tiny_aya" => vec![
            r"[0-9]{1,3}(?=(?:[0-9]{3})*(?![0-9A-Za-z_]))".into(),
            format!(
                r"{}|\p{{N}}{{1,3}}|{REST_SLASH}",
                cased([r"[\p{L}\p{M}]", r"[\p{L}\p{M}]"], &format!("{CONTRACTIONS}?"))
            ),
        ],
        "deepseek-coder" => vec![
            r"[\r\n]".into(),
            r"\s?\p{L}+".into(),
            r"\s?\p{P}+".into(),
            r"[[一-龥ࠀ-一가-\x{d7ff}]&&[^\s]]+".into(),
            r"\p{N}".into(),
        ],
        "deepseek-v3" => vec![r"\p{N}{1,3}".into(), "[一-龥぀-ゟ゠-ヿ]+".into(), deepseek3.into()],
        "poro-chat" => vec![r" ?[^(\s|.,!?…。，、।۔،)]+".into()],
        "viking" => vec![r" ?[^(\s|.,!?…。，、।۔،)]+".into(), r"\p{N}".into()],
        "superbpe" => vec![r"\p{N}+".into(), "(?=([0-9]{3})+(?![0-9]))".into()],
        name => panic!("no expression for {name}"),
    }
}

const NAMES: [&str; 22] = [
    "default",
    "falcon",
    "gpt-2",
    "starcoder",
    "llama-bpe",
    "qwen2",
    "minicpm5",
    "laguna",
    "ufakzeka",
    "qwen35",
    "seed-coder",
    "bailingmoe",
    "exaone-moe",
    "tekken",
    "gpt-4o",
    "granite-embed-multi-97m",
    "tiny_aya",
    "deepseek-coder",
    "deepseek-v3",
    "poro-chat",
    "viking",
    "superbpe",
];

/// Matches and what is between them, stage after stage.
fn split_by_expressions(expressions: &[Regex], text: &str) -> Vec<String> {
    let mut pieces = vec![text.to_owned()];
    for expression in expressions {
        let mut next = Vec::new();
        for piece in pieces {
            let mut end = 0;
            for found in expression.find_iter(&piece).map(Result::unwrap) {
                next.push(piece[end..found.start()].to_owned());
                next.push(found.as_str().to_owned());
                end = found.end();
            }
            next.push(piece[end..].to_owned());
        }
        next.retain(|piece| !piece.is_empty());
        pieces = next;
    }
    pieces
}

fn split(pre: &Pre, text: &str) -> Vec<String> {
    let mut codes = Codes::default();
    codes.read(text.as_bytes());
    let (mut ends, mut scratch) = (Vec::new(), Vec::new());
    pre.split(&codes, &mut ends, &mut scratch);
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(&ends).map(|(start, &end)| String::from_utf8(codes.bytes(start, end).to_vec()).unwrap()).collect()
}

/// Text of what the rules tell apart, and some of everything.
fn texts() -> impl Strategy<Value = String> {
    let alphabet = " \t\n\r/'''sStTrReEvVmMlLdD019_aZ.,-~^`$(日本かé\u{301}\u{a0}\u{2003}\u{3000}\u{2029}\u{a3e4}\u{200b}½٣Ⅷ।…ǅ😀ÀÿΩ";
    let alphabet: Vec<char> = alphabet.chars().collect();
    let char = prop_oneof![20 => proptest::sample::select(alphabet), 1 => any::<char>().prop_filter("newer than Unicode 15.1", |c| {
        // Ranges in which later versions assigned characters: all that is unassigned now.
        super::unicode::class(*c as u32) != super::unicode::OTHER
    })];
    proptest::collection::vec(char, 0..24).prop_map(|chars| chars.into_iter().collect())
}

#[test]
fn every_splitter_splits_random_text_as_its_regular_expressions_do() {
    let splitters: Vec<(&str, Pre, Vec<Regex>)> = NAMES
        .iter()
        .map(|name| {
            let expressions =
                expressions(name).iter().map(|e| Regex::new(e).unwrap_or_else(|e| panic!("{name}: {e}"))).collect();
            (*name, Pre::named(Some(name), &mut Vec::new()).unwrap(), expressions)
        })
        .collect();
    let config = ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(text in texts())| {
        for (name, pre, expressions) in &splitters {
            prop_assert_eq!(split(pre, &text), split_by_expressions(expressions, &text), "{}", name);
        }
    });
}

#[test]
fn deepseek_llm_splits_words_of_scripts_with_capitals_punctuation_and_numbers() {
    let pre = Pre::named(Some("deepseek-llm"), &mut Vec::new()).unwrap();
    let expected = ["Hello", ",", " Жизнь", " ", "你好", "123", "  ", "\n", "x", "。", "   "];
    assert_eq!(split(&pre, "Hello, Жизнь 你好123  \nx。   "), expected);
}

#[test]
fn long_runs_of_one_kind_are_split_in_linear_time() {
    for name in NAMES.iter().chain(&["deepseek-llm"]) {
        let pre = Pre::named(Some(name), &mut Vec::new()).unwrap();
        for unit in ["a", "A", " ", "7", "\n", "'", "é", "日", "!", "\u{301}", " \u{a0}"] {
            let text = format!("1{}1", unit.repeat(300_000));
            assert_eq!(split(&pre, &text).concat(), text, "{name}");
        }
    }
}
