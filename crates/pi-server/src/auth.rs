//! Keys.

use axum::http::{HeaderMap, header};
use subtle::{Choice, ConstantTimeEq};

/// Whether the headers bring one of the keys; true if none is asked for. How long it takes does not depend on how much of a key
/// is right.
pub(crate) fn allowed(keys: &[String], headers: &HeaderMap) -> bool {
    if keys.is_empty() {
        return true;
    }
    let given = headers.get(header::AUTHORIZATION).map_or(&b""[..], |v| v.as_bytes());
    let (scheme, key) = given.split_at_checked(7).unwrap_or_default();
    let found = keys.iter().fold(Choice::from(0), |found, k| found | k.as_bytes().ct_eq(key.trim_ascii()));
    scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(found)
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
        for good in ["Bearer secret", "bearer secret ", "Bearer other key"] {
            assert!(allowed(&keys, &with(good)), "{good}");
        }
        for bad in ["", "Bearer", "Bearer ", "Bearer secre", "Bearer secret2", "Basic secret", "secret", "Bearersecret"]
        {
            assert!(!allowed(&keys, &with(bad)), "{bad}");
        }
        assert!(!allowed(&keys, &HeaderMap::new()));
        assert!(allowed(&[], &HeaderMap::new()));
    }
}
