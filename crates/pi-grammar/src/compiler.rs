//! The vocabulary as a tree of bytes, made once, and compiling for it.

use crate::{Grammar, GrammarError, Matcher, cache::Cache};
use llguidance::{
    ParserFactory,
    api::ParserLimits,
    earley::SlicedBiasComputer,
    toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie},
};
use pi_engine::pi_core::text::{TokenKind, Tokenizer};
use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

/// Longest token in bytes that answers with a form have: the tree takes no longer ones.
const LONGEST_TOKEN: usize = 512;
/// Most bytes of all tokens together that the tree has room for.
const MOST_BYTES: usize = 1 << 22;
/// Most tokens.
const MOST_TOKENS: usize = 1 << 21;
/// Bytes of stack for compiling, which calls itself as deep as forms nest. Only what is used is taken from the system.
const STACK: usize = 1 << 28;
/// Forms that are kept after they were compiled, and bytes of these.
const KEPT: (usize, usize) = (32, 1 << 26);

/// Compiles forms for one vocabulary, and keeps the last ones: most clients send the same again and again. Shared between threads.
pub struct Compiler {
    factory: ParserFactory,
    compiled: AtomicU64,
    kept: Mutex<Cache<Matcher>>,
}

impl Compiler {
    /// For the tokens of `tokenizer`. Takes some tenths of a second for a hundred thousand of them.
    ///
    /// # Errors
    /// [`GrammarError::Vocabulary`] if there are too many, or none.
    pub fn new(tokenizer: &dyn Tokenizer) -> Result<Self, GrammarError> {
        let wrong = |why: String| GrammarError::Vocabulary(why);
        let special = tokenizer.special();
        let words: Vec<Vec<u8>> = (0..tokenizer.len() as u32).map(|id| word(tokenizer, id)).collect();
        let bytes: usize = words.iter().map(Vec::len).sum();
        if words.is_empty() || words.len() > MOST_TOKENS || bytes > MOST_BYTES {
            return Err(wrong(format!("it has {} tokens of {bytes} bytes", words.len())));
        }
        let mut info = TokRxInfo::new(words.len() as u32, special.eog.first().copied().unwrap_or(INVALID_TOKEN));
        info.tok_bos = special.bos;
        let mut tree = TokTrie::from(&info, &words);
        if !special.eog.is_empty() {
            tree = tree.with_eos_tokens(&special.eog);
        }
        // Texts that are certain are not cut into the vocabulary's usual tokens for the model: it chooses any that spell them.
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(tree));
        let slices = SlicedBiasComputer::general_slices();
        let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
        let mut factory = factory.map_err(|e| wrong(e.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = limits(words.len());
        let kept = Mutex::new(Cache::new(KEPT.0, KEPT.1));
        Ok(Self { factory, compiled: AtomicU64::new(0), kept })
    }

    /// The constraint for one answer. Takes milliseconds, and for forms that are as large as they may be about a second: not for
    /// threads that must not wait. One of the last 32 forms is not compiled again.
    ///
    /// # Errors
    /// What is wrong with the form, and where.
    pub fn compile(&self, grammar: &Grammar) -> Result<Matcher, GrammarError> {
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let key = grammar.key();
        if let Some(matcher) = key.as_ref().and_then(|key| kept().get(key)?.another()) {
            return Ok(matcher);
        }
        let (matcher, bytes) = self.anew(grammar)?;
        if let (Some(key), Some(another)) = (key, matcher.another()) {
            kept().put(key, bytes, another);
        }
        Ok(matcher)
    }

    /// Forms that were compiled so far, without those that were known.
    pub fn compiled(&self) -> u64 {
        self.compiled.load(Relaxed)
    }

    /// The constraint, and about how many bytes it has.
    fn anew(&self, grammar: &Grammar) -> Result<(Matcher, usize), GrammarError> {
        self.compiled.fetch_add(1, Relaxed);
        let work = || {
            let parser = self.factory.create_parser(grammar.lower()?).map_err(|e| refused(grammar, &e.to_string()))?;
            let same = parser.clone(); // with what it looks at shared
            let mut matcher = Matcher::new(parser);
            match matcher.begins() {
                Ok(true) => Ok((matcher, same.parser.lexer_stats().num_bytes)),
                Ok(false) => Err(GrammarError::nothing()),
                Err(why) => Err(refused(grammar, &why)),
            }
        };
        let run = thread::scope(|scope| {
            let thread = thread::Builder::new().name("pi-grammar".into()).stack_size(STACK).spawn_scoped(scope, work);
            thread.map(|thread| {
                thread.join().unwrap_or_else(|_| Err(GrammarError::Meaning("compiling it failed".into())))
            })
        });
        run.unwrap_or_else(|e| Err(GrammarError::TooMuch(format!("there is no thread to compile it: {e}"))))
    }
}

/// What one form may cost: to compile it, with each token, and in memory (some kilobytes per state).
fn limits(tokens: usize) -> ParserLimits {
    ParserLimits {
        max_items_in_row: 5000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        // where a grammar has no pieces, a step looks at some items for each token
        step_max_items: (4 * tokens).clamp(50_000, 300_000),
        max_lexer_states: 50_000,
        max_grammar_size: 250_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// What a token stands for in the tree: its text. Control tokens are told apart from text that looks like their names.
fn word(tokenizer: &dyn Tokenizer, id: u32) -> Vec<u8> {
    let text = match tokenizer.kind(id) {
        Some(TokenKind::Control) => {
            let name = tokenizer.piece(id, true).unwrap_or_default();
            [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat()
        }
        Some(TokenKind::Unknown | TokenKind::Unused) | None => Vec::new(),
        Some(_) => tokenizer.piece(id, false).unwrap_or_default().to_vec(),
    };
    if text.len() > LONGEST_TOKEN { Vec::new() } else { text }
}

/// Most characters of a message: some repeat all of what they are about.
const MESSAGE: usize = 300;

/// What llguidance says in words of its own, for people who only know schemas.
fn reworded(message: &str) -> Cow<'_, str> {
    if message.contains("oneOf constraints are not supported") {
        let why =
            "oneOf: a grammar cannot keep to exactly one of alternatives that overlap: anyOf asks for one at least";
        return why.into();
    }
    if let Some(keys) = message.strip_prefix("Unimplemented keys: ") {
        return format!("no grammar can say what these do, and the schema is strict: {keys}").into();
    }
    match message.split_once("Regex is empty") {
        Some((before, _)) => format!("{before}no string has its pattern, format and lengths at once").into(),
        None => message.into(),
    }
}

/// llguidance's messages, with the place, if there is one, in fields of its own.
fn refused(grammar: &Grammar, message: &str) -> GrammarError {
    let mut lines = message.lines().map(str::trim);
    let mut first = lines.next().unwrap_or_default().to_string();
    if first.ends_with(':') {
        // what follows says about what, points at it, and says why
        for line in lines.filter(|line| !line.trim_matches(['^', ' ']).is_empty()) {
            first.extend([" ", line]);
        }
    }
    let first = &*first;
    let first = first.strip_prefix("panic: ").unwrap_or(first);
    if first == "NoExtensionBias" {
        return GrammarError::nothing();
    }
    let first = &*reworded(first);
    let cut = |text: &str| match text.char_indices().nth(MESSAGE) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    };
    let place = || {
        let (line, rest) = first.strip_prefix("at ").unwrap_or(first).split_once('(')?;
        let (column, why) = rest.split_once("): ")?;
        Some((line.parse().ok()?, column.parse().ok()?, why))
    };
    match (grammar, place()) {
        (Grammar::Lark(_), Some((line, column, why))) => {
            GrammarError::Syntax { dialect: "Lark", line, column, why: cut(why) }
        }
        // the place would be one in what the form was translated to
        (_, Some((_, _, why))) => GrammarError::Meaning(cut(why)),
        (_, None) if ["too complex", "too large", "fuel"].iter().any(|word| first.contains(word)) => {
            GrammarError::TooMuch(cut(first))
        }
        (_, None) => GrammarError::Meaning(cut(first)),
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.factory.tok_env().tok_trie().vocab_size();
        f.debug_struct("Compiler").field("tokens", &tokens).finish_non_exhaustive()
    }
}
