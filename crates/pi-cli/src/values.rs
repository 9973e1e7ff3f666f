//! How the values of options are read. Errors say what would have been accepted; clap adds the option's name.

use pi_engine::pi_core::text::TokenId;

/// Reads a finite number that `ok` accepts.
fn number(text: &str, ok: impl Fn(f32) -> bool, expected: &str) -> Result<f32, String> {
    let value = text.trim().parse::<f32>().ok().filter(|v| v.is_finite() && ok(*v));
    value.ok_or_else(|| format!("expected {expected}"))
}

/// Any finite number.
pub fn finite(text: &str) -> Result<f32, String> {
    number(text, |_| true, "a number")
}

/// 0 or more.
pub fn from_zero(text: &str) -> Result<f32, String> {
    number(text, |v| v >= 0.0, "a number from 0 on")
}

/// More than 0.
pub fn positive(text: &str) -> Result<f32, String> {
    number(text, |v| v > 0.0, "a number above 0")
}

/// A speed in GB/s: nothing that a machine could have is outside.
pub fn speed(text: &str) -> Result<f32, String> {
    number(text, |v| (1e-3..=1e6).contains(&v), "a number of GB/s from 0.001 to 1000000")
}

/// Microseconds, up to a second.
pub fn microseconds(text: &str) -> Result<f32, String> {
    number(text, |v| (0.0..=1e6).contains(&v), "a number of microseconds from 0 to 1000000")
}

/// How many times slower something is.
pub fn times_slower(text: &str) -> Result<f32, String> {
    number(text, |v| (1.0..=1e6).contains(&v), "a number from 1 to 1000000")
}

/// A share.
pub fn share(text: &str) -> Result<f32, String> {
    number(text, |v| (0.0..=1.0).contains(&v), "a number from 0 to 1")
}

/// A seed, or -1 for one at random.
pub fn seed(text: &str) -> Result<Seed, String> {
    match text {
        "-1" => Ok(Seed(None)),
        _ => {
            text.parse().map(|n| Seed(Some(n))).map_err(|_| format!("expected a number from 0 to {}, or -1", u64::MAX))
        }
    }
}

/// What a seed option says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub Option<u64>);

/// `15043+1.5`, `15043-1` or `15043-inf`: a token's number, a sign, and what is added or taken.
pub fn logit_bias(text: &str) -> Result<(TokenId, f32), String> {
    let expected = || "expected TOKEN_ID+BIAS or TOKEN_ID-BIAS, as in 15043-1 or 15043-inf".to_string();
    let sign = text.find(['+', '-']).ok_or_else(expected)?;
    let id = text[..sign].parse().map_err(|_| expected())?;
    // A second sign would be accepted by the number itself.
    let amount = Some(&text[sign + 1..]).filter(|t| !t.starts_with(['+', '-']));
    let amount: f32 = amount.and_then(|t| t.parse().ok()).filter(|v: &f32| !v.is_nan()).ok_or_else(expected)?;
    let bias = if text[sign..].starts_with('-') { -amount } else { amount };
    if bias == f32::INFINITY { Err("the bias must not be +inf".into()) } else { Ok((id, bias)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_a_token_a_sign_and_an_amount() {
        assert_eq!(logit_bias("15043+1"), Ok((15043, 1.0)));
        assert_eq!(logit_bias("7-0.5"), Ok((7, -0.5)));
        assert_eq!(logit_bias("7-1e-3"), Ok((7, -0.001)));
        assert_eq!(logit_bias("7-inf"), Ok((7, f32::NEG_INFINITY)));
        for bad in ["", "7", "+1", "7+", "7+x", "7--1", "-7+1", "7+inf", "7+nan", "7.5+1", "99999999999+1"] {
            assert!(logit_bias(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        for bad in ["", "x", "nan", "inf", "-0.1", "1.1"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert!(from_zero("-1").is_err() && positive("0").is_err() && finite("nan").is_err());
        assert!(["1e30", "0", "nan"].into_iter().all(|bad| speed(bad).is_err() && times_slower(bad).is_err()));
        assert!(microseconds("1e30").is_err() && microseconds("-1").is_err() && microseconds("0") == Ok(0.0));
        assert_eq!((share("1"), from_zero("0"), finite("-2.5")), (Ok(1.0), Ok(0.0), Ok(-2.5)));
        assert_eq!((seed("-1"), seed("42")), (Ok(Seed(None)), Ok(Seed(Some(42)))));
        assert!(seed("-2").is_err() && seed("x").is_err() && seed("1e3").is_err());
    }
}
