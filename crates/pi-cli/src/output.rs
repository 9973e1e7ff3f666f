//! Standard output and standard error.

use crate::failure::{Failure, Result};
use std::io::{self, IsTerminal, Write};

/// Standard output. Whatever is written is there at once.
pub struct Output {
    out: io::Stdout,
    /// Windows' console takes nothing but UTF-8.
    lossy: bool,
    last: u8,
}

impl Output {
    /// Standard output.
    pub fn new() -> Self {
        let out = io::stdout();
        Self { lossy: cfg!(windows) && out.is_terminal(), out, last: b'\n' }
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// [`Failure::OutputClosed`] if nobody reads them, [`Failure::Work`] if the system refuses them.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(&last) = bytes.last() else { return Ok(()) };
        self.last = last;
        let mut out = self.out.lock();
        let written = match self.lossy {
            true => out.write_all(String::from_utf8_lossy(bytes).as_bytes()),
            false => out.write_all(bytes),
        };
        written.and_then(|()| out.flush()).map_err(|e| Failure::output(&e))
    }

    /// Ends the line if one was begun.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn end_line(&mut self) -> Result<()> {
        if self.last == b'\n' { Ok(()) } else { self.write(b"\n") }
    }

    /// Writes one JSON document on a line of its own.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn json(&mut self, document: &impl serde::Serialize) -> Result<()> {
        let mut text = serde_json::to_vec(document).map_err(|e| Failure::Work(format!("JSON: {e}")))?;
        text.push(b'\n');
        self.write(&text)
    }
}

/// Writes lines to standard error, with what does not print escaped. Nobody needs to be listening.
pub fn say(message: &str) {
    let lines: Vec<_> = message.split('\n').map(printable).collect();
    let _ = writeln!(io::stderr(), "{}", lines.join("\n"));
}

/// The text with everything escaped that does not print: names and values from files must not steer the terminal.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' '..='~' => shown.push(c),
            // Marks are escaped at the start of a text only, where they would fall on something else.
            _ => shown.extend(format!("x{c}").escape_debug().skip(1)),
        }
    }
    shown
}

/// A perplexity, or the error of one: four digits behind the point. That of a model which knows nothing may be anything, and has a power
/// of ten from ten million on.
pub fn perplexity(value: f64) -> String {
    if value.abs() < 1e7 || !value.is_finite() { format!("{value:.4}") } else { format!("{value:.4e}") }
}

/// Percents with a sign, in the same way.
pub fn growth(share: f64) -> String {
    let percent = 100.0 * share;
    if percent.abs() < 1e7 || !percent.is_finite() { format!("{percent:+.3} %") } else { format!("{percent:+.3e} %") }
}

/// Bytes as a person writes them: `1.85 MB`.
pub fn size(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, 0);
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    while value >= 999.5 && unit + 1 < UNITS.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    match value {
        _ if unit == 0 => format!("{bytes} B"),
        v if v < 9.995 => format!("{v:.2} {}", UNITS[unit]),
        v if v < 99.95 => format!("{v:.1} {}", UNITS[unit]),
        v => format!("{v:.0} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_and_direction_marks_are_shown_and_letters_of_any_script_are_left_alone() {
        assert_eq!(printable("a\x1b[31mb\u{202e}c\u{7f}\u{9b}"), "a\\u{1b}[31mb\\u{202e}c\\u{7f}\\u{9b}");
        assert_eq!(printable("Željko's \"模型\" \\ e\u{301}"), "Željko's \"模型\" \\ e\u{301}");
        assert_eq!(printable("a\nb\r"), "a\\nb\\r");
    }

    #[test]
    fn a_large_perplexity_has_a_power_of_ten_and_not_ninety_digits() {
        for (value, text) in [
            (12.34567, "12.3457"),
            (9_999_999.0, "9999999.0000"),
            (1.25e90, "1.2500e90"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(perplexity(value), text);
        }
        assert_eq!(
            (growth(0.0123), growth(-0.5), growth(1e88)),
            ("+1.230 %".into(), "-50.000 %".into(), "+1.000e90 %".into())
        );
    }

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (12_345_678, "12.3 MB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }
}
