//! Lists of values as llama-bench takes them: `128,512`, `1-4`, `0-1024+256`, `128-2048*2`.

use std::str::FromStr;

/// Most numbers that a range may stand for.
const MOST: usize = 1000;
/// The largest number.
const LARGEST: usize = 1 << 24;

/// The numbers of one option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(pub Vec<usize>);

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(range).collect::<Result<Vec<_>, _>>()?;
        Ok(Self(parts.concat()))
    }
}

impl Numbers {
    /// The numbers of all occurrences of an option, or its default.
    pub fn all(given: &[Self], default: &[usize]) -> Vec<usize> {
        if given.is_empty() { default.to_vec() } else { given.iter().flat_map(|n| n.0.iter().copied()).collect() }
    }
}

/// `7`, `1-4`, `0-8+2` or `1-8*2`.
fn range(text: &str) -> Result<Vec<usize>, String> {
    let expected = || format!("expected numbers as in 128,512 or 1-4 or 0-8+2 or 128-1024*2, not '{text}'");
    let number = |t: &str| {
        let digits = t.trim();
        match digits.parse::<usize>() {
            Ok(n) if n <= LARGEST => Ok(n),
            Err(_) if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) => Err(expected()),
            _ => Err(format!("expected numbers of at most {LARGEST}, not {digits}")),
        }
    };
    let Some((first, rest)) = text.split_once('-') else { return Ok(vec![number(text)?]) };
    let (last, step, times) = match (rest.split_once('+'), rest.split_once('*')) {
        (Some((last, step)), None) => (last, number(step)?, 1),
        (None, Some((last, times))) => (last, 0, number(times)?),
        (None, None) => (rest, 1, 1),
        _ => return Err(expected()),
    };
    let (mut at, last) = (number(first)?, number(last)?);
    let mut found = Vec::new();
    while at <= last {
        found.push(at);
        let next = at * times + step;
        if next <= at {
            return Err(expected());
        }
        if next <= last && found.len() >= MOST {
            return Err(format!(
                "expected a range of at most {MOST} numbers, not '{text}' (-{last}+STEP makes larger steps)"
            ));
        }
        at = next;
    }
    if found.is_empty() { Err(expected()) } else { Ok(found) }
}

/// A prompt and what is generated after it: `512,128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair(pub usize, pub usize);

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.parse::<Numbers>().ok().map(|n| n.0);
        match numbers.as_deref() {
            Some(&[prompt, generated]) => Ok(Self(prompt, generated)),
            _ => Err("expected two numbers, as in 512,128".into()),
        }
    }
}

/// Values of any kind between commas.
pub fn items<T: FromStr>(text: &str, expected: &str) -> Result<Vec<T>, String> {
    text.split(',').map(|t| t.trim().parse().map_err(|_| format!("expected {expected}, not '{t}'"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_read_as_llama_bench_reads_them() {
        for (text, numbers) in [
            ("512", vec![512]),
            ("0,1, 2", vec![0, 1, 2]),
            ("1-4", vec![1, 2, 3, 4]),
            ("0-8+4", vec![0, 4, 8]),
            ("128-1000*2", vec![128, 256, 512]),
            ("7,1-2", vec![7, 1, 2]),
        ] {
            assert_eq!(text.parse::<Numbers>().unwrap().0, numbers, "{text}");
        }
        for bad in ["", "x", "1,", "-1", "4-1", "1-8*1", "0-8*2", "1-8+0", "1-8*2+1", "1-", "99999999999", "0-16777216"]
        {
            assert!(bad.parse::<Numbers>().is_err(), "{bad}");
        }
        for (over, said) in [
            ("99999999999", "at most 16777216"),
            ("99999999999999999999999", "at most 16777216"),
            ("1-16777217*2", "at most 16777216"),
            ("0-1000", "at most 1000 numbers"),
        ] {
            let e = over.parse::<Numbers>().unwrap_err();
            assert!(e.contains(said), "{over}: {e}");
        }
        assert_eq!("16777216".parse::<Numbers>().unwrap().0, [LARGEST]);
        assert_eq!("1-1000".parse::<Numbers>().unwrap().0.len(), MOST);
        assert_eq!("512,128".parse(), Ok(Pair(512, 128)));
        assert!(["512", "1,2,3", "a,b"].iter().all(|t| t.parse::<Pair>().is_err()));
    }
}
