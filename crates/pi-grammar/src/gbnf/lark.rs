//! From rules to the dialect that llguidance compiles.
//!
//! There a lexer cuts the text up first, always taking the longest piece, and rules see only pieces; in GBNF rules see characters.
//! A rule that calls no recursive one is regular: it becomes one piece where that makes no difference (`pieces` decides), and so
//! does the whole grammar if its root is regular. In all other places a piece is a single character, which is slower.

use super::{
    Atom, Chars, Item, Rules,
    pieces::{self, Kind},
};
use std::fmt::Write;

pub(super) fn write(rules: &Rules) -> String {
    let kinds = pieces::kinds(rules);
    let empty = pieces::can_be_empty(rules);
    let within = pieces::within(rules, &kinds);
    let mut out = String::new();
    // pieces must not be empty: where a rule may be, N is the rest of it
    let call = |rule: usize, item: &Item| match kinds[rule] {
        Kind::Piece if empty[rule] => format!("N{rule}{}", times(&Item { least: 0, ..item.clone() })),
        Kind::Piece => format!("T{rule}{}", times(item)),
        Kind::Characters => format!("r{rule}{}", times(item)),
    };
    let once = Item { atom: Atom::Rule(rules.root), least: 1, most: Some(1) };
    let _ = writeln!(out, "start: {}", call(rules.root, &once));
    for (i, alternatives) in rules.all.iter().enumerate() {
        if within[i] {
            let item = |item: &Item| match &item.atom {
                Atom::Chars(chars) => class(chars) + &times(item),
                Atom::Rule(rule) => format!("T{rule}{}", times(item)),
            };
            let _ = writeln!(out, "T{i}: {}", joined(alternatives, item));
        }
        if kinds[i] == Kind::Characters {
            let item = |item: &Item| match &item.atom {
                Atom::Chars(chars) => class(chars) + &times(item),
                Atom::Rule(rule) => call(*rule, item),
            };
            let _ = writeln!(out, "r{i}: {}", joined(alternatives, item));
        } else if empty[i] {
            let _ = writeln!(out, "N{i}: T{i} & /(?s:.+)/");
        }
    }
    out
}

fn joined(alternatives: &[Vec<Item>], item: impl Fn(&Item) -> String) -> String {
    let sequence = |items: &Vec<Item>| match items[..] {
        [] => "\"\"".to_string(),
        _ => items.iter().map(&item).collect::<Vec<_>>().join(" "),
    };
    alternatives.iter().map(sequence).collect::<Vec<_>>().join(" | ")
}

fn times(item: &Item) -> String {
    match (item.least, item.most) {
        (1, Some(1)) => String::new(),
        (0, Some(1)) => "?".into(),
        (0, None) => "*".into(),
        (1, None) => "+".into(),
        (least, Some(most)) => format!("{{{least},{most}}}"),
        (least, None) => format!("{{{least},}}"),
    }
}

fn class(chars: &Chars) -> String {
    if chars.ranges.is_empty() {
        return "/(?s:.)/".into();
    }
    let mut out = String::from(if chars.not { "/[^" } else { "/[" });
    for (first, last) in &chars.ranges {
        let _ = write!(out, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(*first), u32::from(*last));
    }
    out + "]/"
}
