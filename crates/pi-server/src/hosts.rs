//! By which names a server on loopback may be called.
//!
//! Without a key, whoever can send a request is answered: on loopback, the programs of this machine, a browser among them. A page from
//! elsewhere must not become one of them by giving its own name the address 127.0.0.1 (DNS rebinding). Browsers say in `Host` which
//! name they called and in `Origin` whose page did.

use crate::error::ApiError;
use axum::http::{HeaderMap, Uri, header};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Lets a request pass, or says which of its headers names somebody else. `names` may be called beside those of loopback; pages from
/// the origins `cors` (`*`: from all) may call.
///
/// # Errors
/// 421 for the name that was called, 403 for the page that did.
pub(crate) fn check(names: &[String], cors: &[String], uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let given = |name| headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("?"));
    let called = given(header::HOST).chain(uri.authority().map(|authority| authority.as_str()));
    for host in called {
        if !is_known(host, names) {
            return Err(ApiError::host(host));
        }
    }
    for origin in given(header::ORIGIN) {
        let is_let_in = cors.iter().any(|known| known == "*" || known == origin);
        let host = origin.split_once("://").map(|(_, host)| host);
        if !is_let_in && !host.is_some_and(|host| is_known(host, names)) {
            return Err(ApiError::origin(origin));
        }
    }
    Ok(())
}

/// Whether this is loopback, or one of the names, with any port.
fn is_known(host: &str, names: &[String]) -> bool {
    let Some(name) = name(host) else { return false };
    let is_loopback = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback()),
        None => name.eq_ignore_ascii_case("localhost") || name.parse::<Ipv4Addr>().is_ok_and(|a| a.is_loopback()),
    };
    is_loopback
        || names.iter().any(|known| known.trim_matches(['[', ']']).eq_ignore_ascii_case(name.trim_matches(['[', ']'])))
}

/// What stands before the port.
fn name(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, port) = host.split_at(end);
    let is_port =
        port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    (is_port && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn status(names: &[&str], cors: &[&str], uri: &'static str, headers: &[(HeaderName, &'static str)]) -> u16 {
        let owned = |all: &[&str]| all.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, HeaderValue::from_static(value));
        }
        check(&owned(names), &owned(cors), &Uri::from_static(uri), &map).err().map_or(200, |e| e.status().as_u16())
    }

    #[test]
    fn loopback_and_given_names_are_known_with_any_port_and_no_others() {
        let host = |host| status(&["pi.example", "10.0.0.7", "fd00::7"], &[], "/", &[(header::HOST, host)]);
        for good in [
            "localhost",
            "LocalHost:8080",
            "localhost:",
            "127.0.0.1",
            "127.0.0.1:1",
            "127.8.9.1:80",
            "[::1]",
            "[::1]:8080",
            "[0:0::0:1]",
            "pi.example",
            "PI.example:443",
            "10.0.0.7:8080",
            "[fd00::7]:8080",
        ] {
            assert_eq!(host(good), 200, "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil.localhost",
            "localhost:8080.evil.example",
            "127.0.0.1:80@evil.example",
            "pi.example.evil",
            "192.168.1.2",
            "0.0.0.0",
            "[::2]",
            "::1",
            "[::1",
            "[::1]x",
            "2130706433",
        ] {
            assert_eq!(host(bad), 421, "{bad}");
        }
        // programs that say nothing are no browsers; what is said twice is looked at twice
        assert_eq!(status(&[], &[], "/", &[]), 200);
        assert_eq!(status(&[], &[], "/", &[(header::HOST, "localhost"), (header::HOST, "evil.example")]), 421);
        assert_eq!(status(&[], &[], "http://evil.example/v1", &[(header::HOST, "localhost")]), 421);
    }

    #[test]
    fn pages_from_elsewhere_are_refused_unless_they_are_let_in() {
        let origin = |cors: &[&str], origin| {
            status(&["pi.example"], cors, "/", &[(header::HOST, "localhost"), (header::ORIGIN, origin)])
        };
        for good in [
            "http://localhost:3000",
            "https://127.0.0.1",
            "http://[::1]:8080",
            "https://pi.example",
            "tauri://localhost",
        ] {
            assert_eq!(origin(&[], good), 200, "{good}");
        }
        for bad in ["http://evil.example", "null", "https://localhost.evil.example", "localhost", "file://", ""] {
            assert_eq!(origin(&[], bad), 403, "{bad}");
            assert_eq!(origin(&["*"], bad), 200, "{bad}");
        }
        assert_eq!(origin(&["https://page.example"], "https://page.example"), 200);
        assert_eq!(origin(&["https://page.example"], "http://page.example"), 403);
        assert_eq!(origin(&["null"], "null"), 200);
    }
}
