//! The conversation, and answers to it.

use super::command::Command;
use crate::{
    failure::{Failure, Result},
    interrupt::Interrupt,
    output::{Output, say},
    result::summary,
    values,
};
use pi_engine::{
    GenerateOptions, SamplingParams, Session, Sink, StopReason,
    pi_core::text::TokenId,
    pi_gguf::AtomicFile,
    sampler::{Chain, Sampler},
};
use pi_server::chat::{ChatTemplate, Conversation};
use serde_json::{Value, json};
use std::{fs, io::Write, ops::ControlFlow, time::Instant};

/// Largest file of a conversation.
const LONGEST: u64 = 1 << 26;

/// Most tokens of a prompt that are computed without asking whether the user still wants them.
const PIECE: usize = 64;

/// How answers are made.
pub struct Settings {
    pub sampling: SamplingParams,
    pub max_tokens: Option<usize>,
}

/// A conversation in progress.
pub struct Talk {
    session: Session,
    template: ChatTemplate,
    settings: Settings,
    interrupt: Interrupt,
    system: Option<String>,
    /// What was said, the user's messages and the model's in turns.
    said: Vec<Value>,
    /// The tokens that the session holds.
    held: Vec<TokenId>,
    out: Output,
}

impl Talk {
    pub fn new(
        session: Session,
        template: ChatTemplate,
        settings: Settings,
        interrupt: Interrupt,
        system: Option<String>,
    ) -> Self {
        let system = system.filter(|text| !text.is_empty());
        let (said, held) = (Vec::new(), Vec::new());
        Self { session, template, settings, interrupt, system, said, held, out: Output::new() }
    }

    /// Takes a message and answers it. If that cannot be done, it is as if the message had not been written, and the user is told why.
    ///
    /// # Errors
    /// If nobody reads the answer.
    pub fn say(&mut self, text: String) -> Result<()> {
        let text = text.strip_prefix("//").map_or(text.clone(), |rest| format!("/{rest}"));
        let before = self.said.clone();
        self.said.push(json!({"role": "user", "content": text}));
        self.answer(before)
    }

