//! Keys.

use axum::http::{HeaderMap, header};
use base64::{Engine, prelude::BASE64_STANDARD};
use subtle::{Choice, ConstantTimeEq};

/// Whether the headers bring one of the keys, as `Bearer KEY` or as the password of `Basic` (a browser asks people for that); true if none
/// is asked for. How long it takes does not depend on how much of a key is right.
pub(crate) fn allowed(keys: &[String], headers: &HeaderMap) -> bool {
    if keys.is_empty() {
        return true;
    }
    let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], |v| v.as_bytes());
    let after = |scheme: &str| {
        let (name, rest) = given.split_at_checked(scheme.len())?;
        name.eq_ignore_ascii_case(scheme.as_bytes()).then(|| rest.trim_ascii())
    };
    let key = match after("bearer ") {
        Some(key) => Some(key.to_vec()),
        None => after("basic ").and_then(password),
    };
    let Some(key) = key else { return false };
    keys.iter().fold(Choice::from(0), |found, k| found | k.as_bytes().ct_eq(&key)).into()
}

/// The password of `base64(user:password)`.
fn password(encoded: &[u8]) -> Option<Vec<u8>> {
    let decoded = BASE64_STANDARD.decode(encoded).ok()?;
    let colon = decoded.iter().position(|&b| b == b':')?;
    Some(decoded[colon + 1..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn a_key_is_accepted_whole_or_not_at_all() {
        let keys = ["secret".to_string(), "other key".into()];
        let with =
            |value: &'static str| HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
        for good in
            ["Bearer secret", "bearer secret ", "Bearer other key", "Basic cGk6c2VjcmV0", "basic Om90aGVyIGtleQ=="]
        {
            assert!(allowed(&keys, &with(good)), "{good}");
        }
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer secre",
            "Bearer secret2",
            "Basic secret",
            "Basic c2VjcmV0",
            "Basic cGk6c2VjcmU=",
            "secret",
            "Bearersecret",
        ] {
            assert!(!allowed(&keys, &with(bad)), "{bad}");
        }
        assert!(!allowed(&keys, &HeaderMap::new()));
        assert!(allowed(&[], &HeaderMap::new()));
    }
}
