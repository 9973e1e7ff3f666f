//! An OpenAI-compatible server over the engine.
//!
//! | module | what |
//! |---|---|
//! | [`chat`] | from messages to a prompt: chat templates |

pub mod chat;