    /// Does what a command says.
    ///
    /// # Errors
    /// As [`say`](Self::say).
    pub fn obey(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Help | Command::Quit => {} // the caller's
            Command::Clear => {
                self.said.clear();
                say("a new conversation");
            }
            Command::System(text) => {
                self.said.clear();
                say(if text.is_empty() { "a new conversation, without instructions" } else { "a new conversation" });
                self.system = (!text.is_empty()).then_some(text);
            }
            Command::Undo => match self.last_question() {
                Some(at) => {
                    self.said.truncate(at);
                    say(&format!("{} messages are left", self.said.len()));
                }
                None => say("there is nothing to take back"),
            },
            Command::Retry => match self.last_question() {
                Some(at) => {
                    let before = self.said.clone();
                    self.said.truncate(at + 1);
                    return self.answer(before);
                }
                None => say("there is nothing to answer"),
            },
            Command::Set(name, value) => match self.set(&name, &value) {
                Ok(()) => say(&format!("{name} is {value}")),
                Err(wrong) => say(&format!("/set {name}: {wrong}")),
            },
            Command::Show => self.show(),
            Command::Save(name) => match self.save(&name) {
                Ok(()) => say(&format!("{name}: {} messages", self.said.len())),
                Err(wrong) => say(&format!("{name}: {wrong}")),
            },
            Command::Load(name) => match load(&name) {
                Ok((system, said)) => {
                    say(&format!("{name}: {} messages", said.len()));
                    (self.system, self.said) = (system, said);
                }
                Err(wrong) => say(&format!("{name}: {wrong}")),
            },
        }
        Ok(())
    }

    fn last_question(&self) -> Option<usize> {
        self.said.iter().rposition(|message| message["role"] == "user")
    }

    fn messages(&self) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({"role": "system", "content": text}));
        system.chain(self.said.iter().cloned()).collect()
    }

    /// Answers the last message; if that cannot be done, the conversation is what it was `before`.
    fn answer(&mut self, before: Vec<Value>) -> Result<()> {
        match self.generate() {
            Ok(answer) => {
                self.said.push(json!({"role": "assistant", "content": answer}));
                Ok(())
            }
            Err(Failure::Work(wrong) | Failure::Usage(wrong)) => {
                self.said = before;
                say(&format!("error: {wrong}"));
                Ok(())
            }
            Err(closed) => Err(closed),
        }
    }

    /// Computes tokens of a prompt in pieces, between which the user may stop it.
    fn read(&mut self, tokens: &[TokenId]) -> Result<()> {
        for piece in tokens.chunks(self.session.batch().min(PIECE)) {
            if self.interrupt.writing() {
                return Err(Failure::Work("stopped before an answer began".into()));
            }
            self.session.feed(0, piece).map_err(|e| Failure::Work(e.to_string()))?;
            self.held.extend(piece);
        }
        Ok(())
    }

    fn generate(&mut self) -> Result<String> {
        let work = |e: &dyn std::fmt::Display| Failure::Work(e.to_string());
        let conversation =
            Conversation { messages: self.messages(), add_generation_prompt: true, ..Conversation::default() };
        let tokens = self.template.prompt(&conversation).map_err(|e| work(&e))?;
        if tokens.len() >= self.session.context() {
            return Err(Failure::Work(format!(
                "the conversation has {} tokens and does not fit the context of {} (/undo or /clear makes room, --ctx-size more)",
                tokens.len(),
                self.session.context()
            )));
        }
        if tokens.is_empty() {
            return Err(Failure::Work("the conversation has no tokens".into()));
        }
        // What the session holds already is not computed again; its last token's logits are.
        let same =
            self.held.iter().zip(&tokens).take_while(|(a, b)| a == b).count().min(tokens.len().saturating_sub(1));
        self.session.truncate(0, same);
        self.held.truncate(same);
        self.interrupt.writing(); // from here on Ctrl-C stops the answer
        let begun = Instant::now();
        self.read(&tokens[same..tokens.len() - 1])?;
        let reading = begun.elapsed();
        let mut chain =
            Chain::new(self.settings.sampling.clone(), self.session.engine().vocab()).map_err(|e| work(&e))?;
        let seed = chain.seed();
        self.held.iter().for_each(|&token| chain.accept(token));
        let options = GenerateOptions {
            max_tokens: self.settings.max_tokens,
            sampling: self.settings.sampling.clone(),
            ..GenerateOptions::default()
        };
        let mut screen = Screen { out: &mut self.out, interrupt: self.interrupt, failed: None };
        let generated = self.session.generate_with(0, &tokens[tokens.len() - 1..], &options, &mut chain, &mut screen);
        let failed = screen.failed;
        self.out.end_line()?;
        if let Some(failure) = failed {
            return Err(failure);
        }
        self.held.clear();
        let mut generated = generated.map_err(|e| work(&e))?;
        self.held.extend(tokens.iter().chain(&generated.tokens));
        self.held.truncate(self.session.len(0));
        if let Some(loss) = self.session.device_loss() {
            say(&format!("the device failed, the CPU went on alone: {loss}"));
        }
        generated.seed = seed;
        generated.prompt_tokens = tokens.len() - same;
        generated.prompt_time += reading;
        say(&format!("[{}; {same} tokens were known, seed {seed}]", summary(&generated)));
        if generated.stop == StopReason::Context {
            say("the context is full: /undo or /clear makes room");
        }
        Ok(generated.text)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let s = &mut self.settings.sampling;
        let whole = |least: i64| match value.parse::<i64>() {
            Ok(n) if n >= least && n <= i64::from(i32::MAX) => Ok(n),
            _ => Err(format!("a whole number from {least} is needed, not '{value}'")),
        };
        match name {
            "temp" | "temperature" => s.temperature = values::from_zero(value)?,
            "top_k" => s.top_k = whole(0)? as usize,
            "top_p" => s.top_p = values::share(value)?,
            "min_p" => s.min_p = values::share(value)?,
            "repeat_penalty" => s.repeat_penalty = values::positive(value)?,
            "repeat_last_n" => s.repeat_last_n = usize::try_from(whole(-1)?).unwrap_or(self.session.context()),
            "presence_penalty" => s.presence_penalty = values::finite(value)?,
            "frequency_penalty" => s.frequency_penalty = values::finite(value)?,
            "seed" => s.seed = values::seed(value)?.0,
            "max_tokens" => self.settings.max_tokens = usize::try_from(whole(-1)?).ok(),
            _ => return Err("there is no such setting (/help lists them)".into()),
        }
        Ok(())
    }

    fn show(&self) {
        let s = &self.settings.sampling;
        let number = |n: Option<String>, none: &str| n.unwrap_or_else(|| none.into());
        say(&format!(
            "temp {}, top_k {}, top_p {}, min_p {}, repeat_penalty {}, repeat_last_n {}, presence_penalty {}, frequency_penalty {}, seed {}, max_tokens {}",
            s.temperature,
            s.top_k,
            s.top_p,
            s.min_p,
            s.repeat_penalty,
            s.repeat_last_n,
            s.presence_penalty,
            s.frequency_penalty,
            number(s.seed.map(|n| n.to_string()), "random"),
            number(self.settings.max_tokens.map(|n| n.to_string()), "no limit"),
        ));
        say(&format!("system: {}", self.system.as_deref().unwrap_or("none")));
        say(&format!(
            "{} messages, {} of {} positions of the context",
            self.said.len(),
            self.session.len(0),
            self.session.context()
        ));
    }

    fn save(&self, name: &str) -> Result<(), String> {
        let text = serde_json::to_vec_pretty(&json!({"messages": self.messages()})).map_err(|e| e.to_string())?;
        let mut file = AtomicFile::create(name).map_err(|e| e.to_string())?;
        file.write_all(&text).map_err(|e| e.to_string())?;
        file.commit().map_err(|e| e.to_string())
    }
}

/// The instructions and messages of a saved conversation.
fn load(name: &str) -> Result<(Option<String>, Vec<Value>), String> {
    let size = fs::metadata(name).map_err(|e| e.to_string())?;
    if !size.is_file() || size.len() > LONGEST {
        return Err(format!("a file of at most {LONGEST} bytes is needed"));
    }
    let text = fs::read_to_string(name).map_err(|e| e.to_string())?;
    let document: Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    let messages = document["messages"].as_array().ok_or("it has no list of messages")?;
    let mut said = messages.clone();
    for (i, message) in said.iter().enumerate() {
        if !message["role"].is_string() || !message["content"].is_string() {
            return Err(format!("messages[{i}]: a role and a content are needed"));
        }
    }
    let system = match said.first() {
        Some(first) if first["role"] == "system" => said.remove(0)["content"].as_str().map(str::to_string),
        _ => None,
    };
    Ok((system, said))
}

/// Shows text as it comes, and passes on the wish to stop.
struct Screen<'a> {
    out: &'a mut Output,
    interrupt: Interrupt,
    failed: Option<Failure>,
}

impl Sink for Screen<'_> {
    fn text(&mut self, text: &str) -> ControlFlow<()> {
        match self.out.write(text.as_bytes()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.failed = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    fn proceed(&mut self) -> ControlFlow<()> {
        if self.interrupt.writing() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
