//! Text and calls from an answer, as it comes. The answer was written under the grammar of calls, but may be cut off anywhere.

use super::ToolFormat;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Text for people.
    Text(String),
    /// A call of this function begins; calls are counted from 0.
    Call(String),
    /// More of the arguments of the newest call.
    Arguments(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before the first call.
    Text,
    /// From the announcement of a call to its arguments.
    Head,
    /// In the arguments: how many brackets are open, and whether a string is.
    Arguments { depth: usize, string: bool, escaped: bool },
    /// Behind an announcement, or the arguments of a call.
    Behind,
    /// The answer is a text without calls.
    Plain,
}

/// Reads one answer.
#[derive(Debug)]
pub(crate) struct Recogniser {
    format: ToolFormat,
    state: State,
    /// What was not understood yet.
    held: String,
    calls: usize,
    /// Whether the answer is nothing but calls: text is then an announcement that was cut off.
    only_calls: bool,
}

impl Recogniser {
    pub(crate) fn new(format: ToolFormat) -> Self {
        Self { format, state: State::Text, held: String::new(), calls: 0, only_calls: false }
    }

    /// The answer may have calls only.
    pub(crate) fn only_calls(self, only_calls: bool) -> Self {
        Self { only_calls, ..self }
    }

    /// Whether the answer has calls, and the last of them is complete.
    pub(crate) fn has_called(&self) -> bool {
        self.calls > 0 && matches!(self.state, State::Behind)
    }

    /// The form of the calls.
    pub(crate) fn format(&self) -> ToolFormat {
        self.format
    }

    /// Adds text; returns what is certain now.
    pub(crate) fn push(&mut self, text: &str) -> Vec<Part> {
        self.held.push_str(text);
        let mut parts = Vec::new();
        while self.step(&mut parts) {}
        parts
    }

    /// What was held back when the answer ended. A call whose name is not whole is left out.
    pub(crate) fn finish(&mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let is_text = matches!(self.state, State::Text | State::Plain) && !held.is_empty() && !self.only_calls;
        is_text.then_some(Part::Text(held)).into_iter().collect()
    }

    /// Understands some more; false if more text is needed.
    fn step(&mut self, parts: &mut Vec<Part>) -> bool {
        if self.held.is_empty() {
            return false;
        }
        match self.state {
            State::Plain => {
                parts.push(Part::Text(std::mem::take(&mut self.held)));
                false
            }
            State::Text => self.text(parts),
            State::Head => match head(&self.held) {
                Some((name, end)) => {
                    parts.push(Part::Call(name));
                    self.held.drain(..end);
                    self.calls += 1;
                    self.state = State::Arguments { depth: 0, string: false, escaped: false };
                    true
                }
                None => false,
            },
            State::Arguments { .. } => self.arguments(parts),
            // brackets, announcements and commas stand between calls
            State::Behind => match self.held.find('{') {
                Some(next) => {
                    self.held.drain(..next);
                    self.state = State::Head;
                    true
                }
                None => {
                    self.held.clear();
                    false
                }
            },
        }
    }

    fn text(&mut self, parts: &mut Vec<Part>) -> bool {
        let Some(open) = self.format.open() else {
            self.state = match begins_call(&self.held) {
                None => return false,
                Some(true) => State::Head,
                Some(false) => State::Plain,
            };
            return true;
        };
        if let Some(at) = self.held.find(open) {
            let before = self.held[..at].trim_end();
            if !before.is_empty() {
                parts.push(Part::Text(before.into()));
            }
            self.held.drain(..at + open.len());
            self.state = State::Behind;
            return true;
        }
        // The beginning of an announcement, and the space before one, are no text if one comes.
        let starts = open.char_indices().map(|(i, _)| i).skip(1).filter(|&n| self.held.ends_with(&open[..n]));
        let kept = self.held.len() - starts.max().unwrap_or(0);
        let kept = self.held[..kept].trim_end().len();
        if kept > 0 {
            parts.push(Part::Text(self.held.drain(..kept).collect()));
        }
        false
    }

    fn arguments(&mut self, parts: &mut Vec<Part>) -> bool {
        let State::Arguments { mut depth, mut string, mut escaped } = self.state else { return false };
        let mut end = None;
        for (i, b) in self.held.bytes().enumerate() {
            match b {
                _ if escaped => escaped = false,
                b'\\' if string => escaped = true,
                b'"' => string = !string,
                b'{' | b'[' if !string => depth += 1,
                b'}' | b']' if !string => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        end = Some(i + 1);
                        break;
                    }
                }
                _ => {}
            }
        }
        let text: String = self.held.drain(..end.unwrap_or(self.held.len())).collect();
        parts.push(Part::Arguments(text));
        self.state = if end.is_some() { State::Behind } else { State::Arguments { depth, string, escaped } };
        end.is_some()
    }
}

