//! `pi serve`: an OpenAI-compatible server.

use crate::{
    chat, demo,
    failure::{Failure, Result},
    flags::{EngineFlags, SamplingFlags},
    interrupt::INTERRUPTED,
    loading::{introduce, load},
    output::say,
    placing::PlacingFlags,
    prompt,
};
use clap::{Args, ValueHint, value_parser};
use pi_engine::{SessionOptions, pi_gguf};
use pi_server::{Loaded, Phase, Server, ServerOptions, ToolFormat, chat::ChatTemplate};
use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{net::TcpListener, sync::Notify};

/// The options of `pi serve`.
#[derive(Args, Debug)]
pub struct ServeFlags {
    /// Model file: GGUF or PowerInfer; of a split model, any part [default: the demo model of the repository]
    #[arg(value_name = "MODEL", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,
    /// The same
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "file")]
    pub model: Option<PathBuf>,

    /// Address to listen on; anything but a loopback address is open to others: give an API key then
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1", help_heading = "Server")]
    pub host: String,
    /// Port; 0 takes a free one, which is printed
    #[arg(long, value_name = "PORT", default_value_t = 8080, allow_negative_numbers = true, help_heading = "Server")]
    pub port: u16,
    /// Key that must come with every request but /health. May be given several times. Other users of this machine can see
    /// command lines: --api-key-file is safer
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    pub api_key: Vec<String>,
    /// File of such keys, one a line
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Server")]
    pub api_key_file: Option<PathBuf>,
    /// Origin whose web pages may call the server, as `https://example.org`; * stands for all. May be given several times
    #[arg(long, value_name = "ORIGIN", help_heading = "Server")]
    pub cors: Vec<String>,
    /// Name or address by which the server may be called, beside `localhost`, `127.0.0.1` and `[::1]`. Where no key is asked for, a server on
    /// loopback refuses all others, as a web page from elsewhere would send them. May be given several times
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub allow_host: Vec<String>,
    /// Name of the model in answers. May be given several times [default: the file's name]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub alias: Vec<String>,
    /// Requests that are computed at the same time. Each has --ctx-size positions of its own
    #[arg(long, value_name = "N", default_value_t = 4, allow_negative_numbers = true,
          value_parser = value_parser!(u32).range(1..=1024), help_heading = "Server")]
    pub parallel: u32,
    /// Requests that may wait; any more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true,
          value_parser = value_parser!(u32).range(0..=65536), help_heading = "Server")]
    pub queue: u32,
    /// Seconds that a request may take from its arrival to its end; 0: as long as it likes
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 3600,
        allow_negative_numbers = true,
        help_heading = "Server"
    )]
    pub timeout: u32,
    /// Seconds that requests in progress may still take after SIGTERM or Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true, help_heading = "Server")]
    pub drain_timeout: u32,
    /// How conversations are written, instead of the template in the file: a name (chatml, llama2, llama3, gemma, plain) or a file
    #[arg(long, value_name = "NAME|FILE", help_heading = "Server")]
    pub chat_template: Option<String>,
    /// How the model writes calls of functions, where its chat template shows no known way [hermes, llama3, mistral]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    pub tool_format: Option<ToolFormat>,
    /// Most tokens of an answer where a request does not say; -1: until the model stops or the context is full
    #[arg(short, long, visible_alias = "predict", value_name = "N", default_value_t = -1, allow_negative_numbers = true,
          value_parser = value_parser!(i64).range(-1..=i64::from(i32::MAX)), help_heading = "Server")]
    pub n_predict: i64,

    /// Where a request says nothing of it
    #[command(flatten)]
    pub sampling: SamplingFlags,
    #[command(flatten)]
    pub engine: EngineFlags,
    #[command(flatten)]
    pub placing: PlacingFlags,
}

/// Serves until it is asked to end.
///
/// # Errors
/// If it cannot listen, or the model cannot be loaded.
pub fn serve(flags: &ServeFlags) -> Result {
    let path = match flags.file.as_ref().or(flags.model.as_ref()) {
        Some(path) => path.clone(),
        None => demo::find()?,
    };
    let options = options(flags, &path)?;
    flags.placing.kv_place()?;
    let template = flags.chat_template.as_deref().map(chat::source).transpose()?;
    chat::check_tools(flags.chat_template.as_deref(), template.as_deref(), flags.tool_format)?;
    let asked = watch()?;
    let failed = |e: std::io::Error| Failure::Work(format!("cannot serve: {e}"));
    // The engine has threads of its own, and what takes a while is done beside: one thread is enough for the network.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let drain = Duration::from_secs(flags.drain_timeout.into());
    let (engine, placing) = (flags.engine.clone(), flags.placing.clone());
    let load = loader(engine, placing, flags.parallel as usize, path.clone(), template, flags.tool_format);
    let served = runtime.block_on(async {
        let at = format!("{}:{}", flags.host, flags.port);
        let cannot = |e: std::io::Error| Failure::Work(format!("cannot listen on {at}: {e}"));
        let listener = TcpListener::bind((flags.host.trim_matches(['[', ']']), flags.port)).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let exposed = !address.ip().is_loopback() && options.api_keys.is_empty();
        let server = Server::start(options, load).map_err(failed)?;
        say(&format!("listening on http://{address} while the model is loaded"));
        if exposed {
            say("warning: anybody who can reach this address may use the model: give an --api-key or --api-key-file");
        }
        let watched = async {
            if server.loaded().await.is_ok() {
                let context = server.context().unwrap_or(0);
                say(&format!("ready: {} slots with a context of {context} tokens each", flags.parallel));
            }
            say(&format!("the device failed, the CPU goes on alone: {}", server.device_lost().await));
            std::future::pending().await
        };
        let ending = server.clone();
        let stop = async move {
            tokio::select! {
                () = asked.notified() => say("finishing what is in progress (once more ends at once)"),
                // who asked has to be told
                _ = ending.failed() => {}
            }
        };
        let ended = tokio::select! {
            ended = server.serve(listener, stop, drain) => ended.map_err(failed),
            never = watched => never,
        }?;
        match server.phase() {
            Phase::Failed(why) => Err(Failure::Work(why)),
            _ => Ok(ended),
        }
    });
    // what is still being prepared or loaded is not waited for
    runtime.shutdown_background();
    if !served? {
        say(&format!("some requests took longer than the {} seconds they had left", flags.drain_timeout));
    }
    Ok(ExitCode::SUCCESS)
}

