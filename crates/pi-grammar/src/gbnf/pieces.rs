//! Which rules may be cut out of the text as one piece.
//!
//! A lexer takes the longest piece, so a regular rule may be one only where that is no choice: no other piece that can stand in its
//! place begins with the same character, and no character that may follow it could also continue it. Both are decided for
//! the whole grammar at once, on the safe side.

use super::{Alternatives, Atom, Chars, Item, Rules};

/// How a rule is written for the lexer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As one piece.
    Piece,
    /// Character by character.
    Characters,
}

/// A set of characters: one bit for each stretch of characters that no class of the grammar divides.
type Set = Vec<u64>;

fn meet(a: &Set, b: &Set) -> bool {
    a.iter().zip(b).any(|(a, b)| a & b != 0)
}

/// Adds `b` to `a`; true if that was something new.
fn add(a: &mut Set, b: &Set) -> bool {
    let new = a.iter().zip(b).any(|(a, b)| b & !a != 0);
    a.iter_mut().zip(b).for_each(|(a, b)| *a |= b);
    new
}

/// The stretches, by their first characters.
struct Alphabet(Vec<u32>);

impl Alphabet {
    fn of(rules: &Rules) -> Self {
        let mut cuts = vec![0];
        for item in items(rules) {
            if let Atom::Chars(chars) = &item.atom {
                cuts.extend(chars.ranges.iter().flat_map(|(a, b)| [u32::from(*a), u32::from(*b) + 1]));
            }
        }
        cuts.sort_unstable();
        cuts.dedup();
        Self(cuts)
    }

    fn none(&self) -> Set {
        vec![0; self.0.len().div_ceil(64)]
    }

    fn set(&self, chars: &Chars) -> Set {
        let mut set = self.none();
        // both ends of a range are cuts
        let place = |c: u32| self.0.partition_point(|&cut| cut < c);
        for (a, b) in &chars.ranges {
            (place(u32::from(*a))..place(u32::from(*b) + 1)).for_each(|i| set[i / 64] |= 1 << (i % 64));
        }
        if chars.not {
            set.iter_mut().for_each(|word| *word = !*word);
            // behind the last stretch there is none
            if let (Some(last), n @ 1..) = (set.last_mut(), self.0.len() % 64) {
                *last &= (1 << n) - 1;
            }
        }
        set
    }
}

fn items(rules: &Rules) -> impl Iterator<Item = &Item> {
    rules.all.iter().flatten().flatten()
}

fn calls(alternatives: &[Vec<Item>]) -> impl Iterator<Item = usize> {
    alternatives.iter().flatten().filter_map(|item| match item.atom {
        Atom::Rule(rule) => Some(rule),
        Atom::Chars(_) => None,
    })
}

/// The rules for which `is` says yes, given those for which it said yes before; until that finds no more.
fn settled(rules: &Rules, is: impl Fn(&Alternatives, &[bool]) -> bool) -> Vec<bool> {
    let mut yes = vec![false; rules.all.len()];
    loop {
        let before = yes.clone();
        // rules are mostly called before they stand
        for (i, alternatives) in rules.all.iter().enumerate().rev() {
            yes[i] = yes[i] || is(alternatives, &yes);
        }
        if yes == before {
            return yes;
        }
    }
}

/// Which rules can stand for no text at all.
pub(super) fn can_be_empty(rules: &Rules) -> Vec<bool> {
    let is = |item: &Item, yes: &[bool]| item.least == 0 || matches!(item.atom, Atom::Rule(r) if yes[r]);
    settled(rules, |alternatives, yes| alternatives.iter().any(|all| all.iter().all(|item| is(item, yes))))
}

/// Which rules stand for a text at all, instead of calling themselves for ever.
pub(super) fn can_end(rules: &Rules) -> Vec<bool> {
    let is = |item: &Item, yes: &[bool]| item.least == 0 || matches!(item.atom, Atom::Rule(r) if yes[r]);
    let ends = |item: &Item, yes: &[bool]| is(item, yes) || matches!(item.atom, Atom::Chars(_));
    settled(rules, |alternatives, yes| alternatives.iter().any(|all| all.iter().all(|item| ends(item, yes))))
}

/// Which rules call no rule that can come to itself again.
fn regular(rules: &Rules) -> Vec<bool> {
    settled(rules, |alternatives, yes| calls(alternatives).all(|rule| yes[rule]))
}

/// Most classes of characters in a piece, those of rules that it calls included: looking at more takes too long.
const LARGEST: usize = 400;
/// Most ranges in all classes of a grammar that is looked at.
const MOST_RANGES: usize = 4000;
/// Most words of memory for the places of all rules together, and for a set of each rule.
const MOST_WORDS: usize = 1 << 21;
/// Most times that all rules are looked at again.
const MOST_ROUNDS: usize = 200;

