//! A profile as bytes.

use super::{Counts, LayerCounts, Profile, ProfileError, TextProfile};
use std::io::{self, Write};

/// What a profile's file begins with.
pub const MAGIC: &[u8; 8] = b"pi-prof\n";
const VERSION: u32 = 2;
/// Without the texts' contexts.
const OLD: u32 = 1;
/// Tokens that a text can have: sums over neurons then never overflow.
const MOST: u64 = 1 << 36;

/// FNV-1a, 64 bits, over all parts: the same on every machine and in every version. Not for secrets.
pub fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    parts.into_iter().fold(START, |hash, part| part.iter().fold(hash, step))
}

const START: u64 = 0xcbf2_9ce4_8422_2325;

fn step(hash: u64, byte: &u8) -> u64 {
    (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
}

/// Passes bytes on and keeps their checksum.
struct Summing<W> {
    out: W,
    sum: u64,
}

impl<W: Write> Summing<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sum = bytes.iter().fold(self.sum, step);
        self.out.write_all(bytes)
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        self.number(text.len())?;
        self.put(text.as_bytes())
    }

    /// A count that memory holds, as u32.
    fn number(&mut self, n: usize) -> io::Result<()> {
        let n =
            u32::try_from(n).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{n} is too many")))?;
        self.put(&n.to_le_bytes())
    }
}

impl Profile {
    /// Writes the profile's file. (See [the module](super) for its format. To have it appear whole or not at all is the caller's
    /// part.)
    ///
    /// # Errors
    /// Whatever `out` reports.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut w = Summing { out, sum: START };
        w.put(MAGIC)?;
        w.put(&VERSION.to_le_bytes())?;
        w.text(&self.model)?;
        w.put(&self.fingerprint.to_le_bytes())?;
        w.number(self.shape.len())?;
        for (layer, neurons) in &self.shape {
            w.put(&layer.to_le_bytes())?;
            w.put(&neurons.to_le_bytes())?;
        }
        w.number(self.texts.len())?;
        for text in &self.texts {
            w.text(&text.name)?;
            for n in [text.fingerprint, text.length, text.position, text.context, text.counts.tokens()] {
                w.put(&n.to_le_bytes())?;
            }
            for layer in text.counts.layers() {
                layer.fired().iter().try_for_each(|n| w.put(&n.to_le_bytes()))?;
                layer.sums().iter().try_for_each(|v| w.put(&v.to_le_bytes()))?;
            }
        }
        let sum = w.sum.to_le_bytes();
        w.out.write_all(&sum)
    }

    /// Reads a profile's file. Every length is checked against what is there.
    ///
    /// # Errors
    /// If it is no such file, of another version, or damaged: the message says where.
    pub fn read(bytes: &[u8]) -> Result<Self, ProfileError> {
        let mut r = Reader { bytes, at: 0 };
        if r.take(8, "a profile")? != MAGIC {
            return Err(damaged(0, "a profile (pi-prof)", "something else"));
        }
        let version = r.u32()?;
        if ![OLD, VERSION].contains(&version) {
            return Err(damaged(8, format!("version {OLD} or {VERSION}"), format!("version {version}")));
        }
        let body = bytes.len().saturating_sub(8);
        if body < r.at {
            return Err(damaged(r.at, "the model's name", format!("{} bytes", bytes.len() - r.at)));
        }
        let sum = fingerprint([&bytes[..body]]);
        let stated = Reader { bytes, at: body }.u64()?;
        if sum != stated {
            return Err(damaged(body, format!("checksum {sum:016x}"), format!("{stated:016x}")));
        }
        r.bytes = &bytes[..body];
        let (model, fingerprint) = (r.text()?, r.u64()?);
        let layers = r.count(8, "layers")?;
        let mut shape = Vec::with_capacity(layers);
        for _ in 0..layers {
            let (at, layer, neurons) = (r.at, r.u32()?, r.u32()?);
            if let Some(&(before, _)) = shape.last().filter(|(before, _)| *before >= layer) {
                return Err(damaged(at, format!("a layer after {before}"), layer));
            }
            shape.push((layer, neurons));
        }
        let texts = r.count(36, "texts")?;
        let mut profile = Self { model, fingerprint, texts: Vec::with_capacity(texts), shape };
        for _ in 0..texts {
            let (name, fingerprint) = (r.text()?, r.u64()?);
            let (at, length, position) = (r.at, r.u64()?, r.u64()?);
            let context = if version == OLD { 0 } else { r.u64()? };
            let tokens = r.u64()?;
            if tokens > position || position > length || length > MOST {
                let got = format!("{tokens}, {position} and {length}");
                return Err(damaged(
                    at,
                    "no more tokens counted than passed, passed than there are, nor 2^36 in all",
                    got,
                ));
            }
            let layers = profile.shape.iter().map(|&(layer, neurons)| r.layer(layer, neurons, tokens));
            let counts = Counts::from_layers(tokens, layers.collect::<Result<_, _>>()?);
            profile.texts.push(TextProfile { name, fingerprint, length, position, context, counts });
        }
        match r.at == body {
            true => Ok(profile),
            false => Err(damaged(r.at, "the end", format!("{} bytes more", body - r.at))),
        }
    }
}

