//! Byte-level byte pair encoding: within a piece of text, neighbours merge in the order of a list.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use hashbrown::HashMap;
use pi_core::text::{EncodeOptions, SpecialTokens, TextError, TokenId, TokenKind, Tokenizer};

use super::bytes;
use super::cache::WordCache;
use super::error::{VocabError, VocabWarning};
use super::gguf;
use super::pre::Pre;
use super::table::Table;
use super::unicode::Codes;
use super::vocab::Vocab;

/// A text that can be merged: the id of a token, or a number from the vocabulary's size on for text that is no token (a
/// list of merges may pass through such texts).
type SymbolId = u32;

/// What two neighbours merge into, and how soon.
#[derive(Debug, Clone, Copy)]
struct Merge {
    rank: u32,
    symbol: SymbolId,
}

/// A tokenizer of the byte-level kind.
#[derive(Debug)]
pub(super) struct Bpe {
    table: Table,
    pre: Pre,
    merges: HashMap<(SymbolId, SymbolId), Merge>,
    bytes: [SymbolId; 256],
}

/// Room to work in, kept from one text to the next.
#[derive(Default)]
struct Scratch {
    codes: Codes,
    ends: Vec<usize>,
    other_ends: Vec<usize>,
    merging: Merging,
    cache: WordCache,
}

/// Room for one piece.
#[derive(Default)]
struct Merging {
    stored: Vec<u8>,
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<(u32, u32, u32)>>,
}

/// A run of bytes in the list of a piece's runs; empty once it was merged into the one before.
#[derive(Clone, Copy)]
struct Symbol {
    id: SymbolId,
    len: u32,
    prev: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl Bpe {
    pub(super) fn new(mut vocab: Vocab, warnings: &mut Vec<VocabWarning>) -> Result<Self, VocabError> {
        let pre = Pre::named(vocab.pre.as_deref(), warnings)?;
        if vocab.merges.is_empty() {
            return Err(VocabError::Missing { key: gguf::MERGES, model: "gpt2" });
        }
        // Every merge can add three texts that are no tokens.
        let limit = (u32::MAX as usize - vocab.tokens.len().min(u32::MAX as usize) - 256) / 3;
        if vocab.merges.len() > limit {
            return Err(VocabError::TooLarge { what: "list of merges", got: vocab.merges.len(), limit });
        }
        let table = Table::new(&mut vocab, &pre, warnings)?;
        let mut others: HashMap<Box<[u8]>, SymbolId> = HashMap::new();
        let mut symbol_of = |text: &[u8]| -> SymbolId {
            table.find(text).unwrap_or_else(|| {
                let next = (table.len() + others.len()) as SymbolId;
                *others.entry_ref(text).or_insert(next)
            })
        };
        let bytes = std::array::from_fn(|byte| symbol_of(bytes::CHARS[byte].encode_utf8(&mut [0; 4]).as_bytes()));
        let mut merges = HashMap::with_capacity(vocab.merges.len());
        let mut whole = Vec::new();
        for (rank, merge) in (0..).zip(vocab.merges.iter()) {
            // The left side may begin with a space itself.
            let Some(space) = merge.iter().skip(1).position(|&byte| byte == b' ') else { continue };
            let (left, right) = (&merge[..space + 1], &merge[space + 2..]);
            whole.clear();
            whole.extend_from_slice(left);
            whole.extend_from_slice(right);
            let pair = (symbol_of(left), symbol_of(right));
            let symbol = symbol_of(&whole);
            merges.entry(pair).or_insert(Merge { rank, symbol });
        }
        let mut bpe = Self { table, pre, merges, bytes };
        let mut newline = Vec::new();
        let found = bpe.push_text(b"\n", &mut newline, &mut Scratch::default());
        bpe.table.special.newline = found.ok().and(newline.first().copied()).or(bpe.table.special.pad);
        Ok(bpe)
    }

    /// Appends the tokens of a text without special tokens.
    fn push_text(&self, text: &[u8], out: &mut Vec<TokenId>, scratch: &mut Scratch) -> Result<(), TextError> {
        let Scratch { codes, ends, other_ends, merging, cache } = scratch;
        codes.read(text);
        self.pre.split(codes, ends, other_ends);
        let mut start = 0;
        for &end in ends.iter() {
            cache.push(codes.bytes(start, end), out, |piece, out| self.push_piece(piece, out, merging))?;
            start = end;
        }
        Ok(())
    }

    /// Appends the tokens of one piece.
    fn push_piece(&self, piece: &[u8], out: &mut Vec<TokenId>, room: &mut Merging) -> Result<(), TextError> {
        let Merging { stored, symbols, heap } = room;
        if self.pre.ignore_merges {
            stored.clear();
            bytes::encode(piece, stored);
            if let Some(id) = self.table.find(stored) {
                out.push(id);
                return Ok(());
            }
        }
        symbols.clear();
        symbols.extend(piece.iter().zip(0u32..).map(|(&byte, index)| Symbol {
            id: self.bytes[usize::from(byte)],
            len: 1,
            prev: index.wrapping_sub(1),
            next: index + 1,
        }));
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        heap.clear();
        let rank = |symbols: &[Symbol], left: u32, right: u32| {
            let pair = (symbols.get(left as usize)?.id, symbols.get(right as usize)?.id);
            self.merges.get(&pair).map(|merge| Reverse((merge.rank, left, merge.symbol)))
        };
        heap.extend((1..symbols.len() as u32).filter_map(|right| rank(symbols, right - 1, right)));
        while let Some(Reverse((rank_then, left, whole))) = heap.pop() {
            let a = symbols[left as usize];
            if a.len == 0 || a.next == NONE {
                continue;
            }
            let (right, b) = (a.next, symbols[a.next as usize]);
            // The pair may be of other runs by now.
            match self.merges.get(&(a.id, b.id)) {
                Some(merge) if merge.rank == rank_then => {}
                _ => continue,
            }
            symbols[left as usize] = Symbol { id: whole, len: a.len + b.len, prev: a.prev, next: b.next };
            symbols[right as usize].len = 0;
            if b.next != NONE {
                symbols[b.next as usize].prev = left;
            }
            heap.extend(rank(symbols, a.prev, left));
            heap.extend(rank(symbols, left, b.next));
        }
        let mut rest = piece;
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let (text, behind) = rest.split_at(symbol.len as usize);
            rest = behind;
            self.push_symbol(symbol.id, text, out)?;
        }
        Ok(())
    }

