//! `/v1/chat/completions`.

use super::{
    Answered, Shared,
    answer::{Reply, Shape},
    calls,
    form::{self, Form},
    messages,
    params::{self, Params, TOP},
    submit::{Order, aside, blocking, enter, in_time, submit},
};
use crate::{
    body,
    chat::Conversation,
    error::ApiError,
    fields::{Fields, wrong},
    server::App,
    state::Model,
    tools::{self, Choice, ToolFormat, Tools},
};
use axum::extract::{Request, State};
use pi_engine::pi_core::text::TokenId;
use serde_json::{Map, Value};
use std::{mem, sync::Arc, time::Instant};

pub(super) async fn create(State(app): Shared, request: Request) -> Answered {
    let deadline = app.deadline();
    let model = match app.model() {
        Ok(model) => model,
        Err(why) => return Err(body::passed_over(&app, request, why).await),
    };
    let Ready { order, params, calls, only_calls } =
        in_time(&app, deadline, prepared(&app, &model, request, deadline)).await?;
    let (events, seed) = submit(&app, &model, order, &params)?;
    let reply = Reply::new(Shape::Chat, &app, model, &params, seed).with_calls(calls, only_calls);
    reply.respond(events, params.stream).await
}

/// What a request asks for.
struct Asked {
    params: Params,
    form: Option<Form>,
    /// What may be called, and how the model writes it.
    tools: Option<(Tools, ToolFormat)>,
    conversation: Conversation,
    /// What is left of the fields.
    _fields: Fields,
}

/// A request that can be computed.
struct Ready {
    order: Order,
    params: Params,
    calls: Option<ToolFormat>,
    /// Whether the answer is calls and nothing else.
    only_calls: bool,
}

async fn prepared(
    app: &Arc<App>,
    model: &Arc<Model>,
    request: Request,
    deadline: Option<Instant>,
) -> Result<Ready, ApiError> {
    let fields = body::object(app, request).await?;
    let (reader, asked) = (app.clone(), model.clone());
    let asked = aside(fields.is_long(), move || read(fields, &reader, &asked, deadline)).await?;
    let ticket = enter(app)?;
    let turn = form::turn(app, asked.tools.is_some() || asked.form.is_some()).await;
    let model = model.clone();
    // the place is kept as long as there is work, even if the client leaves meanwhile
    blocking(move || {
        let prompt = prompt(&model, &asked.conversation)?;
        let form = asked.form.as_ref();
        let (form, shown) = match &asked.tools {
            Some((tools, format)) => {
                let matcher = calls::compile(&model, *format, tools, form)?;
                (Some(("tools", matcher)), format.controls(&**model.engine.tokenizer()))
            }
            None => (form.map(|form| form.compile(&model)).transpose()?, Vec::new()),
        };
        drop(turn);
        let only_calls = asked.tools.as_ref().is_some_and(|(tools, _)| tools.choice != Choice::Auto);
        let calls = asked.tools.map(|(_, format)| format);
        let order = Order { ticket, prompt, param: "messages", form, shown };
        Ok(Ready { order, params: asked.params, calls, only_calls })
    })
    .await
}

fn read(mut fields: Fields, app: &App, model: &Model, deadline: Option<Instant>) -> Result<Asked, ApiError> {
    let mut params = params::read(&fields, app, model, 1, deadline)?;
    params.logprobs = logprobs(&fields)?;
    let form = form::read(&mut fields)?;
    let mut tools = tools::read(&mut fields)?;
    let format = tools.is_some().then(|| calls::format(model, app.options.tool_format)).transpose()?;
    let conversation = conversation(&mut fields, tools.as_mut().map(|tools| mem::take(&mut tools.list)))?;
    Ok(Asked { params, form, tools: tools.zip(format), conversation, _fields: fields })
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
