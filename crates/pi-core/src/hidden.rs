//! The rows of numbers that flow between operators.

use crate::{Error, Resident, Result};

/// The name of a way to write a row of activations as bytes. What the bytes mean is the business of the device that writes
/// and reads them; two forms of different layout must have different names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Form(pub &'static str);

impl Form {
    /// The numbers themselves, as they lie in memory.
    pub const F32: Form = Form("f32");
}

/// Rows of encoded activations start at multiples of this many bytes if their length is such a multiple, so that no load of
/// a vector crosses two cache lines.
const ALIGN: usize = 64;

/// Hidden states of a step: `tokens` rows of `dim` numbers.
///
/// It remembers the encoded forms that operators asked for, so that an input is quantised once however many matrices read it.
#[derive(Debug)]
pub struct Hidden {
    tokens: usize,
    max_tokens: usize,
    dim: usize,
    data: Resident<f32>,
    encoded: Vec<Encoded>,
}

#[derive(Debug)]
struct Encoded {
    form: Form,
    row_bytes: usize,
    bytes: Vec<u8>,
    /// Where the rows start in `bytes`.
    start: usize,
    current: bool,
}

impl Encoded {
    fn make_room(&mut self, bytes: usize) {
        if self.bytes.len() < bytes + ALIGN {
            self.bytes.resize(bytes + ALIGN, 0);
            self.start = self.bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        }
    }
}

impl Hidden {
    /// Zeros on the host: room for `max_tokens` rows of `dim` numbers.
    pub fn new(max_tokens: usize, dim: usize) -> Self {
        Self::with_data(max_tokens, dim, Resident::new(max_tokens * dim))
    }

    /// The same, but an error instead of an abort when there is no memory.
    ///
    /// # Errors
    /// [`Error::Device`] naming the bytes that were asked for.
    pub fn try_new(max_tokens: usize, dim: usize) -> Result<Self> {
        let data = Resident::try_new(max_tokens.saturating_mul(dim))?;
        Ok(Self::with_data(max_tokens, dim, data))
    }

    /// The same over an array that a device made; it must hold `max_tokens × dim` numbers.
    ///
    /// # Panics
    /// If it does not.
    pub fn with_data(max_tokens: usize, dim: usize, data: Resident<f32>) -> Self {
        assert_eq!(data.len(), max_tokens * dim);
        Self { tokens: max_tokens, max_tokens, dim, data, encoded: Vec::new() }
    }

    /// Most rows.
    pub fn max_tokens(&self) -> usize {
        self.max_tokens
    }

    /// Number of rows in use.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Numbers per row.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Sets the number of rows in use. Their contents are whatever they were.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond the rows it was made for.
    pub fn resize(&mut self, tokens: usize) -> Result<()> {
        if tokens > self.max_tokens {
            let limit = self.max_tokens;
            return Err(Error::Limit { what: "rows of a hidden state".into(), limit, got: tokens });
        }
        self.tokens = tokens;
        self.data.set_used(tokens * self.dim);
        self.stale();
        Ok(())
    }

    /// The rows on the host, row-major.
    ///
    /// # Errors
    /// If the newest copy is on a device that fails.
    pub fn host(&mut self) -> Result<&[f32]> {
        let n = self.tokens * self.dim;
        Ok(&self.data.host()?[..n])
    }

    /// The rows on the host, to be changed.
    ///
    /// # Errors
    /// If the newest copy is on a device that fails.
    pub fn host_mut(&mut self) -> Result<&mut [f32]> {
        self.stale();
        let n = self.tokens * self.dim;
        Ok(&mut self.data.host_mut()?[..n])
    }

    /// The rows on the host, to be overwritten entirely.
    pub fn host_overwrite(&mut self) -> &mut [f32] {
        self.stale();
        let n = self.tokens * self.dim;
        &mut self.data.host_overwrite()[..n]
    }

    /// The array that knows where its newest copy is. Whoever writes to it must call [`stale`](Self::stale).
    pub fn resident(&mut self) -> &mut Resident<f32> {
        &mut self.data
    }

    /// Forgets the encoded forms.
    pub fn stale(&mut self) {
        self.encoded.iter_mut().for_each(|e| e.current = false);
    }

