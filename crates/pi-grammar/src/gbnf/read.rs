//! From a text to rules. Groups become rules of their own, so that nothing nests in what comes out.

use super::{Alternatives, Atom, Chars, Item, Rules};
use crate::GrammarError;
use std::collections::HashMap;

/// Deepest nesting of groups: reading one calls itself.
const DEEPEST: usize = 100;
/// Most rules, groups counted.
const MOST_RULES: usize = 8192;
/// Largest number in `{n,m}`.
const MOST_TIMES: u32 = 2000;

struct Reader<'a> {
    text: &'a str,
    at: usize,
    rules: Vec<Option<Alternatives>>,
    /// Where each name was used first, and its rule.
    names: HashMap<&'a str, (usize, usize)>,
    depth: usize,
}

pub(super) fn read(text: &str) -> Result<Rules, GrammarError> {
    let mut reader = Reader { text, at: 0, rules: Vec::new(), names: HashMap::new(), depth: 0 };
    reader.space(true);
    while !reader.is_over() {
        reader.rule()?;
        reader.space(true);
    }
    let undefined = reader.names.iter().filter(|(_, (_, rule))| reader.rules[*rule].is_none());
    if let Some((name, (at, _))) = undefined.min_by_key(|(_, (at, _))| *at) {
        return Err(reader.wrong(*at, format!("there is no rule {name}")));
    }
    let Some(&(_, root)) = reader.names.get("root") else {
        return Err(reader.wrong(text.len(), "there is no rule root, which is the whole text".into()));
    };
    let all = reader.rules.into_iter().map(Option::unwrap_or_default).collect();
    Ok(Rules { all, root })
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn is_over(&self) -> bool {
        self.at >= self.text.len()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, what: &str) -> bool {
        let there = self.rest().starts_with(what);
        self.at += if there { what.len() } else { 0 };
        there
    }

    fn wrong(&self, at: usize, why: String) -> GrammarError {
        let before = &self.text[..at];
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        GrammarError::Syntax { dialect: "GBNF", line, column, why }
    }

    /// The error for what stands here.
    fn expected<T>(&self, what: &str) -> Result<T, GrammarError> {
        let got = self.peek().map_or("the end".into(), |c| format!("{c:?}"));
        Err(self.wrong(self.at, format!("expected {what}, got {got}")))
    }

    /// Blanks and comments; line feeds as well if `lines`.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\n' | '\r' if lines => self.at += 1,
                '#' => self.at += self.rest().find('\n').unwrap_or(self.rest().len()),
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Result<(usize, &'a str), GrammarError> {
        let at = self.at;
        let len = self.rest().find(|c| !is_name(c)).unwrap_or(self.rest().len());
        if len == 0 {
            return self.expected("the name of a rule");
        }
        self.at += len;
        Ok((at, &self.text[at..at + len]))
    }

    fn new_rule(&mut self, at: usize) -> Result<usize, GrammarError> {
        if self.rules.len() == MOST_RULES {
            return Err(self.wrong(at, format!("more than {MOST_RULES} rules and groups")));
        }
        self.rules.push(None);
        Ok(self.rules.len() - 1)
    }

    /// The rule of a name, whether it was defined already or not.
    fn named(&mut self, at: usize, name: &'a str) -> Result<usize, GrammarError> {
        if let Some(&(_, rule)) = self.names.get(name) {
            return Ok(rule);
        }
        let rule = self.new_rule(at)?;
        self.names.insert(name, (at, rule));
        Ok(rule)
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let (at, name) = self.name()?;
        let rule = self.named(at, name)?;
        if self.rules[rule].is_some() {
            return Err(self.wrong(at, format!("there are two rules {name}")));
        }
        self.space(false);
        if !self.take("::=") {
            return self.expected("::=");
        }
        self.space(true);
        self.rules[rule] = Some(self.alternatives(false)?);
        self.space(false);
        match self.peek() {
            None | Some('\n' | '\r') => Ok(()),
            _ => self.expected("the end of the line"),
        }
    }

    /// Sequences with `|` between them. In a group they may go over several lines.
    fn alternatives(&mut self, group: bool) -> Result<Alternatives, GrammarError> {
        let mut all = vec![self.sequence(group)?];
        while self.take("|") {
            self.space(true);
            all.push(self.sequence(group)?);
        }
        Ok(all)
    }

    fn sequence(&mut self, group: bool) -> Result<Vec<Item>, GrammarError> {
        let mut items: Vec<Item> = Vec::new();
        loop {
            let at = self.at;
            let atoms = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => vec![Atom::Chars(self.class()?)],
                Some('.') => {
                    self.at += 1;
                    vec![Atom::Chars(Chars { ranges: Vec::new(), not: true })]
                }
                Some('(') => vec![self.group()?],
                Some('<' | '!') => {
                    return Err(self.wrong(at, "tokens of the vocabulary are not taken in rules, only text".into()));
                }
                Some(c) if is_name(c) => {
                    let (at, name) = self.name()?;
                    vec![Atom::Rule(self.named(at, name)?)]
                }
                _ => return Ok(items),
            };
            let once = |atom| Item { atom, least: 1, most: Some(1) };
            match self.times()? {
                None => items.extend(atoms.into_iter().map(once)),
                Some((least, most)) => {
                    let atom = match <[Atom; 1]>::try_from(atoms) {
                        Ok([atom]) => atom,
                        // a literal of several characters is repeated as a whole
                        Err(atoms) => {
                            let rule = self.new_rule(at)?;
                            self.rules[rule] = Some(vec![atoms.into_iter().map(once).collect()]);
                            Atom::Rule(rule)
                        }
                    };
                    items.push(Item { atom, least, most });
                }
            }
            self.space(group);
        }
    }

    /// `*`, `+`, `?` or numbers in braces. Several on each other are not taken.
    fn times(&mut self) -> Result<Option<(u32, Option<u32>)>, GrammarError> {
        let times = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.numbers().map(Some),
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(times))
    }

    fn numbers(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let at = self.at;
        self.at += 1;
        self.space(false);
        let least = self.number()?;
        self.space(false);
        let most = if self.take(",") {
            self.space(false);
            if self.peek() == Some('}') { None } else { Some(self.number()?) }
        } else {
            Some(least)
        };
        self.space(false);
        if !self.take("}") {
            return self.expected("}");
        }
        if most.is_some_and(|most| most < least) {
            return Err(self.wrong(at, "the second number is smaller than the first".into()));
        }
        Ok((least, most))
    }

    fn number(&mut self) -> Result<u32, GrammarError> {
        let digits = self.rest().find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest().len());
        if digits == 0 {
            return self.expected("a number");
        }
        match self.rest()[..digits].parse() {
            Ok(n) if n <= MOST_TIMES => {
                self.at += digits;
                Ok(n)
            }
            _ => Err(self.wrong(self.at, format!("a number above {MOST_TIMES}"))),
        }
    }

    fn group(&mut self) -> Result<Atom, GrammarError> {
        let at = self.at;
        if self.depth == DEEPEST {
            return Err(self.wrong(at, format!("more than {DEEPEST} groups in each other")));
        }
        self.depth += 1;
        self.at += 1;
        self.space(true);
        let rule = self.new_rule(at)?;
        self.rules[rule] = Some(self.alternatives(true)?);
        self.depth -= 1;
        if !self.take(")") {
            return self.expected("an element or )");
        }
        Ok(Atom::Rule(rule))
    }

    /// The characters of `"…"`.
    fn literal(&mut self) -> Result<Vec<Atom>, GrammarError> {
        let at = self.at;
        self.at += 1;
        let mut atoms = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.wrong(at, "the text that begins here has no end".into())),
                Some('"') => break,
                Some(_) => {
                    let c = self.character()?;
                    atoms.push(Atom::Chars(Chars { ranges: vec![(c, c)], not: false }));
                }
            }
        }
        self.at += 1;
        Ok(atoms)
    }

    /// `[…]` or `[^…]`.
    fn class(&mut self) -> Result<Chars, GrammarError> {
        let start = self.at;
        self.at += 1;
        let not = self.take("^");
        let mut ranges = Vec::new();
        loop {
            let at = self.at;
            match self.peek() {
                None => {
                    return Err(self.wrong(start, "the class that begins here has no end".into()));
                }
                Some(']') => break,
                Some(_) => {
                    let first = self.character()?;
                    let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
                    let last = if is_range {
                        self.at += 1;
                        self.character()?
                    } else {
                        first
                    };
                    if last < first {
                        return Err(self.wrong(at, "the range ends before it begins".into()));
                    }
                    ranges.push((first, last));
                }
            }
        }
        self.at += 1;
        if ranges.is_empty() && !not {
            return Err(self.wrong(start, "an empty class matches nothing".into()));
        }
        Ok(Chars { ranges, not })
    }

    /// A character of a literal or a class, perhaps escaped.
    fn character(&mut self) -> Result<char, GrammarError> {
        let at = self.at;
        let c = self.next();
        if c != Some('\\') {
            return c.map_or_else(|| self.expected("a character"), Ok);
        }
        match self.next() {
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => Ok(c),
            Some('x') => self.hexadecimal(at, 2),
            Some('u') => self.hexadecimal(at, 4),
            Some('U') => self.hexadecimal(at, 8),
            _ => Err(self.wrong(at, "an escape that is not known".into())),
        }
    }

    fn hexadecimal(&mut self, at: usize, digits: usize) -> Result<char, GrammarError> {
        let code = self.rest().get(..digits).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
        let c = code.and_then(|code| u32::from_str_radix(code, 16).ok()).and_then(char::from_u32);
        self.at += if c.is_some() { digits } else { 0 };
        c.ok_or_else(|| self.wrong(at, format!("expected {digits} hexadecimal digits of a character")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> (usize, usize) {
        match read(text).unwrap_err() {
            GrammarError::Syntax { line, column, .. } => (line, column),
            e => panic!("{e}"),
        }
    }

    #[test]
    fn what_is_wrong_has_a_place() {
        // H06
        for (text, at) in [
            ("", (1, 1)),
            ("x ::= \"a\"", (1, 10)),
            ("root ::= \"a", (1, 10)),
            ("root ::= \"a\" |\n  [b", (2, 3)),
            ("root ::= (\"a\"\n\n", (3, 1)),
            ("root ::= \"a\" )", (1, 14)),
            ("root = \"a\"", (1, 6)),
            ("root ::= a\nb ::= \"x\"", (1, 10)),
            ("root ::= \"a\"\nroot ::= \"b\"", (2, 1)),
            ("root ::= [z-a]", (1, 11)),
            ("root ::= []", (1, 10)),
            ("root ::= \"\\q\"", (1, 11)),
            ("root ::= \"\\ud800\"", (1, 11)),
            ("root ::= \"a\"{3,1}", (1, 13)),
            ("root ::= \"a\"{x}", (1, 14)),
            ("root ::= \"a\"{99999999999}", (1, 14)),
            ("root ::= <think>", (1, 10)),
            ("root ::= \"é\" ?x §", (1, 14)),
        ] {
            assert_eq!(place(text), at, "{text}");
        }
    }

    // H04
    #[test]
    fn nesting_without_end_is_refused() {
        for n in [DEEPEST + 1, 60_000] {
            let text = format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n));
            assert_eq!(place(&text), (1, 10 + DEEPEST));
        }
        let text = format!("root ::= {}\"a\"{}", "(".repeat(DEEPEST), ")".repeat(DEEPEST));
        assert!(read(&text).is_ok());
        let many: String = (0..9000).map(|i| format!("r{i} ::= \"a\"\n")).collect();
        assert_eq!(place(&many).0, MOST_RULES + 1);
    }

    #[test]
    fn lines_and_comments_are_where_they_may_be() {
        let text =
            "# a comment\nroot ::= # here\n  ( \"a\"\n | b )+ | # and\n \"c\"\n\nb ::= [^a-c\\]\\x41-] .{2,} # end";
        let rules = read(text).unwrap();
        assert_eq!(rules.all[rules.root].len(), 2);
        let b = &rules.all[2][0];
        let Atom::Chars(class) = &b[0].atom else { panic!("{b:?}") };
        assert_eq!((&class.ranges[..], class.not), (&[('a', 'c'), (']', ']'), ('A', 'A'), ('-', '-')][..], true));
        assert_eq!((b[1].least, b[1].most), (2, None));
    }
}
