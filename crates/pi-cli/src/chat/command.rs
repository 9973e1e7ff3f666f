//! The words that begin with a slash.

/// What the user wants besides an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    Help,
    Quit,
    /// Forget the conversation.
    Clear,
    /// Forget the last message and its answer.
    Undo,
    /// Answer the last message again.
    Retry,
    /// What the model is told before the conversation; nothing for an empty text.
    System(String),
    /// Change a setting.
    Set(String, String),
    /// Show the settings.
    Show,
    /// Write the conversation into a file.
    Save(String),
    /// Go on with the conversation of a file.
    Load(String),
}

pub const HELP: &str = "\
/clear             forget the conversation (also /new)
/undo              forget the last message and its answer
/retry             answer the last message again
/system [TEXT]     what the model is told first; nothing without TEXT. Begins a new conversation
/set NAME VALUE    temp, top_k, top_p, min_p, repeat_penalty, repeat_last_n, presence_penalty, frequency_penalty, seed (-1: random), max_tokens (-1: no limit)
/show              the settings, and how full the context is
/save FILE         write the conversation as JSON
/load FILE         go on with a conversation that was saved
/quit              end (also /exit, Ctrl-D)
A line that ends with \\ goes on in the next. Ctrl-C stops an answer. // at the start of a message stands for one slash";

impl Command {
    /// The command of a line; `None` if it is a message.
    pub fn read(line: &str) -> Option<Result<Self, String>> {
        let line = line.trim();
        let rest = line.strip_prefix('/').filter(|rest| !rest.starts_with('/'))?;
        let (word, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let rest = rest.trim();
        let needs = |what: &str| format!("/{word} needs {what}");
        let nothing = |command: Self| match rest {
            "" => Ok(command),
            _ => Err(format!("/{word} takes nothing, but there is '{rest}'")),
        };
        let file = |command: fn(String) -> Self| match rest {
            "" => Err(needs("the name of a file")),
            name => Ok(command(name.into())),
        };
        Some(match word {
            "help" | "?" => nothing(Self::Help),
            "quit" | "exit" | "bye" => nothing(Self::Quit),
            "clear" | "new" | "reset" => nothing(Self::Clear),
            "undo" => nothing(Self::Undo),
            "retry" | "regen" => nothing(Self::Retry),
            "show" => nothing(Self::Show),
            "system" => Ok(Self::System(rest.into())),
            "save" => file(Self::Save),
            "load" => file(Self::Load),
            "set" => match rest.split_once(char::is_whitespace) {
                Some((name, value)) => Ok(Self::Set(name.into(), value.trim().into())),
                None => Err(needs("a name and a value")),
            },
            _ => Err(format!(
                "/{word} is no command: /help shows them (// at the start of a message stands for one slash)"
            )),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_begin_with_one_slash() {
        let read = Command::read;
        assert_eq!(read("hello /help"), None);
        assert_eq!(read("//etc is a folder"), None);
        assert_eq!(read(" /quit "), Some(Ok(Command::Quit)));
        assert_eq!(read("/set temp  0.5"), Some(Ok(Command::Set("temp".into(), "0.5".into()))));
        assert_eq!(read("/system You are terse."), Some(Ok(Command::System("You are terse.".into()))));
        assert_eq!(read("/system"), Some(Ok(Command::System(String::new()))));
        for wrong in ["/", "/nothing", "/set temp", "/save", "/clear all"] {
            assert!(matches!(read(wrong), Some(Err(_))), "{wrong}");
        }
    }
}