/// Most repetitions of a certain number that are looked at one by one.
const WRITTEN_OUT: u32 = 16;

/// The places of a regular rule's characters: which come first, which last, and which after which. Other repetitions are looked at
/// as if they were without end.
#[derive(Clone, Default)]
struct Places {
    chars: Vec<Set>,
    after: Vec<Vec<usize>>,
    first: Vec<usize>,
    last: Vec<usize>,
}

impl Places {
    /// Appends `other` behind this; `empty`: whether this, and whether the other can be empty.
    fn then(&mut self, other: Self, empty: (bool, bool)) {
        let n = self.chars.len();
        let moved = |all: Vec<usize>| all.into_iter().map(|i| i + n).collect::<Vec<_>>();
        let first = moved(other.first);
        self.chars.extend(other.chars);
        self.after.extend(other.after.into_iter().map(moved));
        self.last.iter().for_each(|&i| self.after[i].extend(&first));
        if empty.0 {
            self.first.extend(first);
        }
        let last = moved(other.last);
        self.last = if empty.1 { [std::mem::take(&mut self.last), last].concat() } else { last };
    }

    /// Puts `other` beside this.
    fn or(&mut self, other: Self) {
        let n = self.chars.len();
        let moved = |all: Vec<usize>| all.into_iter().map(|i| i + n).collect::<Vec<_>>();
        self.chars.extend(other.chars);
        self.after.extend(other.after.into_iter().map(moved));
        self.first.extend(moved(other.first));
        self.last.extend(moved(other.last));
    }

    fn repeat(&mut self) {
        for &i in &self.last {
            self.after[i].extend(&self.first);
            self.after[i].sort_unstable();
            self.after[i].dedup();
        }
    }

    /// The characters with which a whole piece can go on to be a longer one.
    fn continuing(&self, none: &Set) -> Set {
        let apart = |all: &[usize]| {
            let mut seen = none.clone();
            all.iter().all(|&i| {
                let new = !meet(&seen, &self.chars[i]);
                add(&mut seen, &self.chars[i]);
                new
            })
        };
        // If characters never leave a choice, only what ends at a last place is a whole piece.
        let decided = apart(&self.first) && self.after.iter().all(|after| apart(after));
        let ends: Vec<usize> = if decided { self.last.clone() } else { (0..self.chars.len()).collect() };
        let mut set = none.clone();
        for next in ends.into_iter().flat_map(|i| &self.after[i]) {
            add(&mut set, &self.chars[*next]);
        }
        set
    }
}

struct Survey<'a> {
    rules: &'a Rules,
    alphabet: Alphabet,
    empty: Vec<bool>,
    /// What is known already; `Some(None)`: too much.
    places: Vec<Option<Option<Places>>>,
    words: usize,
}

impl Survey<'_> {
    /// The places of a regular rule; `None` if there are too many.
    fn places(&mut self, rule: usize) -> Option<Places> {
        if let Some(known) = &self.places[rule] {
            return known.clone();
        }
        let places = self.found(rule);
        self.places[rule] = Some(places.clone());
        places
    }

    fn found(&mut self, rule: usize) -> Option<Places> {
        let rules = self.rules;
        let mut all = Places::default();
        for sequence in &rules.all[rule] {
            let (mut line, mut line_empty) = (Places::default(), true);
            for item in sequence {
                let (mut one, mut empty) = match &item.atom {
                    Atom::Rule(rule) => (self.places(*rule)?, self.empty[*rule]),
                    Atom::Chars(chars) => (self.single(chars), false),
                };
                let times = if item.most == Some(item.least) && item.least <= WRITTEN_OUT { item.least } else { 1 };
                if item.most != Some(times) {
                    one.repeat();
                }
                empty |= item.least == 0;
                for _ in 0..times {
                    line.then(one.clone(), (line_empty, empty));
                    line_empty &= empty;
                    if line.chars.len() > LARGEST {
                        return None;
                    }
                }
            }
            all.or(line);
            if all.chars.len() > LARGEST {
                return None;
            }
        }
        let after: usize = all.after.iter().map(Vec::len).sum();
        self.words += after + all.chars.len() * self.alphabet.none().len();
        (self.words <= MOST_WORDS).then_some(all)
    }

    fn single(&self, chars: &Chars) -> Places {
        Places { chars: vec![self.alphabet.set(chars)], after: vec![Vec::new()], first: vec![0], last: vec![0] }
    }

    /// The characters with which each rule begins, and those that may follow it; `None` if that takes too long.
    fn around(&self) -> Option<(Vec<Set>, Vec<Set>)> {
        let n = self.rules.all.len();
        let (mut first, mut follow) = (vec![self.alphabet.none(); n], vec![self.alphabet.none(); n]);
        let is_empty = |item: &Item| item.least == 0 || matches!(item.atom, Atom::Rule(r) if self.empty[r]);
        let begin = |item: &Item, first: &[Set]| match &item.atom {
            Atom::Chars(chars) => self.alphabet.set(chars),
            Atom::Rule(rule) => first[*rule].clone(),
        };
        let (mut changed, mut rounds) = (true, 0);
        while changed {
            (changed, rounds) = (false, rounds + 1);
            if rounds > MOST_ROUNDS {
                return None;
            }
            for (i, sequence) in self.rules.all.iter().enumerate().flat_map(|(i, all)| all.iter().map(move |s| (i, s)))
            {
                for item in sequence {
                    let set = begin(item, &first);
                    changed |= add(&mut first[i], &set);
                    if !is_empty(item) {
                        break;
                    }
                }
            }
        }
        (changed, rounds) = (true, 0);
        while changed {
            (changed, rounds) = (false, rounds + 1);
            if rounds > MOST_ROUNDS {
                return None;
            }
            for (i, sequence) in self.rules.all.iter().enumerate().flat_map(|(i, all)| all.iter().map(move |s| (i, s)))
            {
                let mut behind = follow[i].clone();
                for item in sequence.iter().rev() {
                    if let Atom::Rule(rule) = item.atom {
                        let mut set = behind.clone();
                        if item.most != Some(1) {
                            add(&mut set, &first[rule]);
                        }
                        changed |= add(&mut follow[rule], &set);
                    }
                    if !is_empty(item) {
                        behind = self.alphabet.none();
                    }
                    add(&mut behind, &begin(item, &first));
                }
            }
        }
        Some((first, follow))
    }
}

