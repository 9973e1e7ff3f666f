//! What a server is to be like.

use crate::tools::ToolFormat;
use pi_engine::SamplingParams;
use std::time::Duration;

/// Settings of a [`Server`](crate::Server).
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// Names of the model. The first is the one in answers.
    pub names: Vec<String>,
    /// Requests that are computed at the same time; each has a slot with a context of its own.
    pub parallel: usize,
    /// Positions of each slot's context; 0: as many as the model was made for. Default: the same, but at most 4096.
    pub context: Option<usize>,
    /// Most tokens of a step, of all slots together. Raised to `parallel`, since every answer may need one.
    pub batch: usize,
    /// Requests that may wait for a slot. Any more are refused with 429.
    pub queue: usize,
    /// How long a request may take from its arrival to its end.
    pub timeout: Option<Duration>,
    /// How long the line and headers of a request may take to arrive, from when the connection is there or the request before is answered.
    pub header_timeout: Duration,
    /// How long the body of a request may take to arrive.
    pub body_timeout: Duration,
    /// Most bytes of a request's body.
    pub body_limit: usize,
    /// Keys of which one must come with every request but `/health`. Without any, none is asked for.
    pub api_keys: Vec<String>,
    /// Origins whose web pages may call the server; `*` stands for all. Without any, browsers let none.
    pub cors: Vec<String>,
    /// Names by which the server may be called, beside those of loopback, without a port. [`serve`](crate::Server::serve) refuses requests
    /// that call it by others, and those of web pages from elsewhere that [`cors`](Self::cors) does not let in: if there are names here,
    /// and without any on a loopback address where no key is asked for.
    pub hosts: Vec<String>,
    /// How tokens are chosen where a request says nothing of it.
    pub sampling: SamplingParams,
    /// Most tokens of an answer where a request says nothing of it. Default: until the context is full.
    pub max_tokens: Option<usize>,
    /// How the model writes calls of functions. Default: as its chat template shows.
    pub tool_format: Option<ToolFormat>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            names: vec!["pi".into()],
            parallel: 4,
            context: None,
            batch: 512,
            queue: 64,
            timeout: Some(Duration::from_secs(3600)),
            header_timeout: Duration::from_secs(20),
            body_timeout: Duration::from_secs(60),
            body_limit: 4 << 20,
            api_keys: Vec::new(),
            cors: Vec::new(),
            hosts: Vec::new(),
            sampling: SamplingParams::default(),
            max_tokens: None,
            tool_format: None,
        }
    }
}

impl ServerOptions {
    /// The model's name in answers.
    pub fn name(&self) -> &str {
        self.names.first().map_or("pi", String::as_str)
    }
}
