//! Code points and their classes, as the pre-tokenizers see them.
//!
//! Classes follow Unicode 15.1, which the reference engine's tables were made from.

use unicode_general_category::{GeneralCategory as Category, get_general_category};

/// Letters (`\p{L}`).
pub(super) const LETTER: u8 = 1;
/// Numbers (`\p{N}`).
pub(super) const NUMBER: u8 = 2;
/// Punctuation (`\p{P}`).
pub(super) const PUNCTUATION: u8 = 4;
/// Symbols (`\p{S}`).
pub(super) const SYMBOL: u8 = 8;
/// Combining marks (`\p{M}`).
pub(super) const MARK: u8 = 16;
/// White space (`\s`).
pub(super) const SPACE: u8 = 32;
/// Everything else: control and format characters, private use, unassigned.
pub(super) const OTHER: u8 = 64;

/// The class of a code point.
pub(super) fn class(code: u32) -> u8 {
    match code {
        // Added by Unicode 15.1.
        0x2ebf0..=0x2ee5d => return LETTER,
        0x2ffc..=0x2fff | 0x31ef => return SYMBOL,
        _ => {}
    }
    // Surrogates have no `char`; they can come from malformed text.
    let Some(char) = char::from_u32(code) else { return OTHER };
    if char.is_whitespace() {
        return SPACE;
    }
    use Category::*;
    match get_general_category(char) {
        UppercaseLetter | LowercaseLetter | TitlecaseLetter | ModifierLetter | OtherLetter => LETTER,
        DecimalNumber | LetterNumber | OtherNumber => NUMBER,
        ConnectorPunctuation | DashPunctuation | OpenPunctuation | ClosePunctuation | InitialPunctuation
        | FinalPunctuation | OtherPunctuation => PUNCTUATION,
        MathSymbol | CurrencySymbol | ModifierSymbol | OtherSymbol => SYMBOL,
        NonspacingMark | SpacingMark | EnclosingMark => MARK,
        _ => OTHER,
    }
}

const ASCII: [u8; 128] = {
    let mut classes = [OTHER; 128];
    let mut code = 0;
    while code < 128 {
        classes[code] = match code as u8 {
            b' ' | b'\t'..=b'\r' => SPACE,
            b'0'..=b'9' => NUMBER,
            b'a'..=b'z' | b'A'..=b'Z' => LETTER,
            b'$' | b'+' | b'<'..=b'>' | b'^' | b'`' | b'|' | b'~' => SYMBOL,
            0x21..=0x7e => PUNCTUATION,
            _ => OTHER,
        };
        code += 1;
    }
    classes
};

/// A text as code points with their classes, and as the bytes that these are written as.
///
/// Malformed bytes become U+FFFD, one each. Overlong forms and surrogates are let through as the code points they spell.
#[derive(Debug, Default)]
pub(super) struct Codes {
    pub(super) codes: Vec<u32>,
    pub(super) classes: Vec<u8>,
    bytes: Vec<u8>,
    /// Where in `bytes` each code point begins, and the end.
    starts: Vec<u32>,
}

impl Codes {
    /// Takes in a new text; at most 1 GiB, as offsets are 32 bits and malformed bytes grow.
    pub(super) fn read(&mut self, text: &[u8]) {
        self.codes.clear();
        self.classes.clear();
        self.bytes.clear();
        self.starts.clear();
        let mut rest = text;
        while let [first, ..] = rest {
            self.starts.push(self.bytes.len() as u32);
            if first.is_ascii() {
                self.codes.push(u32::from(*first));
                self.classes.push(ASCII[usize::from(*first)]);
                self.bytes.push(*first);
                rest = &rest[1..];
            } else {
                let (code, len) = next_code(rest).unwrap_or((0xfffd, 1));
                self.codes.push(code);
                self.classes.push(class(code));
                write_code(code, &mut self.bytes);
                rest = &rest[len..];
            }
        }
        self.starts.push(self.bytes.len() as u32);
    }

    /// Code points `from..to` as bytes.
    pub(super) fn bytes(&self, from: usize, to: usize) -> &[u8] {
        &self.bytes[self.starts[from] as usize..self.starts[to] as usize]
    }
}

/// The code point that a text of more than ASCII begins with, and its length.
fn next_code(text: &[u8]) -> Option<(u32, usize)> {
    let (len, high) = match text[0] {
        lead @ 0xc0..=0xdf => (2, lead & 0x1f),
        lead @ 0xe0..=0xef => (3, lead & 0x0f),
        lead @ 0xf0..=0xf7 => (4, lead & 0x07),
        _ => return None,
    };
    let mut code = u32::from(high);
    for byte in text.get(1..len)? {
        if byte & 0xc0 != 0x80 {
            return None;
        }
        code = code << 6 | u32::from(byte & 0x3f);
    }
    (code <= 0x10ffff).then_some((code, len))
}

/// Appends a code point, which may be a surrogate, in the form of UTF-8.
fn write_code(code: u32, bytes: &mut Vec<u8>) {
    match char::from_u32(code) {
        Some(char) => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        None => bytes.extend([0xe0 | (code >> 12) as u8, 0x80 | (code >> 6 & 0x3f) as u8, 0x80 | (code & 0x3f) as u8]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_has_the_classes_of_unicode() {
        for code in 0..128u32 {
            assert_eq!(ASCII[code as usize], class(code), "U+{code:04x}");
        }
    }

    #[test]
    fn classes_are_those_of_unicode_15_1() {
        let expected = [
            ('é', LETTER),
            ('中', LETTER),
            ('\u{a3e4}', LETTER),
            ('٣', NUMBER),
            ('½', NUMBER),
            ('Ⅷ', NUMBER),
            ('。', PUNCTUATION),
            ('€', SYMBOL),
            ('😀', SYMBOL),
            ('\u{301}', MARK),
            ('\u{a0}', SPACE),
            ('\u{2029}', SPACE),
            ('\u{85}', SPACE),
            ('\u{200b}', OTHER),
            ('\u{e000}', OTHER),
            ('\u{1f}', OTHER),
            ('\u{2ebf0}', LETTER),
            ('\u{2ffc}', SYMBOL),
            ('\u{31ef}', SYMBOL),
            ('\u{378}', OTHER),
            ('\u{1c89}', OTHER),
            ('\u{323af}', LETTER),
            ('\u{323b0}', OTHER),
        ];
        for (char, class_of_char) in expected {
            assert_eq!(class(char as u32), class_of_char, "{char:?}");
        }
    }

    #[test]
    fn malformed_bytes_become_one_replacement_each_and_surrogates_stay() {
        let mut codes = Codes::default();
        codes.read(b"a\xff\xc3(\xed\xa0\x80\xc0\xaf\xf7\xbf\xbf\xbf");
        let bad = 0xfffd;
        assert_eq!(codes.codes, [0x61, bad, bad, 0x28, 0xd800, 0x2f, bad, bad, bad, bad]);
        assert_eq!(codes.bytes(3, 6), b"(\xed\xa0\x80/");
        codes.read("né".as_bytes());
        assert_eq!(codes.bytes(0, 2), "né".as_bytes());
    }
}