/// How each rule is written where it is called character by character. The root is [`Kind::Piece`] if it is regular.
pub(super) fn kinds(rules: &Rules) -> Vec<Kind> {
    let regular = regular(rules);
    let mut kinds = vec![Kind::Characters; rules.all.len()];
    if regular[rules.root] {
        // one piece, and nothing beside it
        kinds[rules.root] = Kind::Piece;
        return kinds;
    }
    let ranges = |item: &Item| match &item.atom {
        Atom::Chars(chars) => chars.ranges.len(),
        Atom::Rule(_) => 0,
    };
    if items(rules).map(ranges).sum::<usize>() > MOST_RANGES {
        return kinds;
    }
    let mut survey = Survey {
        rules,
        alphabet: Alphabet::of(rules),
        empty: can_be_empty(rules),
        places: vec![None; rules.all.len()],
        words: 0,
    };
    let none = survey.alphabet.none();
    if none.len() * kinds.len() > MOST_WORDS / 8 {
        return kinds;
    }
    let Some((first, follow)) = survey.around() else { return kinds };
    for rule in (0..kinds.len()).filter(|&rule| regular[rule]) {
        let Some(places) = survey.places(rule) else { continue };
        if !places.first.is_empty() && !meet(&places.continuing(&none), &follow[rule]) {
            kinds[rule] = Kind::Piece;
        }
    }
    // each round takes one piece back, so that this ends
    while let Some(rule) = clash(&survey, &kinds, &first) {
        kinds[rule] = Kind::Characters;
    }
    kinds
}

/// A piece that begins as something else does that may stand in its place.
fn clash(survey: &Survey<'_>, kinds: &[Kind], first: &[Set]) -> Option<usize> {
    let (mut single, mut pieces) = (survey.alphabet.none(), Vec::new());
    let mut seen = vec![false; kinds.len()];
    let mut todo = vec![survey.rules.root];
    while let Some(rule) = todo.pop() {
        if std::mem::replace(&mut seen[rule], true) {
            continue;
        }
        if kinds[rule] == Kind::Piece {
            pieces.push(rule);
            continue;
        }
        for item in survey.rules.all[rule].iter().flatten() {
            match &item.atom {
                Atom::Chars(chars) => _ = add(&mut single, &survey.alphabet.set(chars)),
                Atom::Rule(rule) => todo.push(*rule),
            }
        }
    }
    let mut begun = single;
    pieces.into_iter().find(|&piece| {
        let taken = meet(&first[piece], &begun);
        add(&mut begun, &first[piece]);
        taken
    })
}

/// The rules that pieces are made of, all the way down, and the pieces themselves.
pub(super) fn within(rules: &Rules, kinds: &[Kind]) -> Vec<bool> {
    let mut within = vec![false; kinds.len()];
    let mut todo: Vec<usize> = (0..kinds.len()).filter(|&i| kinds[i] == Kind::Piece).collect();
    while let Some(rule) = todo.pop() {
        if !std::mem::replace(&mut within[rule], true) {
            todo.extend(calls(&rules.all[rule]));
        }
    }
    within
}
