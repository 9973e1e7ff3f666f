//! The messages of a chat. What is in them is for the [`chat`](crate::chat) module to read.

use crate::{chat::TemplateError, error::ApiError, fields::wrong};
use serde_json::Value;

/// The messages of a request, of which there is at least one.
///
/// # Errors
/// 400 if there is none.
pub(super) fn read(messages: Option<Value>) -> Result<Vec<Value>, ApiError> {
    let expected = "an array of at least one message";
    match messages {
        Some(Value::Array(all)) if !all.is_empty() => Ok(all),
        Some(Value::Array(_)) => Err(ApiError::field("messages", format!("expected {expected}, got none"))),
        Some(other) => Err(wrong("messages", expected, &other)),
        None => Err(ApiError::field("messages", format!("expected {expected}, got nothing"))),
    }
}

/// Why there is no prompt, as an error of the message that is to blame.
pub(super) fn refused(error: &TemplateError) -> ApiError {
    match error {
        TemplateError::Message { field, why } => ApiError::field(field, why),
        // not the client's fault
        TemplateError::Hangs(_) => ApiError::engine(error.to_string()),
        error => ApiError::field("messages", error.to_string()),
    }
}
