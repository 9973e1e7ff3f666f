//! Grammars as llama.cpp's clients write them: rules `name ::= alternatives` over characters, of which `root` is the whole text.
//!
//! | file | what |
//! |---|---|
//! | `read` | from a text to rules |
//! | `pieces` | which rules may be cut out of the text as one piece |
//! | `lark` | from rules to the dialect that llguidance compiles |
//!
//! Taken are literals, classes, `.`, groups, `* + ? {n} {n,} {n,m}` and comments. Rules that name tokens of a vocabulary are not.

mod lark;
mod pieces;
mod read;

use crate::GrammarError;

/// A character or one of several, in ranges; `not`: any but these.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chars {
    ranges: Vec<(char, char)>,
    not: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Atom {
    Chars(Chars),
    /// A rule of the grammar, or a group, which is a rule without a name.
    Rule(usize),
}

/// An atom so many times; `most`: `None` is without end.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    atom: Atom,
    least: u32,
    most: Option<u32>,
}

/// What a rule stands for: one of these sequences.
type Alternatives = Vec<Vec<Item>>;

/// All rules; the one called `root` is `root`.
#[derive(Debug)]
struct Rules {
    all: Vec<Alternatives>,
    root: usize,
}

/// The grammar in llguidance's dialect.
///
/// # Errors
/// [`GrammarError::Syntax`] with the line and the column.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = read::read(text)?;
    if !pieces::can_end(&rules)[rules.root] {
        return Err(GrammarError::nothing());
    }
    Ok(lark::write(&rules))
}

/// What a grammar says of texts, found out in the obvious way: for each place in the text, where a rule can end that begins there.
#[cfg(test)]
pub(crate) fn naive(text: &str) -> impl Fn(&str) -> bool {
    use std::collections::{BTreeSet, HashMap};
    type Ends = BTreeSet<usize>;
    type Known = HashMap<(usize, usize), Ends>;

    fn once(atom: &Atom, text: &[char], at: usize, known: &mut Known) -> Ends {
        match atom {
            Atom::Chars(chars) => {
                let is = |c: &char| chars.ranges.iter().any(|(a, b)| (a..=b).contains(&c)) != chars.not;
                text.get(at).filter(|c| is(c)).map(|_| at + 1).into_iter().collect()
            }
            // what is not known of it yet comes in a later round
            Atom::Rule(rule) => known.entry((*rule, at)).or_default().clone(),
        }
    }

    fn item(item: &Item, text: &[char], from: &Ends, known: &mut Known) -> Ends {
        let (mut ends, mut now) = (Ends::new(), from.clone());
        for n in 0..=item.most.map_or(text.len() + item.least as usize, |most| most as usize) {
            if n >= item.least as usize {
                ends.extend(&now);
            }
            now = now.iter().flat_map(|&at| once(&item.atom, text, at, known)).collect();
            if now.is_empty() {
                break;
            }
        }
        ends
    }

    let rules = read::read(text).unwrap();
    move |text: &str| {
        let text: Vec<char> = text.chars().collect();
        let mut known = Known::from([((rules.root, 0), Ends::new())]);
        loop {
            let before = known.clone();
            for (rule, at) in before.keys() {
                for sequence in &rules.all[*rule] {
                    let start = Ends::from([*at]);
                    let ends = sequence.iter().fold(start, |from, one| item(one, &text, &from, &mut known));
                    known.entry((*rule, *at)).or_default().extend(ends);
                }
            }
            if known == before {
                return known[&(rules.root, 0)].contains(&text.len());
            }
        }
    }
}
