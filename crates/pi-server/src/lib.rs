//! An OpenAI-compatible server over the engine.
//!
//! [`Server`] loads a model in the background and answers as many requests at once as it has slots, each step of the model
//! computing tokens of all of them. [`Server::router`] can be mounted into any axum program:
//!
//! ```no_run
//! use pi_engine::Engine;
//! use pi_server::{Loaded, Server, ServerOptions};
//!
//! # async fn example() -> std::io::Result<()> {
//! let server = Server::start(ServerOptions::default(), || {
//!     let engine = Engine::open("model.gguf").map_err(|e| e.to_string())?;
//!     Ok(Loaded::without_chat(engine))
//! })?;
//! let app = axum::Router::new().nest("/llm", server.router());
//! axum::serve(tokio::net::TcpListener::bind("127.0.0.1:8080").await?, app).await
//! # }
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`chat`] | from messages to a prompt: chat templates |
//! | `server`, `options`, `state` | the server, its settings, how far it is |
//! | `api` | the routes |
//! | `batch` | the engine's thread: slots, steps, reuse of what was computed |
//! | `error`, `body`, `fields`, `auth` | errors in OpenAI's form, reading requests, keys |
//! | `hosts` | names by which a server without keys may be called |
//! | `connections` | how many, and how long a client may take to say what it wants |
//! | `tools` | functions that the model may call: what calls look like, and finding them in answers |
//! | `sse`, `logprobs`, `metrics` | streamed answers, log-probabilities, what is counted |
//!
//! What it does not do: TLS, more than one model, embeddings.

mod api;
mod auth;
mod batch;
mod body;
pub mod chat;
mod connections;
mod error;
mod fields;
mod hosts;
mod logprobs;
mod metrics;
mod options;
mod server;
mod sse;
mod state;
mod tools;

pub use error::ApiError;
pub use options::ServerOptions;
pub use server::Server;
pub use state::{Loaded, Phase};
pub use tools::ToolFormat;
