//! `/v1/chat/completions`.

use super::{
    Answered, Shared,
    answer::{Reply, Shape},
    calls, form, messages,
    params::{self, TOP},
    submit::{Order, blocking, enter, submit},
};
use crate::{
    body,
    chat::Conversation,
    error::ApiError,
    fields::{Fields, wrong},
    state::Model,
    tools::{self, Choice},
};
use axum::extract::{Request, State};
use pi_engine::pi_core::text::TokenId;
use serde_json::{Map, Value};

pub(super) async fn create(State(app): Shared, request: Request) -> Answered {
    let model = app.model()?;
    let mut fields = body::object(&app, request).await?;
    let mut params = params::read(&fields, &app, &model, 1)?;
    params.logprobs = logprobs(&fields)?;
    let form = form::read(&mut fields)?;
    let tools = tools::read(&mut fields)?;
    let format = tools.is_some().then(|| calls::format(&model, app.options.tool_format)).transpose()?;
    let only_calls = tools.as_ref().is_some_and(|tools| tools.choice != Choice::Auto);
    let conversation = conversation(&mut fields, tools.as_ref().map(|tools| tools.list.clone()))?;
    let ticket = enter(&app)?;
    let turn = form::turn(&app, format.is_some() || form.is_some()).await;
    let asked = model.clone();
    // the place is kept as long as there is work, even if the client leaves meanwhile
    let order = blocking(move || {
        let prompt = prompt(&asked, &conversation)?;
        let (form, shown) = match (tools, format) {
            (Some(tools), Some(format)) => {
                let matcher = calls::compile(&asked, format, &tools, form.as_ref())?;
                (Some(matcher), format.controls(&**asked.engine.tokenizer()))
            }
            _ => (form.map(|form| form.compile(&asked)).transpose()?, Vec::new()),
        };
        drop((turn, fields));
        Ok(Order { ticket, prompt, param: "messages", form, shown })
    })
    .await?;
    let (events, seed) = submit(&app, &model, order, &params)?;
    let reply = Reply::new(Shape::Chat, &app, model, &params, seed).with_calls(format, only_calls);
    reply.respond(events, params.stream).await
}

fn conversation(fields: &mut Fields, tools: Option<Vec<Value>>) -> Result<Conversation, ApiError> {
    let add_generation_prompt = fields.boolean("add_generation_prompt")?.unwrap_or(true);
    let extra = match fields.take("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(extra)) => extra,
        Some(other) => return Err(wrong("chat_template_kwargs", "an object", &other)),
    };
    let messages = messages::read(fields.take("messages"))?;
    Ok(Conversation { messages, tools, add_generation_prompt, extra })
}

/// What the model's template makes of a conversation.
fn prompt(model: &Model, conversation: &Conversation) -> Result<Vec<TokenId>, ApiError> {
    match &model.chat {
        Ok(Some(template)) => template.prompt(conversation).map_err(|e| messages::refused(&e)),
        Ok(None) => Err(ApiError::unsupported(
            "messages",
            "the model's file has no chat template; /v1/completions works without one, and the server can be given one",
        )),
        Err(e) => Err(ApiError::unsupported("messages", format!("the model's chat template cannot be used: {e}"))),
    }
}

fn logprobs(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.boolean("logprobs")?.unwrap_or(false);
    match fields.integer("top_logprobs", 0..=TOP)? {
        Some(n) if n > 0 && !wanted => Err(ApiError::field("top_logprobs", "expected only with \"logprobs\": true")),
        top => Ok(wanted.then(|| top.unwrap_or(0) as usize)),
    }
}
