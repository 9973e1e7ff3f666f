//! Cuts special tokens out of a text before the rest is tokenised.
//!
//! Longer tokens go first *over the whole text*, not only where they start at the same place: with tokens `ab` and `bcd`
//! the text `abcd` is `a`, `bcd`. So all occurrences are found in one pass, and only where some overlap the tokens are
//! searched for one after another, within the stretch of text that the overlapping occurrences cover.

use std::ops::Range;

use aho_corasick::AhoCorasick;
use pi_core::text::{TokenId, TokenKind};

use super::error::VocabError;
use super::vocab::Texts;

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fragment {
    /// Text still to be tokenised.
    Text(Range<usize>),
    /// A special token that stood there.
    Token(TokenId),
}

#[derive(Debug)]
struct Entry {
    id: TokenId,
    text: Box<[u8]>,
    /// Control and unknown tokens are only found on request; user-defined tokens always.
    on_request: bool,
    /// Swallows the white space behind it.
    swallows: bool,
}

/// Finds the special tokens of a vocabulary in texts.
#[derive(Debug)]
pub(super) struct Partition {
    matcher: Option<AhoCorasick>,
    /// Longest first, then by number: the order in which they take what they need.
    entries: Vec<Entry>,
    any_swallows: bool,
}

/// What of a text may be a control token.
#[derive(Clone, Copy)]
pub(super) struct Rule<'a> {
    /// Whether anything may.
    pub parse_special: bool,
    /// Where nothing may: ascending ranges.
    pub quoted: &'a [Range<usize>],
}

impl Rule<'_> {
    fn allows(&self, entry: &Entry, found: &Range<usize>) -> bool {
        let quoted = || {
            let first = self.quoted.partition_point(|q| q.end <= found.start);
            self.quoted.get(first).is_some_and(|q| q.start < found.end)
        };
        !entry.on_request || (self.parse_special && !quoted())
    }
}

/// Occurrences that overlap, and which tokens they are of.
struct Cluster {
    serial: usize,
    range: Range<usize>,
    ranks: Vec<usize>,
}

