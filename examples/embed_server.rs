//! The model's routes inside a web program of your own: `cargo run --release -p examples --example embed_server [ADDRESS] [MODEL.gguf]`
//!
//! OpenAI's clients find the model at `http://ADDRESS/llm/v1`; `/` and `/story/NAME` are the program's own, and the second asks the
//! model without going through the network.

use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::get,
};
use pi_engine::{Engine, pi_gguf::File};
use pi_server::{Loaded, Server, ServerOptions};
use serde_json::json;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or("127.0.0.1:8080".into());
    let model = args.next().unwrap_or("models/tiny-reglu-6m/tiny-reglu-6m-f16.gguf".into());

    // The model is loaded in a thread of its own; until it is there, its routes answer 503.
    let options = ServerOptions { names: vec!["storyteller".into()], parallel: 2, ..Default::default() };
    let server = Server::start(options, move || {
        let file = File::open(&model).map_err(|e| e.to_string())?;
        let engine = Engine::builder().load(&file).map_err(|e| e.to_string())?;
        Ok(Loaded::new(engine, file.metadata()))
    })?;

    let app = Router::new()
        .route("/", get(|| async { "a program of mine; its model is at /llm/v1" }))
        .route("/story/{name}", get(story))
        .with_state(server.clone())
        .nest("/llm", server.router());
    let listener = tokio::net::TcpListener::bind(&address).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app).await?;
    Ok(())
}

async fn story(State(server): State<Server>, Path(name): Path<String>) -> Result<String, (StatusCode, String)> {
    let begin = format!("Once upon a time {name}");
    let (status, answer) = server.ask("/v1/completions", &json!({"prompt": begin, "max_tokens": 60, "seed": 1})).await;
    match answer["choices"][0]["text"].as_str() {
        Some(text) => Ok(begin + text),
        None => Err((
            StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY),
            answer["error"]["message"].to_string(),
        )),
    }
}
