//! `tokenizer.model`: SentencePiece's vocabularies.
//!
//! The file is a protocol buffer message. Four fields of it are needed, so it is read here, field by field.

use pi_core::text::TokenKind;

/// A piece of a vocabulary.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub text: Vec<u8>,
    pub score: f32,
    pub kind: TokenKind,
}

/// What is needed of a SentencePiece model.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    pub pieces: Vec<Piece>,
    /// Ids that the trainer was told, where they differ from SentencePiece's own: begin, end, unknown, padding. Negative: none.
    pub ids: [Option<i32>; 4],
    /// A space is put in front of every text; true if the file does not say.
    pub space_prefix: Option<bool>,
}

enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
    Fixed64,
}

/// Takes the next field off a message.
fn field<'a>(bytes: &mut &'a [u8]) -> Result<(u64, Field<'a>), String> {
    let tag = varint(bytes)?;
    let value = match tag & 7 {
        0 => Field::Number(varint(bytes)?),
        1 => {
            take(bytes, 8)?;
            Field::Fixed64
        }
        2 => {
            let len = varint(bytes)?;
            Field::Bytes(take(bytes, len)?)
        }
        5 => Field::Fixed32(take(bytes, 4)?.try_into().map_err(|_| "it is cut off")?),
        other => return Err(format!("a field of type {other}")),
    };
    Ok((tag >> 3, value))
}

fn take<'a>(bytes: &mut &'a [u8], len: u64) -> Result<&'a [u8], String> {
    let len = usize::try_from(len).ok().filter(|&len| len <= bytes.len()).ok_or("it is cut off")?;
    let (taken, rest) = bytes.split_at(len);
    *bytes = rest;
    Ok(taken)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, String> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("it is cut off")?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number that is too long".into())
}

/// Calls `each` with every field of a message.
fn fields<'a>(mut bytes: &'a [u8], mut each: impl FnMut(u64, Field<'a>) -> Result<(), String>) -> Result<(), String> {
    while !bytes.is_empty() {
        let (number, value) = field(&mut bytes)?;
        each(number, value)?;
    }
    Ok(())
}

/// Reads a model.
pub(super) fn parse(bytes: &[u8]) -> Result<Pieces, String> {
    let mut model = Pieces::default();
    fields(bytes, |number, value| {
        match (number, value) {
            (1, Field::Bytes(message)) => model.pieces.push(piece(message)?),
            (2, Field::Bytes(message)) => trainer(message, &mut model)?,
            (3, Field::Bytes(message)) => fields(message, |number, value| {
                if let (3, Field::Number(flag)) = (number, value) {
                    model.space_prefix = Some(flag != 0);
                }
                Ok(())
            })?,
            _ => {}
        }
        Ok(())
    })?;
    match model.pieces.is_empty() {
        true => Err("it has no pieces".into()),
        false => Ok(model),
    }
}

fn piece(message: &[u8]) -> Result<Piece, String> {
    let mut piece = Piece { text: Vec::new(), score: 0.0, kind: TokenKind::Normal };
    fields(message, |number, value| {
        match (number, value) {
            (1, Field::Bytes(text)) => piece.text = text.to_vec(),
            (2, Field::Fixed32(score)) => piece.score = f32::from_le_bytes(score),
            (3, Field::Number(kind)) => {
                piece.kind = match kind {
                    1 => TokenKind::Normal,
                    2 => TokenKind::Unknown,
                    3 => TokenKind::Control,
                    4 => TokenKind::UserDefined,
                    5 => TokenKind::Unused,
                    6 => TokenKind::Byte,
                    other => return Err(format!("a piece of type {other}")),
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(piece)
}

fn trainer(message: &[u8], model: &mut Pieces) -> Result<(), String> {
    fields(message, |number, value| {
        // Numbers of the format: the kind of model, and four ids.
        if let Field::Number(value) = value {
            match number {
                3 if !matches!(value, 1 | 2) => return Err(format!("a model of type {value}: unigram or BPE is read")),
                41 => model.ids[0] = Some(value as i32),
                42 => model.ids[1] = Some(value as i32),
                40 => model.ids[2] = Some(value as i32),
                43 => model.ids[3] = Some(value as i32),
                _ => {}
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_model_is_refused_at_any_length_without_panicking() {
        // A piece "ab" with score 1.5 of type 3, a trainer with bos 7, a normalizer without a space.
        let whole = b"\x0a\x0b\x0a\x02ab\x15\0\0\xc0\x3f\x18\x03\x12\x03\xc8\x02\x07\x1a\x02\x18\0";
        let model = parse(whole).unwrap();
        assert_eq!(model.pieces, [Piece { text: b"ab".to_vec(), score: 1.5, kind: TokenKind::Control }]);
        assert_eq!((model.ids, model.space_prefix), ([Some(7), None, None, None], Some(false)));
        for len in 0..whole.len() {
            // Some cuts fall between messages: then it is a shorter model.
            let cut = parse(&whole[..len]);
            assert_eq!(cut.is_ok(), [13, 18].contains(&len), "{len}: {cut:?}");
        }
        for bytes in [
            &b"\xff"[..],
            b"\x0b",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        ] {
            assert!(parse(bytes).is_err());
        }
    }
}