    /// Appends the token of a run, or those of its bytes, or the unknown token.
    fn push_symbol(&self, symbol: SymbolId, text: &[u8], out: &mut Vec<TokenId>) -> Result<(), TextError> {
        let is_token = |symbol: SymbolId| (symbol as usize) < self.table.len();
        if is_token(symbol) {
            out.push(symbol);
            return Ok(());
        }
        for &byte in text {
            let of_byte = Some(self.bytes[usize::from(byte)]).filter(|&symbol| is_token(symbol));
            let id = of_byte.or(self.table.special.unk);
            out.push(id.ok_or_else(|| TextError::NoToken { bytes: vec![byte] })?);
        }
        Ok(())
    }
}

impl Tokenizer for Bpe {
    fn len(&self) -> usize {
        self.table.len()
    }

    fn encode_quoting(
        &self,
        text: &[u8],
        quoted: &[Range<usize>],
        options: EncodeOptions,
    ) -> Result<Vec<TokenId>, TextError> {
        let mut scratch = Scratch::default();
        self.table.encode(text, quoted, options, |text, _, out| self.push_text(text, out, &mut scratch))
    }

    fn piece(&self, id: TokenId, special: bool) -> Option<&[u8]> {
        self.table.piece(id, special)
    }

    fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.table.kind(id)
    }

    fn special(&self) -> &SpecialTokens {
        &self.table.special
    }

    fn find(&self, text: &[u8]) -> Option<TokenId> {
        self.table.find(text)
    }
}
