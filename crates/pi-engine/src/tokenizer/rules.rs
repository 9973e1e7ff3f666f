//! The alternatives that pre-tokenizers are put together from. Each is one branch of the regular expression in its comment,
//! matched greedily at a position as a backtracking engine would.

use super::unicode::{LETTER, MARK, NUMBER, PUNCTUATION, SPACE, SYMBOL};

/// A stretch of text that a rule may look at; beyond its ends there is nothing.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    pub(super) codes: &'a [u32],
    pub(super) classes: &'a [u8],
}

/// The end of the match at a position, or the position itself if there is none.
pub(super) type Rule = fn(&Window<'_>, usize) -> usize;

const WORD_LIKE: u8 = LETTER | NUMBER;
const LETTER_MARK: u8 = LETTER | MARK;

impl Window<'_> {
    pub(super) fn len(&self) -> usize {
        self.codes.len()
    }

    /// Whether there is a code point of one of these classes.
    fn is(&self, at: usize, classes: u8) -> bool {
        self.classes.get(at).is_some_and(|class| class & classes != 0)
    }

    fn code(&self, at: usize) -> Option<u32> {
        self.codes.get(at).copied()
    }

    fn is_char(&self, at: usize, chars: &[u8]) -> bool {
        self.code(at).and_then(|code| u8::try_from(code).ok()).is_some_and(|byte| chars.contains(&byte))
    }

    /// The ASCII letter there in lower case.
    fn lower(&self, at: usize) -> Option<u8> {
        self.code(at).and_then(|code| u8::try_from(code).ok()).map(|byte| byte.to_ascii_lowercase())
    }

    /// Where the code points of these classes end.
    fn run(&self, at: usize, classes: u8) -> usize {
        self.run_by(at, |at| self.is(at, classes))
    }

    fn run_not(&self, at: usize, classes: u8) -> usize {
        self.run_by(at, |at| !self.is(at, classes))
    }

    fn run_char(&self, at: usize, chars: &[u8]) -> usize {
        self.run_by(at, |at| self.is_char(at, chars))
    }

    /// Where the positions that `holds` accepts end.
    pub(super) fn run_by(&self, at: usize, holds: impl Fn(usize) -> bool) -> usize {
        (at..self.len()).find(|&at| !holds(at)).unwrap_or(self.len())
    }

    /// ` ?X+`, given where a run of X ends; X has no space.
    fn spaced(&self, at: usize, run: impl Fn(usize) -> usize) -> usize {
        let start = at + usize::from(self.code(at) == Some(u32::from(b' ')));
        let end = run(start);
        if end > start { end } else { at }
    }

    /// `[^\r\n\p{L}\p{N}]`
    fn is_lead(&self, at: usize) -> bool {
        at < self.len() && !self.is(at, WORD_LIKE) && !self.is_char(at, b"\r\n")
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`
pub(super) fn contraction(w: &Window<'_>, at: usize) -> usize {
    let upper = |at| w.code(at).is_some_and(|code| (0x41..=0x5a).contains(&code));
    let end = contraction_any_case(w, at);
    if (at..end).any(upper) { at } else { end }
}

/// The same in upper and lower case.
pub(super) fn contraction_any_case(w: &Window<'_>, at: usize) -> usize {
    if !w.is_char(at, b"'") {
        return at;
    }
    match (w.lower(at + 1), w.lower(at + 2)) {
        (Some(b's' | b't' | b'm' | b'd'), _) => at + 2,
        (Some(b'r' | b'v'), Some(b'e')) | (Some(b'l'), Some(b'l')) => at + 3,
        _ => at,
    }
}

/// ` ?\p{L}+`
pub(super) fn spaced_letters(w: &Window<'_>, at: usize) -> usize {
    w.spaced(at, |at| w.run(at, LETTER))
}

/// ` ?\p{N}+`
pub(super) fn spaced_numbers(w: &Window<'_>, at: usize) -> usize {
    w.spaced(at, |at| w.run(at, NUMBER))
}

/// ` ?[^\s\p{L}\p{N}]+`
pub(super) fn spaced_others(w: &Window<'_>, at: usize) -> usize {
    w.spaced(at, |at| w.run_not(at, SPACE | WORD_LIKE))
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n]*`
pub(super) fn others_line(w: &Window<'_>, at: usize) -> usize {
    let end = spaced_others(w, at);
    if end > at { w.run_char(end, b"\r\n") } else { at }
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*`
pub(super) fn others_line_slash(w: &Window<'_>, at: usize) -> usize {
    let end = spaced_others(w, at);
    if end > at { w.run_char(end, b"\r\n/") } else { at }
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n/]?`
pub(super) fn others_one_line_slash(w: &Window<'_>, at: usize) -> usize {
    let end = spaced_others(w, at);
    if end > at && w.is_char(end, b"\r\n/") { end + 1 } else { end }
}

/// ` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*`
pub(super) fn others_but_marks_line(w: &Window<'_>, at: usize) -> usize {
    let end = w.spaced(at, |at| w.run_not(at, SPACE | WORD_LIKE | MARK));
    if end > at { w.run_char(end, b"\r\n") } else { at }
}

/// `[^\r\n\p{L}\p{N}]?\p{L}+`
pub(super) fn word(w: &Window<'_>, at: usize) -> usize {
    let start = at + usize::from(w.is_lead(at));
    let end = w.run(start, LETTER);
    if end > start { end } else { at }
}

/// `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`
pub(super) fn word_marks(w: &Window<'_>, at: usize) -> usize {
    // A mark can be the first character itself, if nothing better follows.
    let start = at + usize::from(w.is_lead(at) && w.is(at + 1, LETTER_MARK));
    w.run(start, LETTER_MARK).max(at)
}

/// [`word_marks`] and then perhaps a contraction.
pub(super) fn word_marks_contraction(w: &Window<'_>, at: usize) -> usize {
    let end = word_marks(w, at);
    if end > at { contraction_any_case(w, end) } else { at }
}

/// `[^\r\n\p{L}\p{N}]?A*B+|[^\r\n\p{L}\p{N}]?A+B*`, where A is a letter (or mark) that is not `a-z`, and B one that is not
/// `A-Z`: a word in which small letters are not followed by capitals.
fn cased_word(w: &Window<'_>, at: usize, classes: u8) -> usize {
    let in_ascii =
        |at, low: u8, high: u8| w.code(at).is_some_and(|code| (u32::from(low)..=u32::from(high)).contains(&code));
    let a = |at: usize| w.is(at, classes) && !in_ascii(at, b'a', b'z');
    let b = |at: usize| w.is(at, classes) && !in_ascii(at, b'A', b'Z');
    let first = |start: usize| {
        let capitals = w.run_by(start, a);
        let end = w.run_by(capitals, b);
        // If no B follows, B takes the last character of A that it can.
        let taken = || (start..capitals).rev().find(|&at| b(at)).map(|last| last + 1);
        if end > capitals { Some(end) } else { taken() }
    };
    let second = |start: usize| {
        let capitals = w.run_by(start, a);
        (capitals > start).then(|| w.run_by(capitals, b))
    };
    let led = w.is_lead(at).then_some(at + 1);
    led.and_then(first).or_else(|| first(at)).or_else(|| led.and_then(second)).or_else(|| second(at)).unwrap_or(at)
}

/// [`cased_word`] of letters.
pub(super) fn word_cased(w: &Window<'_>, at: usize) -> usize {
    cased_word(w, at, LETTER)
}

/// [`cased_word`] of letters, and then perhaps a contraction.
pub(super) fn word_cased_contraction(w: &Window<'_>, at: usize) -> usize {
    let end = cased_word(w, at, LETTER);
    if end > at { contraction_any_case(w, end) } else { at }
}

/// [`cased_word`] of letters and marks, and then perhaps a contraction.
pub(super) fn word_cased_marks_contraction(w: &Window<'_>, at: usize) -> usize {
    let end = cased_word(w, at, LETTER_MARK);
    if end > at { contraction_any_case(w, end) } else { at }
}

/// `[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`: words with single spaces between them.
pub(super) fn words(w: &Window<'_>, at: usize) -> usize {
    let start = at + usize::from(w.is_lead(at));
    if !w.is(start, LETTER) {
        return at;
    }
    let mut end = w.run(start + 1, LETTER_MARK);
    while w.is_char(end, b" ") && w.is(end + 1, LETTER) {
        end = w.run(end + 2, LETTER_MARK);
    }
    end
}

/// `[!-/:-@\[-`{-~][A-Za-z]+`
pub(super) fn punctuated_ascii_word(w: &Window<'_>, at: usize) -> usize {
    let ascii = |at| w.code(at).and_then(|code| u8::try_from(code).ok());
    if !ascii(at).is_some_and(|byte| byte.is_ascii_punctuation()) {
        return at;
    }
    let end = w.run_by(at + 1, |at| ascii(at).is_some_and(|byte| byte.is_ascii_alphabetic()));
    if end > at + 1 { end } else { at }
}

/// `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`
pub(super) fn word_marks_not_symbols(w: &Window<'_>, at: usize) -> usize {
    let lead = at < w.len() && !w.is(at, LETTER | PUNCTUATION | SYMBOL) && !w.is_char(at, b"\r\n");
    let start = at + usize::from(lead && w.is(at + 1, LETTER_MARK));
    w.run(start, LETTER_MARK).max(at)
}

/// ` ?[\p{P}\p{S}]+[\r\n]*`
pub(super) fn symbols_line(w: &Window<'_>, at: usize) -> usize {
    let end = w.spaced(at, |at| w.run(at, PUNCTUATION | SYMBOL));
    if end > at { w.run_char(end, b"\r\n") } else { at }
}

/// `[\p{P}$+<=>^~|]+`
pub(super) fn punctuation(w: &Window<'_>, at: usize) -> usize {
    w.run_by(at, |at| w.is(at, PUNCTUATION) || w.is_char(at, b"$+<=>^~|"))
}

/// `[\p{P}$+<=>^~|`]+`
pub(super) fn punctuation_backtick(w: &Window<'_>, at: usize) -> usize {
    w.run_by(at, |at| w.is(at, PUNCTUATION) || w.is_char(at, b"$+<=>^~|`"))
}

/// `\s?\p{L}+`
pub(super) fn any_space_letters(w: &Window<'_>, at: usize) -> usize {
    let start = at + usize::from(w.is(at, SPACE));
    let end = w.run(start, LETTER);
    if end > start { end } else { at }
}

/// `\s?\p{P}+`
pub(super) fn any_space_punctuation(w: &Window<'_>, at: usize) -> usize {
    let start = at + usize::from(w.is(at, SPACE));
    let end = w.run(start, PUNCTUATION);
    if end > start { end } else { at }
}

/// `\p{N}`
pub(super) fn number(w: &Window<'_>, at: usize) -> usize {
    at + usize::from(w.is(at, NUMBER))
}

/// `\p{N}{1,3}`
pub(super) fn numbers_3(w: &Window<'_>, at: usize) -> usize {
    at + (at..at + 3).take_while(|&at| w.is(at, NUMBER)).count()
}

/// `\p{N}+`
pub(super) fn numbers(w: &Window<'_>, at: usize) -> usize {
    w.run(at, NUMBER)
}

/// `[0-9][0-9][0-9]`
pub(super) fn three_digits(w: &Window<'_>, at: usize) -> usize {
    let end = at + 3;
    if (at..end).all(|at| w.is_char(at, b"0123456789")) { end } else { at }
}

/// `[\r\n]`
pub(super) fn line_break(w: &Window<'_>, at: usize) -> usize {
    at + usize::from(w.is_char(at, b"\r\n"))
}

/// `\s*[\r\n]+`
pub(super) fn lines(w: &Window<'_>, at: usize) -> usize {
    let end = w.run(at, SPACE);
    (at..end).rev().find(|&at| w.is_char(at, b"\r\n")).map_or(at, |last| last + 1)
}

/// `\s+(?!\S)`: white space up to the one before the next word.
pub(super) fn spaces_before(w: &Window<'_>, at: usize) -> usize {
    let end = w.run(at, SPACE);
    if end == w.len() || end == at { end } else { end - 1 }
}

/// `\s+`
pub(super) fn spaces(w: &Window<'_>, at: usize) -> usize {
    w.run(at, SPACE)
}

/// `[^\n]+`
pub(super) fn not_newlines(w: &Window<'_>, at: usize) -> usize {
    w.run_by(at, |at| !w.is_char(at, b"\n"))
}

/// `\n+`
pub(super) fn newlines(w: &Window<'_>, at: usize) -> usize {
    w.run_char(at, b"\n")
}

/// ` ?[^\s|.,!?…。，、।۔،()]+`
pub(super) fn spaced_phrase(w: &Window<'_>, at: usize) -> usize {
    let ends = |at| w.code(at).and_then(char::from_u32).is_some_and(|char| "|.,!?…。，、।۔،()".contains(char));
    w.spaced(at, |at| w.run_by(at, |at| !w.is(at, SPACE) && !ends(at)))
}

/// `[一-龥ࠀ-一가-퟿]+`, without white space.
pub(super) fn cjk_wide(w: &Window<'_>, at: usize) -> usize {
    let holds = |code| matches!(code, 0x800..=0x9fa5 | 0xac00..=0xd7ff);
    w.run_by(at, |at| w.code(at).is_some_and(holds) && !w.is(at, SPACE))
}

/// `[一-龥぀-ゟ゠-ヿ]+`
pub(super) fn cjk(w: &Window<'_>, at: usize) -> usize {
    w.run_by(at, |at| w.code(at).is_some_and(|code| matches!(code, 0x4e00..=0x9fa5 | 0x3040..=0x30ff)))
}

/// `\s?[A-Za-zµÀ-Ö…]+`: letters of scripts with capitals.
pub(super) fn any_space_cased_letters(w: &Window<'_>, at: usize) -> usize {
    let cased = |code: u32| {
        let after = CASED_SCRIPTS.partition_point(|&(first, _)| first <= code);
        after > 0 && code <= CASED_SCRIPTS[after - 1].1
    };
    let start = at + usize::from(w.is(at, SPACE));
    let end = w.run_by(start, |at| w.code(at).is_some_and(cased));
    if end > start { end } else { at }
}

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`, where the ideographic space is white space.
pub(super) fn any_space_ascii_punctuation(w: &Window<'_>, at: usize) -> usize {
    let holds = |code| matches!(code, 0x21..=0x2f | 0x3a..=0x7e | 0xff01..=0xff0f | 0xff1a..=0xff5e | 0x2018..=0x201f | 0x3001..=0x3002);
    let start = at + usize::from(w.is(at, SPACE));
    let end = w.run_by(start, |at| w.code(at).is_some_and(holds));
    if end > start { end } else { at }
}

/// First and last code points of the letters above.
#[rustfmt::skip]
const CASED_SCRIPTS: &[(u32, u32)] = &[
    (0x41, 0x5a), (0x61, 0x7a), (0xb5, 0xb5), (0xc0, 0xd6), (0xd8, 0xf6), (0xf8, 0x1ba),
    (0x1bc, 0x1bf), (0x1c4, 0x293), (0x295, 0x2af), (0x370, 0x373), (0x376, 0x376), (0x377, 0x377),
    (0x37b, 0x37d), (0x37f, 0x37f), (0x386, 0x386), (0x388, 0x38a), (0x38c, 0x38c), (0x38e, 0x3a1),
    (0x3a3, 0x3f5), (0x3f7, 0x481), (0x48a, 0x52f), (0x531, 0x556), (0x10a0, 0x10c5), (0x13a0, 0x13f5),
    (0x13f8, 0x13fd), (0x1c90, 0x1cba), (0x1cbd, 0x1cbf), (0x1d00, 0x1d2b), (0x1d6b, 0x1d77), (0x1d79, 0x1d9a),
    (0x1e00, 0x1f15), (0x1f18, 0x1f1d), (0x1f20, 0x1f45), (0x1f48, 0x1f4d), (0x1f50, 0x1f57), (0x1f59, 0x1f59),
    (0x1f5b, 0x1f5b), (0x1f5d, 0x1f5d), (0x1f5f, 0x1f7d), (0x1f80, 0x1fb4), (0x1fb6, 0x1fbc), (0x1fbe, 0x1fbe),
    (0x1fc2, 0x1fc4), (0x1fc6, 0x1fcc), (0x1fd0, 0x1fd3), (0x1fd6, 0x1fdb), (0x1fe0, 0x1fec), (0x1ff2, 0x1ff4),
    (0x1ff6, 0x1ffc), (0x2102, 0x2102), (0x2107, 0x2107), (0x210a, 0x2113), (0x2115, 0x2115), (0x2119, 0x211d),
    (0x2124, 0x2124), (0x2126, 0x2126), (0x2128, 0x2128), (0x212a, 0x212d), (0x212f, 0x2134), (0x2139, 0x2139),
    (0x213c, 0x213f), (0x2145, 0x2149), (0x214e, 0x214e), (0x2183, 0x2183), (0x2184, 0x2184), (0x2c00, 0x2c7b),
    (0x2c7e, 0x2ce4), (0x2ceb, 0x2cee), (0x2cf2, 0x2cf2), (0x2cf3, 0x2cf3), (0xa640, 0xa66d), (0xa680, 0xa69b),
    (0xa722, 0xa76f), (0xa771, 0xa787), (0xa78b, 0xa78e), (0xab70, 0xabbf), (0xfb00, 0xfb06), (0xfb13, 0xfb17),
    (0xff21, 0xff3a), (0xff41, 0xff5a), (0x10400, 0x1044f), (0x104b0, 0x104d3), (0x104d8, 0x104fb), (0x10c80, 0x10cb2),
    (0x10cc0, 0x10cf2), (0x118a0, 0x118df), (0x1e900, 0x1e943),
];