/// Whether a text begins with `{ "name"`; `None` if that is not certain yet.
fn begins_call(text: &str) -> Option<bool> {
    let mut rest = text.trim_start_matches([' ', '\n']);
    for part in ["{", "\"name\""] {
        match rest.strip_prefix(part) {
            Some(after) => rest = after.trim_start_matches([' ', '\n']),
            None if part.starts_with(rest) => return None,
            None => return Some(false),
        }
    }
    Some(true)
}

/// The name in `{"name": "…", "arguments":`, and where the arguments begin; `None` before their first character is there.
fn head(text: &str) -> Option<(String, usize)> {
    let (mut rest, mut name) = (text.trim_start(), None);
    rest = rest.strip_prefix('{')?.trim_start();
    for end in [':', ',', ':'] {
        let (word, after) = rest.strip_prefix('"')?.split_once('"')?;
        if end == ',' {
            name = Some(word);
        }
        rest = after.trim_start().strip_prefix(end)?.trim_start();
    }
    name.filter(|_| !rest.is_empty()).map(|name| (name.to_string(), text.len() - rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts with neighbours of a kind joined.
    fn joined(parts: impl IntoIterator<Item = Part>) -> Vec<Part> {
        let mut all: Vec<Part> = Vec::new();
        for part in parts {
            match (all.last_mut(), part) {
                (Some(Part::Text(a)), Part::Text(b)) | (Some(Part::Arguments(a)), Part::Arguments(b)) => *a += &b,
                (_, part) => all.push(part),
            }
        }
        all
    }

    fn text(text: &str) -> Part {
        Part::Text(text.into())
    }

    fn call(name: &str, arguments: &str) -> [Part; 2] {
        [Part::Call(name.into()), Part::Arguments(arguments.into())]
    }

    #[test]
    fn calls_are_found_however_the_answer_is_cut() {
        let odd = r#"{"a": "}\"{é", "b": [{}, "]"]}"#;
        let cases = [
            (ToolFormat::Hermes, "Héllo < there".into(), vec![text("Héllo < there")], false),
            (
                ToolFormat::Hermes,
                format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {odd}}}\n</tool_call>"),
                call("f", odd).to_vec(),
                true,
            ),
            (
                ToolFormat::Hermes,
                format!(
                    "I look. \n<tool_call>{{\"name\":\"f\",\"arguments\":{odd}}}</tool_call>\n<tool_call>\n{{ \"name\" : \"g.h\" , \"arguments\" : {{}} }}</tool_call>"
                ),
                [&[text("I look.")][..], &call("f", odd), &call("g.h", "{}")].concat(),
                true,
            ),
            (
                ToolFormat::Mistral,
                format!(
                    "[TOOL_CALLS] [{{\"name\": \"f\", \"arguments\": {odd}}}, {{\"name\": \"g\", \"arguments\": {{}}}}]"
                ),
                [call("f", odd), call("g", "{}")].concat(),
                true,
            ),
            (
                ToolFormat::Llama3,
                format!("\n{{\"name\": \"f\", \"parameters\": {odd}}}"),
                call("f", odd).to_vec(),
                true,
            ),
            (ToolFormat::Llama3, "{\"nam\": 3}".into(), vec![text("{\"nam\": 3}")], false),
            (ToolFormat::Llama3, " {\"na".into(), vec![text(" {\"na")], false),
            // cut off
            (ToolFormat::Hermes, "a <tool".into(), vec![text("a <tool")], false),
            (ToolFormat::Hermes, "a <tool_call>{\"name\": \"f".into(), vec![text("a")], false),
            (
                ToolFormat::Hermes,
                "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x".into(),
                call("f", "{\"a\": \"x").to_vec(),
                false,
            ),
        ];
        for (format, answer, want, called) in cases {
            let cuts: Vec<usize> = (0..=answer.len()).filter(|&i| answer.is_char_boundary(i)).collect();
            for (i, &a) in cuts.iter().enumerate() {
                for &b in &cuts[i..] {
                    let mut recogniser = Recogniser::new(format);
                    let pieces = [&answer[..a], &answer[a..b], &answer[b..]];
                    let mut parts: Vec<Part> = pieces.into_iter().flat_map(|piece| recogniser.push(piece)).collect();
                    parts.extend(recogniser.finish());
                    assert_eq!(joined(parts), want, "{answer} cut at {a} and {b}");
                    assert_eq!(recogniser.has_called(), called, "{answer}");
                }
            }
        }
    }
}