    /// Makes sure that the rows are encoded in `form`: `encode(rows, out)` is called if that was not done since the last
    /// change, with room for `row_bytes` bytes per row, full of whatever was there before. For [`Form::F32`] the rows
    /// themselves are the encoded form and `encode` is not called.
    ///
    /// # Errors
    /// If the newest copy is on a device that fails.
    pub fn encode(&mut self, form: Form, row_bytes: usize, encode: impl FnOnce(&[f32], &mut [u8])) -> Result<()> {
        let n = self.tokens * self.dim;
        if form == Form::F32 {
            self.data.host()?;
            return Ok(());
        }
        let i = match self.encoded.iter().position(|e| e.form == form) {
            Some(i) => i,
            None => {
                self.encoded.push(Encoded { form, row_bytes, bytes: Vec::new(), start: 0, current: false });
                self.encoded.len() - 1
            }
        };
        let slot = &mut self.encoded[i];
        if !slot.current || slot.row_bytes != row_bytes {
            let bytes = self.tokens * row_bytes;
            slot.make_room(bytes);
            encode(&self.data.host()?[..n], &mut slot.bytes[slot.start..][..bytes]);
            (slot.row_bytes, slot.current) = (row_bytes, true);
        }
        Ok(())
    }

    /// The rows as [`encode`](Self::encode) left them; `None` if that was not done since the last change.
    pub fn encoded(&self, form: Form) -> Option<EncodedRows<'_>> {
        if form == Form::F32 {
            let rows = &self.data.peek()?[..self.tokens * self.dim];
            return Some(EncodedRows { bytes: bytemuck::cast_slice(rows), row_bytes: 4 * self.dim });
        }
        let slot = self.encoded.iter().find(|e| e.form == form && e.current)?;
        Some(EncodedRows {
            bytes: &slot.bytes[slot.start..][..self.tokens * slot.row_bytes],
            row_bytes: slot.row_bytes,
        })
    }
}

/// Encoded rows, borrowed from a [`Hidden`].
#[derive(Clone, Copy, Debug)]
pub struct EncodedRows<'a> {
    bytes: &'a [u8],
    row_bytes: usize,
}

impl<'a> EncodedRows<'a> {
    /// Row `t`.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&self, t: usize) -> &'a [u8] {
        &self.bytes[t * self.row_bytes..(t + 1) * self.row_bytes]
    }

    /// Rows from `t` to the last, one after the other.
    ///
    /// # Panics
    /// If there are fewer than `t` rows.
    #[inline]
    pub fn from(&self, t: usize) -> &'a [u8] {
        &self.bytes[t * self.row_bytes..]
    }

    /// Bytes from the start of a row to that of the next.
    #[inline]
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QuantType;

    #[test]
    fn an_input_is_encoded_once_until_it_changes() {
        const HALF: Form = Form("half");
        let mut h = Hidden::new(2, 4);
        let mut count = 0;
        for change in [false, false, true, false] {
            if change {
                h.host_mut().unwrap()[0] = 1.0;
            }
            h.encode(HALF, 8, |x, out| {
                count += 1;
                (QuantType::F16.info().encode)(x, out);
            })
            .unwrap();
        }
        assert_eq!(count, 2);
        let rows = h.encoded(HALF).unwrap();
        assert_eq!((rows.row(0).as_ptr() as usize % ALIGN, rows.row_bytes(), rows.from(1).len()), (0, 8, 8));
        assert_eq!(rows.row(0)[..2], [0x00, 0x3c]);
        assert_eq!(h.encoded(Form::F32).unwrap().row(0)[..4], 1f32.to_le_bytes());
        h.stale();
        assert!(h.encoded(HALF).is_none());
        assert!(matches!(h.resize(3), Err(Error::Limit { limit: 2, got: 3, .. })));
    }

    #[test]
    fn rows_of_no_numbers_are_counted_like_others() {
        let mut h = Hidden::new(4, 0);
        h.resize(3).unwrap();
        assert_eq!((h.tokens(), h.host().unwrap().len()), (3, 0));
        assert!(matches!(h.resize(5), Err(Error::Limit { limit: 4, got: 5, .. })));
        assert!(Hidden::try_new(usize::MAX, 2).is_err());
    }
}