/// The first SIGTERM or Ctrl-C is passed on, the second ends the process.
fn watch() -> Result<Arc<Notify>> {
    let (asked, twice) = (Arc::new(Notify::new()), AtomicBool::new(false));
    let notify = asked.clone();
    let handler = move || match twice.swap(true, Ordering::SeqCst) {
        false => notify.notify_one(),
        true => std::process::exit(INTERRUPTED.into()),
    };
    ctrlc::set_handler(handler).map_err(|e| Failure::Work(format!("cannot watch for signals: {e}")))?;
    Ok(asked)
}

/// Whether a browser could send this as the origin of a page.
fn is_origin(text: &str) -> bool {
    let host = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_graphic() && !b"/?#@\\".contains(&b));
    match text.split_once("://") {
        Some((scheme, rest)) => {
            scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') && !scheme.is_empty() && host(rest)
        }
        None => matches!(text, "*" | "null"),
    }
}

/// Whether this is a name or an address, without a scheme, a port or a path.
fn is_host(text: &str) -> bool {
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    let is_address = text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    is_address || !text.is_empty() && text.bytes().all(is_name)
}

fn options(flags: &ServeFlags, path: &Path) -> Result<ServerOptions> {
    let mut api_keys = flags.api_key.clone();
    if let Some(key) = api_keys.iter().find(|key| key.is_empty() || key.trim() != key.as_str()) {
        return Err(Failure::value(
            key,
            "--api-key <KEY>",
            "expected a key that is not empty, without spaces around it",
        ));
    }
    if let Some(origin) = flags.cors.iter().find(|origin| !is_origin(origin)) {
        let expected =
            "expected an origin as browsers send it, such as https://example.org (no path, no slash at the end), or *";
        return Err(Failure::value(origin, "--cors <ORIGIN>", expected));
    }
    if let Some(host) = flags.allow_host.iter().find(|host| !is_host(host)) {
        let expected = "expected a name or an address, such as pi.example.org or 10.0.0.7 (no scheme, no port)";
        return Err(Failure::value(host, "--allow-host <NAME>", expected));
    }
    if let Some(path) = &flags.api_key_file {
        let text = prompt::read(path)?;
        let lines = String::from_utf8_lossy(&text).lines().map(|l| l.trim().to_string()).collect::<Vec<_>>();
        let before = api_keys.len();
        api_keys.extend(lines.into_iter().filter(|key| !key.is_empty() && !key.starts_with('#')));
        if api_keys.len() == before {
            return Err(Failure::Work(format!("{}: expected a key on at least one line", path.display())));
        }
    }
    let name = || path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(ServerOptions {
        names: if flags.alias.is_empty() { vec![name()] } else { flags.alias.clone() },
        parallel: flags.parallel as usize,
        context: flags.engine.ctx_size.map(|n| n as usize),
        batch: flags.engine.batch_size as usize,
        queue: flags.queue as usize,
        timeout: (flags.timeout > 0).then(|| Duration::from_secs(flags.timeout.into())),
        api_keys,
        cors: flags.cors.clone(),
        hosts: flags.allow_host.clone(),
        sampling: flags.sampling.params(usize::MAX),
        max_tokens: usize::try_from(flags.n_predict).ok(),
        tool_format: flags.tool_format,
        ..Default::default()
    })
}

/// What loads the model, in the server's thread.
pub fn loader(
    engine: EngineFlags,
    placing: PlacingFlags,
    parallel: usize,
    path: PathBuf,
    template: Option<String>,
    tools: Option<ToolFormat>,
) -> impl FnOnce() -> Result<Loaded, String> + Send + 'static {
    move || {
        let session = |made_for: usize| {
            let context = engine.context(made_for);
            let batch = (engine.batch_size as usize).max(parallel);
            SessionOptions { context, batch, sequences: parallel, logits: parallel }
        };
        let said = |failure: Failure| match failure {
            Failure::Usage(message) | Failure::Work(message) => message,
            Failure::OutputClosed => "the output was closed".into(),
        };
        let loaded = load(&engine, &placing, engine.sparsity, &session, &path).map_err(said)?;
        introduce(&loaded, &path);
        let chat = match template {
            // what the user gave must be right; what the model brings must not keep completions from working
            Some(source) => Ok(ChatTemplate::new(&source, loaded.tokenizer().clone()).map_err(|e| e.to_string())?),
            None => {
                let file = pi_gguf::File::open(&path).map_err(|e| e.to_string())?;
                ChatTemplate::of(file.metadata(), loaded.tokenizer().clone()).inspect(chat::chosen)
            }
        };
        if let (Some(format), Ok(chat)) = (tools, &chat)
            && !chat.takes_tools()
        {
            let why = "the chat template of the model has no place for tools (--chat-template gives it another)";
            return Err(format!("--tool-format {format} has nothing to act on: {why}"));
        }
        if let Err(e) = &chat {
            say(&format!("warning: chat: {e}"));
        }
        Ok(Loaded { engine: loaded, chat: chat.map(Some) })
    }
}