fn damaged(at: usize, expected: impl ToString, got: impl ToString) -> ProfileError {
    ProfileError::Damaged { at, expected: expected.to_string(), got: got.to_string() }
}

/// Bytes that may be anything.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8], ProfileError> {
        let rest = &self.bytes[self.at..];
        let Some(taken) = rest.get(..n) else {
            return Err(damaged(self.at, format!("{n} bytes of {what}"), format!("{} bytes", rest.len())));
        };
        self.at += n;
        Ok(taken)
    }

    fn u32(&mut self) -> Result<u32, ProfileError> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4, "a number")?);
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64, ProfileError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8, "a number")?);
        Ok(u64::from_le_bytes(bytes))
    }

    /// How many things of at least `size` bytes follow.
    fn count(&mut self, size: usize, what: &str) -> Result<usize, ProfileError> {
        let (at, n) = (self.at, self.u32()? as usize);
        let room = (self.bytes.len() - self.at) / size;
        if n > room { Err(damaged(at, format!("at most {room} {what}"), n)) } else { Ok(n) }
    }

    fn text(&mut self) -> Result<String, ProfileError> {
        let n = self.count(1, "bytes of text")?;
        let at = self.at;
        let bytes = self.take(n, "text")?;
        String::from_utf8(bytes.to_vec()).map_err(|_| damaged(at, "text in UTF-8", "other bytes"))
    }

    fn layer(&mut self, layer: u32, neurons: u32, tokens: u64) -> Result<LayerCounts, ProfileError> {
        let n = neurons as usize;
        let at = self.at;
        let what = format!("layer {layer}");
        let fired = self.take(n.saturating_mul(8), &what)?.as_chunks::<8>().0;
        let fired: Vec<u64> = fired.iter().map(|b| u64::from_le_bytes(*b)).collect();
        if let Some((i, &more)) = fired.iter().enumerate().find(|(_, n)| **n > tokens) {
            return Err(damaged(at + 8 * i, format!("a neuron that fired at most {tokens} times"), more));
        }
        let at = self.at;
        let sums = self.take(n.saturating_mul(8), &what)?.as_chunks::<8>().0;
        let sums: Vec<f64> = sums.iter().map(|b| f64::from_le_bytes(*b)).collect();
        if let Some((i, bad)) = sums.iter().enumerate().find(|(_, v)| !(v.is_finite() && **v >= 0.0)) {
            return Err(damaged(at + 8 * i, "a sum that is finite and not negative", bad));
        }
        Ok(LayerCounts::new(layer, fired, sums))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let mut profile = Profile::new("a model", 77, &[3, 2]);
        for (name, length) in [("one.txt", 5), ("zwei.txt", 9)] {
            let i = profile.begin(name, length * 11, length);
            let text = profile.text_mut(i).unwrap();
            text.position = 4;
            text.context = 512;
            text.counts.count_tokens(3);
            text.counts.layer_mut(0).unwrap().count(&[0.5, 0.0, -1.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0]);
            text.counts.layer_mut(1).unwrap().count(&[0.0, 0.0, 0.0, 4.0, 0.0, 0.25]);
        }
        profile
    }

    fn bytes(profile: &Profile) -> Vec<u8> {
        let mut bytes = Vec::new();
        profile.write(&mut bytes).unwrap();
        bytes
    }

    /// The same with a checksum that fits.
    fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
        let body = bytes.len() - 8;
        let sum = fingerprint([&bytes[..body]]);
        bytes[body..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_profile_is_read_as_it_was_written() {
        let profile = profile();
        assert_eq!(Profile::read(&bytes(&profile)).unwrap(), profile);
        assert_eq!(profile.texts()[0].counts.layers()[0].fired(), [2, 0, 2]);
        assert_eq!(profile.texts()[1].counts.layers()[1].sums(), [0.0, 4.25]);
        let empty = Profile::new("", 0, &[]);
        assert_eq!(Profile::read(&bytes(&empty)).unwrap(), empty);
    }

    #[test]
    fn the_format_stays_what_it_is() {
        // magic, version 2, "m", fingerprint 2, one layer: number 0, 1 neuron; no texts; checksum
        let want = "70692d70726f660a0200000001000000 6d0200000000000000010000000000000001000000 00000000";
        let want: String = want.split(' ').collect();
        let got = bytes(&Profile::new("m", 2, &[1]));
        let hex: String = got[..got.len() - 8].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, want);
        // FNV-1a's own test values
        assert_eq!(fingerprint([]), 0xcbf29ce484222325);
        assert_eq!(fingerprint([&b"foo"[..], b"bar"]), 0x85944171f73967e8);
    }

    #[test]
    fn files_of_version_1_are_read_without_the_contexts() {
        let mut old = profile();
        let mut bytes = bytes(&old);
        bytes[8] = 1;
        for name in [&b"zwei.txt"[..], b"one.txt"] {
            let at = bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 24;
            assert_eq!(bytes.drain(at..at + 8).collect::<Vec<_>>(), 512u64.to_le_bytes());
        }
        (0..2).for_each(|i| old.text_mut(i).unwrap().context = 0);
        assert_eq!(Profile::read(&summed(bytes)).unwrap(), old);
    }

    #[test]
    fn every_shortened_or_changed_file_is_refused() {
        let good = bytes(&profile());
        for len in 0..good.len() {
            assert!(Profile::read(&good[..len]).is_err(), "{len} bytes");
            if len > 8 {
                assert!(Profile::read(&summed(good[..len].to_vec())).is_err(), "{len} bytes with a checksum");
            }
        }
        for i in 0..good.len() {
            let mut bad = good.clone();
            bad[i] ^= 0x40;
            assert!(Profile::read(&bad).is_err(), "byte {i}");
            // with a fitting checksum it must at least not panic, nor ask for memory that the file cannot fill
            bad[i] = 0xff;
            let _ = Profile::read(&summed(bad));
        }
        let more = [&good[..good.len() - 8], &[0; 16]].concat();
        assert!(Profile::read(&summed(more)).unwrap_err().to_string().contains("expected the end"));
    }

    #[test]
    fn what_cannot_have_been_counted_is_named() {
        let good = bytes(&profile());
        // the first text's numbers follow its name
        let name = good.windows(7).position(|w| w == b"one.txt").unwrap() + 7;
        let change = |at: usize, bytes: &[u8]| {
            let mut bad = good.clone();
            bad[at..at + bytes.len()].copy_from_slice(bytes);
            Profile::read(&summed(bad)).unwrap_err().to_string()
        };
        assert!(change(name + 16, &100u64.to_le_bytes()).contains("passed than there are"));
        assert!(change(name + 40, &4u64.to_le_bytes()).contains("fired at most 3 times, got 4"));
        assert!(change(name + 64, &f64::NAN.to_le_bytes()).contains("finite"));
        assert!(change(8, &9u32.to_le_bytes()).contains("version 9"));
    }
}
