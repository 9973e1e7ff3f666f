//! The alphabet of byte-level vocabularies: every byte as a printable character, so that tokens can be stored as text.
//!
//! Printable bytes of Latin-1 stand for themselves; the other 68, in order, are the characters from U+0100.

/// Whether a byte is its own character.
const fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The character of every byte.
pub(super) const CHARS: [char; 256] = {
    let mut chars = ['\0'; 256];
    let mut next = 0x100u32;
    let mut byte = 0;
    while byte < 256 {
        let code = if is_printable(byte as u8) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        chars[byte] = match char::from_u32(code) {
            Some(char) => char,
            None => panic!("the alphabet lies below the surrogates"),
        };
        byte += 1;
    }
    chars
};

/// The byte of a character of the alphabet.
fn byte(char: char) -> Option<u8> {
    match char as u32 {
        code @ 0..=0xff => is_printable(code as u8).then_some(code as u8),
        code @ 0x100..=0x143 => CHARS.iter().position(|&c| c as u32 == code).map(|byte| byte as u8),
        _ => None,
    }
}

/// Appends the stored form of `bytes`.
pub(super) fn encode(bytes: &[u8], text: &mut Vec<u8>) {
    for &byte in bytes {
        text.extend_from_slice(CHARS[byte as usize].encode_utf8(&mut [0; 4]).as_bytes());
    }
}

/// Appends the bytes that the stored `text` stands for. What is not of the alphabet stands for itself.
pub(super) fn decode(text: &[u8], bytes: &mut Vec<u8>) {
    for chunk in text.utf8_chunks() {
        for char in chunk.valid().chars() {
            match byte(char) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        bytes.extend_from_slice(chunk.invalid());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character_and_comes_back() {
        let all: Vec<u8> = (0..=255).collect();
        let mut text = Vec::new();
        encode(&all, &mut text);
        let mut back = Vec::new();
        decode(&text, &mut back);
        assert_eq!(back, all);
        assert_eq!((CHARS[b' ' as usize], CHARS[b'\n' as usize], CHARS[0xad]), ('Ġ', 'Ċ', 'Ń'));
    }

    #[test]
    fn what_is_not_of_the_alphabet_stands_for_itself() {
        let mut back = Vec::new();
        decode("你 x".as_bytes(), &mut back);
        decode(&[0xff, b'y'], &mut back);
        assert_eq!(back, [b"\xe4\xbd\xa0 x".as_slice(), &[0xff, b'y']].concat());
    }
}
