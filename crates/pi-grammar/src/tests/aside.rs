//! Masks that are computed beside the model.

use super::*;
use pi_engine::Result;
use std::{
    sync::mpsc::{Sender, channel},
    task::{Wake, Waker},
    time::{Duration, Instant},
};

/// Says that it was woken.
struct Says(Sender<()>);

impl Wake for Says {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// Asks until the mask is ready, sleeping meanwhile. How often it was not.
fn until_ready(matcher: &mut Matcher) -> usize {
    let (said, says) = channel();
    let waker = Waker::from(Arc::new(Says(said)));
    let mut waits = 0;
    while !matcher.is_ready(&waker) {
        says.recv_timeout(Duration::from_secs(30)).expect("woken");
        waits += 1;
    }
    waits
}

fn mask(matcher: &mut Matcher) -> Result<Vec<f32>> {
    let mut logits = vec![0.0; vocabulary().len()];
    matcher.mask(&mut logits)?;
    Ok(logits)
}

/// An answer of at most `most` tokens, chosen by chance: its masks, what ended it, and how often somebody had to wait.
fn answer(form: &Grammar, most: usize, ask: bool) -> (Vec<Vec<f32>>, Vec<TokenId>, String, usize) {
    let (mut matcher, mut random) = (compile(form), Random(7));
    let (mut masks, mut tokens, mut waits) = (Vec::new(), Vec::new(), 0);
    let mut why = String::from("cut off");
    while tokens.len() < most {
        if ask {
            waits += until_ready(&mut matcher);
        }
        if matcher.is_complete() {
            why = "complete".into();
            break;
        }
        let logits = match mask(&mut matcher) {
            Ok(logits) => logits,
            Err(e) => {
                why = e.to_string();
                break;
            }
        };
        let allowed: Vec<TokenId> =
            (0..).zip(&logits).filter(|(id, l)| **l == 0.0 && !is_end(*id)).map(|(id, _)| id).collect();
        masks.push(logits);
        if allowed.is_empty() {
            why = "end".into();
            break;
        }
        let token = allowed[random.below(allowed.len())];
        tokens.push(token);
        matcher.accept(token).unwrap();
    }
    (masks, tokens, why, waits)
}

/// What every letter may be a part of in many ways: some milliseconds, and more with every letter.
fn ambiguous() -> Grammar {
    Grammar::Lark("start: x \"!\"\nx: x x | x y | y x | y\ny: y y | y x | /[a-z ]/".into())
}

#[test]
fn masks_from_aside_are_those_computed_here_and_so_is_what_ends_an_answer() {
    let person = Grammar::Schema {
        schema: serde_json::json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 9}},
            "required": ["name"], "additionalProperties": false}),
        strict: true,
    };
    let (mut waited, mut ends) = (0, Vec::new());
    for (form, most) in [(person, 100), (ambiguous(), 15)] {
        let (here, aside) = (answer(&form, most, false), answer(&form, most, true));
        assert!(here.0 == aside.0 && here.1 == aside.1 && here.2 == aside.2, "{form:?}: {} {}", here.2, aside.2);
        assert_eq!(here.3, 0);
        waited += aside.3;
        ends.push(aside.2);
    }
    assert!(waited > 0, "none was slow");
    assert_eq!(ends[0], "complete", "{ends:?}");
}

/// Letters that make masks slow.
fn lengthen(matcher: &mut Matcher, letters: usize) {
    let letter = vocabulary().encode(b"e", EncodeOptions::PLAIN).unwrap();
    for _ in 0..letters {
        until_ready(matcher);
        mask(matcher).unwrap();
        matcher.accept(letter[0]).unwrap();
    }
}

#[test]
fn whoever_asks_is_not_kept_and_whoever_leaves_does_not_wait() {
    let mut matcher = compile(&ambiguous());
    lengthen(&mut matcher, 60);
    let began = Instant::now();
    let ready = matcher.is_ready(Waker::noop());
    let asked = began.elapsed();
    assert!(!ready, "this was not slow at all");
    mask(&mut matcher).unwrap();
    let slow = began.elapsed();
    assert!(asked < slow / 4, "{asked:?} of {slow:?}");
    lengthen(&mut matcher, 1);
    let began = Instant::now();
    drop(matcher);
    assert!(began.elapsed() < slow / 4, "{:?} of {slow:?}", began.elapsed());
}

#[test]
fn that_an_answer_is_complete_is_known_when_its_mask_would_be() {
    let mut matcher = compile(&ambiguous());
    lengthen(&mut matcher, 40);
    until_ready(&mut matcher);
    matcher.accept(vocabulary().encode(b"!", EncodeOptions::PLAIN).unwrap()[0]).unwrap();
    assert!(!matcher.is_complete(), "it was accepted here");
    until_ready(&mut matcher);
    assert!(matcher.is_complete());
}

#[test]
fn what_is_too_much_work_is_refused_aside_as_it_is_here() {
    let form = Grammar::Lark("start: s\ns: s s | s s s | /[a-z]/ | /[a-m]/ | /[a-t]/".into());
    let (here, aside) = (answer(&form, 200, false), answer(&form, 200, true));
    assert!(here.2.contains("Too many items"), "{}", here.2);
    assert_eq!((here.1, here.2), (aside.1, aside.2));
    // a token that cannot come is refused by the next mask at the latest, in the same words
    let mut words = Vec::new();
    for ask in [false, true] {
        let mut matcher = compile(&ambiguous());
        if ask {
            lengthen(&mut matcher, 25);
            until_ready(&mut matcher);
        }
        let accepted = matcher.accept(vocabulary().encode(b"0", EncodeOptions::PLAIN).unwrap()[0]);
        until_ready(&mut matcher);
        words.push(accepted.and_then(|()| mask(&mut matcher).map(drop)).unwrap_err().to_string());
        assert!(!matcher.is_complete());
    }
    assert_eq!(words[0], words[1]);
}

#[test]
fn a_form_that_is_trusted_is_so_for_all_its_answers_until_one_mask_is_slow() {
    // words of its own: other tests use the other
    let form = Grammar::Lark("start: x \"?\"\nx: x x | x y | y x | y\ny: y y | y x | /[a-z ]/".into());
    let first = compile(&form);
    assert!(!first.is_trusted(), "nothing is known of it");
    first.give_credit(1000);
    assert!(compile(&form).is_trusted());
    // the last of these masks takes many milliseconds on any machine
    lengthen(&mut compile(&form), 60);
    assert!(!first.is_trusted() && !compile(&form).is_trusted());
}
