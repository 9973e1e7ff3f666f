//! A generation in progress: from logits to tokens and text, whoever computes the logits.

use crate::{
    Engine, GenerateOptions, Result, StopReason, sampler::Sampler, stop::StopFilter, tokenizer::StreamDecoder,
};
use pi_core::text::{DecodeOptions, TokenId, Tokenizer};
use std::sync::Arc;

/// Most tokens that memory is set aside for in advance.
const FORESEEN: usize = 1 << 16;

/// One answer while it is made. Give [`next`](Self::next) the logits after the newest token, compute the token it chose, and so
/// on until it says why to stop; then call [`finish`](Self::finish). Whole characters of text come out, never a part of a stop
/// string. [`Session::generate`](crate::Session::generate) does this for one sequence; a program that computes several in one step
/// has a turn for each.
pub struct Turn {
    tokenizer: Arc<dyn Tokenizer>,
    decoder: StreamDecoder,
    filter: StopFilter,
    max_tokens: Option<usize>,
    ignore_eos: bool,
    tokens: Vec<TokenId>,
    text: String,
    /// Bytes of the text that were there before the last call.
    seen: usize,
}

impl Turn {
    /// An answer that has not begun. `room` is how many tokens the sequence can still hold: memory is set aside for them.
    /// `options.sampling` is not used.
    pub fn new(engine: &Engine, options: &GenerateOptions, room: usize) -> Self {
        let room = room.min(options.max_tokens.unwrap_or(usize::MAX)).min(FORESEEN);
        Self {
            tokenizer: engine.tokenizer().clone(),
            decoder: StreamDecoder::continuing(engine.tokenizer().clone(), DecodeOptions::default()),
            filter: StopFilter::new(&options.stop),
            max_tokens: options.max_tokens,
            ignore_eos: options.ignore_eos,
            tokens: Vec::with_capacity(room),
            text: String::with_capacity(8 * room),
            seen: 0,
        }
    }

    /// Control tokens whose text is to be part of the text, as when they announce something. All others leave nothing.
    #[must_use]
    pub fn showing(mut self, tokens: Vec<TokenId>) -> Self {
        self.decoder = self.decoder.showing(tokens);
        self
    }

    /// Whether there are as many tokens as were wanted; at the beginning, if none was.
    pub fn is_full(&self) -> bool {
        self.max_tokens.is_some_and(|n| self.tokens.len() >= n)
    }

    /// Chooses the next token and takes it in, unless it is one that ends the answer. Says why to stop, if so. This waits for the sampler. A
    /// program with other answers to go on with asks [`Sampler::is_ready`] first, and when that is true [`Sampler::is_done`]: then the
    /// answer was complete without this token.
    ///
    /// # Errors
    /// If the sampler refuses the logits, or chooses a token that the vocabulary does not have.
    pub fn next(&mut self, logits: &mut [f32], sampler: &mut dyn Sampler) -> Result<Option<StopReason>> {
        self.seen = self.text.len();
        let token = sampler.sample(logits)?;
        if !self.ignore_eos && self.tokenizer.special().is_eog(token) {
            return Ok(Some(StopReason::Eos(token)));
        }
        sampler.accept(token);
        self.tokens.push(token);
        let (text, stop) = self.filter.push(self.decoder.push(token)?);
        self.text.push_str(text);
        let stop = stop.map(|stop| StopReason::Stop(stop.into()));
        let stop = stop.or_else(|| sampler.is_done().then_some(StopReason::Complete));
        Ok(stop.or_else(|| self.is_full().then_some(StopReason::Length)))
    }

    /// Ends the answer for `stop`: text that was held back comes out, unless a stop string or somebody's wish ended it.
    pub fn finish(&mut self, stop: &StopReason) {
        self.seen = self.text.len();
        if !matches!(stop, StopReason::Stop(_) | StopReason::Cancelled) {
            let (text, _) = self.filter.push(self.decoder.finish());
            self.text.push_str(text);
            self.text.push_str(self.filter.finish());
        }
    }

    /// The text that the last call brought, perhaps none.
    pub fn fresh(&self) -> &str {
        &self.text[self.seen..]
    }

    /// All text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// All tokens so far.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The text and the tokens.
    pub fn into_parts(self) -> (String, Vec<TokenId>) {
        (self.text, self.tokens)
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn").field("tokens", &self.tokens.len()).field("text", &self.text).finish_non_exhaustive()
    }
}
