//! Stop strings in streamed text.

/// Looks for stop strings in text that comes in pieces. Text that may be the start of one is held back until it is decided.
#[derive(Debug)]
pub(crate) struct StopFilter {
    stops: Vec<String>,
    held: String,
    /// Bytes at the start of `held` that were given away by the last call.
    shown: usize,
}

impl StopFilter {
    /// Empty stop strings are ignored.
    pub(crate) fn new(stops: &[String]) -> Self {
        Self { stops: stops.to_vec(), held: String::with_capacity(256), shown: 0 }
    }

    /// Adds a piece; returns the text that is now safe to show, and the stop string if one is complete. Text from the stop
    /// string on is dropped. Of several it is the one that is complete first, wherever pieces begin and end; of those that end together the
    /// longest.
    pub(crate) fn push(&mut self, piece: &str) -> (&str, Option<&str>) {
        self.held.drain(..self.shown);
        self.held.push_str(piece);
        let stops = self.stops.iter().filter(|s| !s.is_empty());
        let found = stops.clone().filter_map(|s| Some((self.held.find(s.as_str())?, s)));
        let hit = found.min_by_key(|(at, s)| (at + s.len(), *at));
        if let Some((at, stop)) = hit {
            self.held.truncate(at);
            self.shown = at;
            return (&self.held, Some(stop));
        }
        let mut keep = 0;
        for stop in stops {
            let starts = stop.char_indices().map(|(i, _)| i).skip(1).filter(|&n| self.held.ends_with(&stop[..n]));
            keep = keep.max(starts.max().unwrap_or(0));
        }
        self.shown = self.held.len() - keep;
        (&self.held[..self.shown], None)
    }

    /// What was held back when the text ended.
    pub(crate) fn finish(&self) -> &str {
        &self.held[self.shown..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::Utf8Stream;
    use proptest::prelude::*;

    /// What comes out of bytes that come in pieces, and the stop string that ended it.
    fn streamed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, stops: &[String]) -> (String, Option<String>) {
        let (mut utf8, mut filter, mut shown) = (Utf8Stream::new(), StopFilter::new(stops), String::new());
        for piece in pieces {
            let (text, stop) = filter.push(utf8.push(piece));
            shown += text;
            if let Some(stop) = stop {
                return (shown, Some(stop.into()));
            }
        }
        let (text, stop) = filter.push(utf8.finish());
        shown += text;
        let stop = stop.map(String::from);
        (shown + filter.finish(), stop)
    }

    /// The same of the whole: the text before the stop string that is complete first.
    fn whole(bytes: &[u8], stops: &[String]) -> (String, Option<String>) {
        let text = String::from_utf8_lossy(bytes).into_owned();
        for end in text.char_indices().map(|(i, c)| i + c.len_utf8()) {
            let ended = stops.iter().filter(|s| !s.is_empty() && text[..end].ends_with(s.as_str()));
            if let Some(stop) = ended.max_by_key(|s| s.len()) {
                return (text[..end - stop.len()].into(), Some(stop.clone()));
            }
        }
        (text, None)
    }

    #[test]
    fn streamed_text_is_the_whole_text_for_every_split() {
        for (text, stops) in [
            ("ab😀cé…".as_bytes(), &["😀d", "é…!"][..]),
            (b"xabcdy", &["abcd", "bc"]),
            (b"xabcy", &["bc", "abc", "c"]),
            ("é😀é😀é".as_bytes(), &["😀é😀é"]),
            (b"aaaaaab", &["aaab"]),
            (b"a\xf0\x9f\x98b\xffc\xe2\x80", &["\u{fffd}c", "zz"]),
            (b"a\xf0\x9f", &["\u{fffd}"]),
        ] {
            let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
            let want = whole(text, &stops);
            // a bit for every place between two bytes: cut there or not
            for cuts in 0..1u32 << (text.len() - 1) {
                let (mut pieces, mut from) = (Vec::new(), 0);
                for to in (1..text.len()).filter(|i| cuts >> (i - 1) & 1 == 1).chain([text.len()]) {
                    pieces.push(&text[from..to]);
                    from = to;
                }
                assert_eq!(streamed(pieces.iter().copied(), &stops), want, "{pieces:?} {stops:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn streamed_text_is_the_whole_text_for_any_bytes_stops_and_split(
            parts in proptest::collection::vec(
                prop_oneof![
                    4 => "[ab😀é]".prop_map(String::into_bytes),
                    1 => proptest::collection::vec(any::<u8>(), 0..3),
                ],
                0..24,
            ),
            stops in proptest::collection::vec("[ab😀é]{0,4}", 0..4),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..24),
        ) {
            let bytes = parts.concat();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
            prop_assert_eq!(streamed(pieces, &stops), whole(&bytes, &stops));
        }
    }

    #[test]
    fn a_stop_string_is_found_across_any_split_and_none_of_it_is_shown() {
        let text = "A B C … O P O P Q R";
        let stops = ["O P Q".to_string(), String::new(), "zzz".into()];
        let cuts: Vec<usize> = (0..=text.len()).filter(|&i| text.is_char_boundary(i)).collect();
        for &a in &cuts {
            for &b in cuts.iter().filter(|&&b| b >= a) {
                let mut filter = StopFilter::new(&stops);
                let (mut shown, mut hit) = (String::new(), None);
                for piece in [&text[..a], &text[a..b], &text[b..]] {
                    if hit.is_none() {
                        let (out, stop) = filter.push(piece);
                        shown += out;
                        hit = stop;
                    }
                }
                assert_eq!((shown.as_str(), hit), ("A B C … O P ", Some("O P Q")));
            }
        }
    }

    #[test]
    fn text_that_only_began_like_a_stop_string_is_shown_in_the_end() {
        let stops = ["end".to_string()];
        let mut filter = StopFilter::new(&stops);
        assert_eq!(filter.push("the en"), ("the ", None));
        assert_eq!(filter.push("emy e"), ("enemy ", None));
        assert_eq!(filter.finish(), "e");
    }
}
