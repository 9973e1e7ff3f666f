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
    /// string on is dropped.
    pub(crate) fn push(&mut self, piece: &str) -> (&str, Option<&str>) {
        self.held.drain(..self.shown);
        self.held.push_str(piece);
        let stops = self.stops.iter().filter(|s| !s.is_empty());
        let hit = stops.clone().filter_map(|s| Some((self.held.find(s.as_str())?, s))).min_by_key(|(at, _)| *at);
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