impl Partition {
    pub(super) fn new(tokens: &Texts, kinds: &[TokenKind], model_name: &str) -> Result<Self, VocabError> {
        let name = model_name.to_ascii_lowercase();
        let phi3 = name.contains("phi-3") || name.contains("phi3");
        let mut entries: Vec<Entry> = tokens
            .iter()
            .zip(kinds)
            .zip(0..)
            .filter(|((text, kind), _)| {
                use TokenKind::{Control, Unknown, UserDefined};
                !text.is_empty() && matches!(kind, Control | UserDefined | Unknown)
            })
            .map(|((text, kind), id)| Entry {
                id,
                text: text.into(),
                on_request: *kind != TokenKind::UserDefined,
                swallows: phi3 && !matches!(text, b"<unk>" | b"<s>" | b"<|endoftext|>"),
            })
            .collect();
        entries.sort_by_key(|entry| (std::cmp::Reverse(entry.text.len()), entry.id));
        let matcher = match entries.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::new(entries.iter().map(|entry| &entry.text))
                    .map_err(|error| VocabError::Matcher(error.to_string()))?,
            ),
        };
        let any_swallows = entries.iter().any(|entry| entry.swallows);
        Ok(Self { matcher, entries, any_swallows })
    }

    /// The parts of `text` in order; no part is empty, and no two texts are neighbours.
    pub(super) fn split(&self, text: &[u8], rule: Rule<'_>) -> Vec<Fragment> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut fragments = Vec::new();
        let mut end = 0;
        for cluster in self.clusters(text, rule) {
            push_text(&mut fragments, end..cluster.range.start);
            end = cluster.range.end;
            for fragment in self.resolve(text, cluster, rule) {
                match fragment {
                    Fragment::Text(range) => push_text(&mut fragments, range),
                    token => fragments.push(token),
                }
            }
        }
        push_text(&mut fragments, end..text.len());
        fragments
    }

    fn clusters(&self, text: &[u8], rule: Rule<'_>) -> Vec<Cluster> {
        let Some(matcher) = &self.matcher else { return Vec::new() };
        let mut clusters: Vec<Cluster> = Vec::new();
        // The serial of the last cluster that lists a token: runs of, say, line feeds match in very many ways.
        let mut serials = 0..;
        let mut known = vec![usize::MAX; self.entries.len()];
        for found in matcher.find_overlapping_iter(text) {
            let rank = found.pattern().as_usize();
            let mut range = found.range();
            if !rule.allows(&self.entries[rank], &range) {
                continue;
            }
            // Occurrences come in the order of their ends: only clusters at the end of the list can overlap.
            let mut joined: Option<Cluster> = None;
            while let Some(last) = clusters.pop_if(|last| range.start < last.range.end) {
                range.start = range.start.min(last.range.start);
                match &mut joined {
                    None => joined = Some(last),
                    Some(cluster) => cluster.ranks.extend(last.ranks),
                }
            }
            let mut cluster = joined.unwrap_or_else(|| Cluster {
                serial: serials.next().unwrap_or_default(),
                range: range.clone(),
                ranks: Vec::new(),
            });
            cluster.range = range;
            if known[rank] != cluster.serial {
                cluster.ranks.push(rank);
                known[rank] = cluster.serial;
            }
            clusters.push(cluster);
        }
        if self.any_swallows && !clusters.is_empty() {
            // What is swallowed may reach into the next cluster.
            let ranks = clusters.into_iter().flat_map(|cluster| cluster.ranks).collect();
            clusters = vec![Cluster { serial: 0, range: 0..text.len(), ranks }];
        }
        clusters
    }

    fn resolve(&self, text: &[u8], mut cluster: Cluster, rule: Rule<'_>) -> Vec<Fragment> {
        cluster.ranks.sort_unstable();
        cluster.ranks.dedup();
        let mut fragments = vec![Fragment::Text(cluster.range)];
        for rank in cluster.ranks {
            let entry = &self.entries[rank];
            let finder = memchr::memmem::Finder::new(&entry.text);
            let mut next = Vec::with_capacity(fragments.len());
            for fragment in fragments {
                let Fragment::Text(mut range) = fragment else {
                    next.push(fragment);
                    continue;
                };
                let mut from = range.start;
                while let Some(at) = finder.find(&text[from..range.end]) {
                    let found = from + at;
                    if !rule.allows(entry, &(found..found + entry.text.len())) {
                        from = found + 1;
                        continue;
                    }
                    push_text(&mut next, range.start..found);
                    next.push(Fragment::Token(entry.id));
                    range.start = found + entry.text.len();
                    while entry.swallows && !range.is_empty() && matches!(text[range.start], b' ' | b'\t'..=b'\r') {
                        range.start += 1;
                    }
                    from = range.start;
                }
                push_text(&mut next, range);
            }
            fragments = next;
        }
        fragments
    }
}

