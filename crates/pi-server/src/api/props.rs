//! `/props`: what the server is like.

use super::{Answered, Shared, json};
use axum::extract::State;
use serde_json::json as value;

pub(super) async fn props(State(app): Shared) -> Answered {
    let model = app.model()?;
    let (options, config) = (&app.options, model.engine.config());
    let s = &options.sampling;
    let settings = value!({
        "n_ctx": model.context,
        "max_tokens": options.max_tokens,
        "temperature": s.temperature,
        "top_k": s.top_k,
        "top_p": s.top_p,
        "min_p": s.min_p,
        "repeat_penalty": s.repeat_penalty,
        "repeat_last_n": s.repeat_last_n,
        "presence_penalty": s.presence_penalty,
        "frequency_penalty": s.frequency_penalty,
    });
    // as text, for clients that render it themselves; null without one
    let chat = model.chat.as_ref().ok().and_then(|template| template.as_ref());
    Ok(json(&value!({
        "default_generation_settings": settings,
        "total_slots": options.parallel,
        "queue": options.queue,
        "model": {
            "names": options.names,
            "title": config.name,
            "architecture": config.architecture,
            "layers": config.layers,
            "neurons": config.neurons,
            "vocabulary": model.engine.vocab(),
            "context": config.context,
            // of each layer the share of neurons that live on an accelerator
            "hot": model.engine.hot_shares(),
            "sparsity": model.engine.sparsity().to_string(),
        },
        "chat_template": chat.map(|template| template.source()),
        // its name, if it is one of those that files without a template get
        "chat_template_preset": chat.and_then(|template| template.preset()),
        "version": env!("CARGO_PKG_VERSION"),
    })))
}