/// Adds text to the list, joined with the text before it if they touch.
fn push_text(fragments: &mut Vec<Fragment>, range: Range<usize>) {
    if range.is_empty() {
        return;
    }
    match fragments.last_mut() {
        Some(Fragment::Text(last)) if last.end == range.start => last.end = range.end,
        _ => fragments.push(Fragment::Text(range)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn partition(tokens: &[(&str, TokenKind)], name: &str) -> Partition {
        let texts: Texts = tokens.iter().map(|(text, _)| text).collect();
        let kinds: Vec<_> = tokens.iter().map(|(_, kind)| *kind).collect();
        Partition::new(&texts, &kinds, name).unwrap()
    }

    const ALL: Rule<'_> = Rule { parse_special: true, quoted: &[] };
    const NONE: Rule<'_> = Rule { parse_special: false, quoted: &[] };

    /// The definition: token after token, longest first, over all remaining text.
    fn plainly(partition: &Partition, text: &[u8]) -> Vec<Fragment> {
        let ranks = (0..partition.entries.len()).collect();
        if text.is_empty() {
            Vec::new()
        } else {
            partition.resolve(text, Cluster { serial: 0, range: 0..text.len(), ranks }, NONE)
        }
    }

    #[test]
    fn a_longer_token_goes_first_even_if_it_starts_later() {
        let partition = partition(&[("ab", TokenKind::Control), ("bcd", TokenKind::Control)], "");
        assert_eq!(partition.split(b"abcd", ALL), [Fragment::Text(0..1), Fragment::Token(1)]);
        assert_eq!(partition.split(b"xabc", ALL), [Fragment::Text(0..1), Fragment::Token(0), Fragment::Text(3..4)]);
    }

    #[test]
    fn without_a_request_only_user_defined_tokens_are_found() {
        let tokens = [("<s>", TokenKind::Control), ("<?>", TokenKind::Unknown), ("<u>", TokenKind::UserDefined)];
        let partition = partition(&tokens, "");
        assert_eq!(partition.split(b"<s><?><u>", NONE), [Fragment::Text(0..6), Fragment::Token(2)]);
        assert_eq!(partition.split(b"<s><?><u>", ALL).len(), 3);
    }

    #[test]
    fn what_is_quoted_is_no_control_token() {
        let tokens = [("<s>", TokenKind::Control), ("<s><s>", TokenKind::Control), ("<u>", TokenKind::UserDefined)];
        let partition = partition(&tokens, "");
        let split = |text: &[u8], quoted: &[(usize, usize)]| {
            let quoted: Vec<Range<usize>> = quoted.iter().map(|&(start, end)| start..end).collect();
            partition.split(text, Rule { parse_special: true, quoted: &quoted })
        };
        assert_eq!(split(b"<s><s>", &[]), [Fragment::Token(1)]);
        assert_eq!(split(b"<s><s>", &[(3, 4)]), [Fragment::Token(0), Fragment::Text(3..6)]);
        assert_eq!(split(b"<s><s>", &[(0, 1)]), [Fragment::Text(0..3), Fragment::Token(0)]);
        assert_eq!(split(b"<s><s>x<s>", &[(0, 1), (5, 6)]), [Fragment::Text(0..7), Fragment::Token(0)]);
        assert_eq!(split(b"<u><s>", &[(0, 6)]), [Fragment::Token(2), Fragment::Text(3..6)]);
    }

    #[test]
    fn phi_3_tokens_swallow_the_space_behind_them() {
        let partition = partition(&[("<|end|>", TokenKind::Control), ("<s>", TokenKind::Control)], "Phi-3-mini");
        assert_eq!(partition.split(b"<|end|> \n x", ALL), [Fragment::Token(0), Fragment::Text(10..11)]);
        assert_eq!(partition.split(b"<s> x", ALL), [Fragment::Token(1), Fragment::Text(3..5)]);
        assert_eq!(partition.split(b"<|end|> ", ALL), [Fragment::Token(0)]);
    }

    #[test]
    fn a_megabyte_of_one_letter_is_split_in_a_moment() {
        let runs: Vec<(String, TokenKind)> = (1..32).map(|n| ("\n".repeat(n), TokenKind::UserDefined)).collect();
        let runs: Vec<_> = runs.iter().map(|(text, kind)| (text.as_str(), *kind)).collect();
        let partition = partition(&runs, "");
        let fragments = partition.split(&vec![b'\n'; 1 << 20], NONE);
        assert_eq!(fragments.len(), (1 << 20) / 31 + 1);
        assert_eq!(fragments.last(), Some(&Fragment::Token(((1 << 20) % 31 - 1) as TokenId)));
    }

    proptest! {
        #[test]
        fn the_one_pass_gives_what_token_after_token_gives(
            tokens in proptest::collection::btree_set("[abc]{1,4}", 1..8),
            text in "[abcd]{0,40}",
        ) {
            let tokens: Vec<_> = tokens.iter().map(|text| (text.as_str(), TokenKind::UserDefined)).collect();
            let partition = partition(&tokens, "");
            prop_assert_eq!(partition.split(text.as_bytes(), NONE), plainly(&partition, text.as_bytes()));
        }
    }
}
