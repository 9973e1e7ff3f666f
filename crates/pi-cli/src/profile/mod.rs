//! `pi profile`: counts how often each neuron fires along texts, and shows what that says (paper §3.1).

mod figures;
mod page;
pub mod report;
pub mod svg;

use crate::{
    failure::{Failure, Result},
    flags::EngineFlags,
    interrupt::{INTERRUPTED, Interrupt},
    loading::{introduce, load_as, window},
    output::{Output, printable, say},
    progress::Progress,
    prompt,
    writing::{check_folder, check_output},
};
use clap::{Args, ValueHint, value_parser};
use pi_convert::{read_activations, write_activations};
use pi_engine::{
    Engine, Error, Sparsity,
    pi_core::text::TokenId,
    pi_gguf::{AtomicFile, File},
    pi_predictor::profile::{Profile, ProfileError, TextProfile, fingerprint},
    profile::{Profiler, load, model_fingerprint, save},
};
use report::Report;
use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, Instant},
};

/// Between two times that what was counted is written down.
const SAVE: Duration = Duration::from_secs(10);

const CONTEXT: &str =
    "Tokens that are computed together from an empty context; 0: as many as the model was made for [default: 512]";

/// Options of the engine that are not listed: neurons are counted in exact mode.
const MEANINGLESS: [&str; 5] = ["sparsity", "predictor", "predictor_file", "threshold", "margin"];

/// The options of `pi profile`.
#[derive(Args, Debug)]
#[command(mut_arg("ctx_size", |arg| arg.help(CONTEXT)), mut_args(|arg| {
    let hide = arg.is_hide_set() || MEANINGLESS.contains(&arg.get_id().as_str());
    arg.hide(hide)
}))]
pub struct ProfileFlags {
    /// The model: GGUF or PowerInfer, with an activation that is exactly 0 for idle neurons
    #[arg(value_name = "MODEL", value_hint = ValueHint::FilePath)]
    model: PathBuf,
    /// Text to read. May be given several times: texts are counted apart and together
    #[arg(long, required_unless_present = "import_activation", value_name = "FILE", value_hint = ValueHint::FilePath)]
    text: Vec<PathBuf>,
    /// The profile to write: what was counted, for other commands and to go on from. It is written every ten seconds; if an older
    /// one of the model is replaced, with .partial behind its name until all is counted
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Go on from what --output has: texts are counted from where they were left, other texts of it are kept
    #[arg(long, requires = "output")]
    resume: bool,
    /// Most tokens of each text
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    tokens: Option<u32>,
    /// Write a page with all figures and numbers
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Write the figures
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    svg: Option<PathBuf>,
    /// Add the counts of PowerInfer's activation files in this folder, activation_0.pt and so on, as those of a text. (They do
    /// not say of how many tokens: the largest count is taken)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    import_activation: Option<PathBuf>,
    /// Write PowerInfer's activation files, activation_0.pt and so on, into this folder: how often each neuron fired in all
    /// texts together
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    export_activation: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    engine: EngineFlags,
}

/// A text to be counted.
struct Text {
    name: String,
    fingerprint: u64,
    tokens: Vec<TokenId>,
}

/// Counts, writes, and prints what was found.
///
/// # Errors
/// Whatever keeps it from doing that.
pub fn profile(flags: &ProfileFlags) -> Result {
    if !matches!(flags.engine.sparsity, Sparsity::Auto | Sparsity::Exact) {
        return Err(Failure::Usage("--sparsity means nothing here: neurons are counted in exact mode".into()));
    }
    let failure = |e: Error| Failure::engine(&e, &flags.model);
    let texts: Vec<_> = flags.text.iter().map(|path| Ok((path, prompt::read(path)?))).collect::<Result<_, _>>()?;
    check(flags)?;
    let interrupt = Interrupt::watch()?;
    // Without an error of its own for activations that never are 0: the profiler has a better one.
    let engine = load_as(&flags.engine, Sparsity::Auto, &flags.model)?;
    introduce(&engine, &flags.model);
    let context = window(&flags.engine, &engine);
    let mut profiler = Profiler::new(&engine, context, flags.engine.batch_size as usize).map_err(failure)?;
    let texts: Vec<Text> =
        texts.into_iter().map(|(path, bytes)| text(&engine, path, &bytes, flags)).collect::<Result<_, _>>()?;
    let (mut profile, kept) = begin(flags, &engine, &profiler.shape())?;
    if let Some(folder) = &flags.import_activation {
        import(folder, &engine, &mut profile)?;
    }
    same_context(&profile, &texts, context as u64)?;
    let done = count(flags, kept.as_deref(), &mut profiler, &mut profile, &texts, &interrupt)?;
    if done && let Some(path) = &flags.output {
        save(&profile, path).map_err(failure)?;
        if let Some(partial) = kept.filter(|kept| kept != path) {
            let _ = fs::remove_file(partial); // the profile is whole without this
        }
    }
    let report = Report::new(&profile);
    if done {
        export(flags, &profile, &report)?;
    }
    let mut out = Output::new();
    match flags.json {
        true => out.json(&report)?,
        false => out.write(report.printable().as_bytes())?,
    }
    Ok(if done { ExitCode::SUCCESS } else { ExitCode::from(INTERRUPTED) })
}

/// What can be said before any work: outputs that cannot be written, or are inputs or each other.
fn check(flags: &ProfileFlags) -> Result<()> {
    let mut kept: Vec<(&str, &Path)> = vec![("the model", &flags.model)];
    kept.extend(flags.text.iter().map(|path| ("a text", path.as_path())));
    let outputs = [("--output", &flags.output), ("--html", &flags.html), ("--svg", &flags.svg)];
    for (flag, path) in outputs {
        if let Some(path) = path {
            check_output(path, kept.iter().copied())?;
            kept.push((flag, path));
        }
    }
    let Some(folder) = &flags.export_activation else { return Ok(()) };
    if let Some(import) = &flags.import_activation
        && let (Ok(a), Ok(b)) = (fs::canonicalize(import), fs::canonicalize(folder))
        && a == b
    {
        return Err(Failure::Work(format!("{}: this is --import-activation, and is not replaced", folder.display())));
    }
    check_folder(folder)
}

/// Activation files and figures.
fn export(flags: &ProfileFlags, profile: &Profile, report: &Report) -> Result<()> {
    if let Some(folder) = &flags.export_activation {
        let counts = profile.merged();
        let layers: Vec<Vec<f32>> =
            counts.layers().iter().map(|layer| layer.fired().iter().map(|n| *n as f32).collect()).collect();
        write_activations(folder, &layers).map_err(|e| Failure::Work(e.to_string()))?;
    }
    if let Some(path) = &flags.svg {
        write(path, &figures::all(profile, report).document())?;
    }
    if let Some(path) = &flags.html {
        write(path, &page::html(profile, report))?;
    }
    Ok(())
}

/// The tokens of a text, as many as are wanted.
fn text(engine: &Engine, path: &Path, bytes: &[u8], flags: &ProfileFlags) -> Result<Text> {
    let mut tokens = engine.encode_plain(bytes).map_err(|e| Failure::text(&e, path.display(), &flags.model))?;
    tokens.truncate(flags.tokens.map_or(usize::MAX, |n| n as usize));
    if tokens.is_empty() {
        return Err(Failure::Work(format!("{}: the text is empty", path.display())));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Text { name, fingerprint: fingerprint([bytes]), tokens })
}

/// An empty profile, or the one to go on from; and where it is kept until it is complete.
fn begin(flags: &ProfileFlags, engine: &Engine, neurons: &[u32]) -> Result<(Profile, Option<PathBuf>)> {
    let failure = |e: Error| Failure::engine(&e, &flags.model);
    let file = File::open(&flags.model).map_err(|e| failure(e.into()))?;
    let fingerprint = model_fingerprint(&file, engine.config().activation);
    let of_file = || flags.model.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let name = engine.config().name.as_deref().map_or_else(of_file, Into::into);
    let fresh = Profile::new(name, fingerprint, neurons);
    let Some(path) = flags.output.as_deref().filter(|path| path.exists()) else {
        if flags.resume {
            say("there is nothing to go on from yet: counting begins");
        }
        return Ok((fresh, flags.output.clone()));
    };
    let refused = |why: &str| Failure::Work(format!("{}: {why}", path.display()));
    let here = Some(path.to_owned());
    match load(path) {
        // Whatever it is, it may be dear to somebody.
        Err(e) if !flags.resume => Err(refused(&format!("it exists, and is not replaced: {}", cause(e)))),
        Err(e) => Err(failure(e)),
        Ok(old) if flags.resume => {
            let fits = old.expect_model(fingerprint, fresh.shape());
            fits.map_err(|e: ProfileError| refused(&e.to_string()))?;
            Ok((old, here))
        }
        Ok(old) if old.texts().is_empty() => Ok((fresh, here)), // begun, and nothing counted
        Ok(old) if old.expect_model(fingerprint, fresh.shape()).is_err() => Err(refused(&format!(
            "it is a profile of another model ({}), and is not replaced: give another --output, or remove it",
            printable(&old.model)
        ))),
        Ok(old) if !old.texts().iter().all(|text| text.is_complete()) => {
            Err(refused("it is not complete: --resume goes on with it (or remove it, to begin anew)"))
        }
        Ok(_) => Ok((fresh, Some(beside(path)?))),
    }
}

/// Where a profile is kept until it is complete, if another has its name until then.
fn beside(path: &Path) -> Result<PathBuf> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    match partial.symlink_metadata().is_ok() {
        true => Err(Failure::Work(format!(
            "{}: left by an interrupted run: --resume -o with it goes on from there, else remove it",
            partial.display()
        ))),
        false => Ok(partial),
    }
}

/// Adds the counts in a folder of PowerInfer's activation files.
fn import(folder: &Path, engine: &Engine, profile: &mut Profile) -> Result<()> {
    let c = engine.config();
    let rows = read_activations(folder, Some(c.layers), Some(c.neurons)).map_err(|e| Failure::Work(e.to_string()))?;
    let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy();
    let refused = |e: ProfileError| Failure::Work(format!("{}: {e}", folder.display()));
    profile.import(&format!("{name}/activation_N.pt"), &rows).map_err(refused)?;
    Ok(())
}

/// Counts depend on the context, so a text is counted to its end with the one it was begun with.
fn same_context(profile: &Profile, texts: &[Text], context: u64) -> Result<()> {
    let other = |t: &TextProfile| t.context != 0 && t.context != context;
    for text in texts {
        let Some(known) = profile.find(text.fingerprint).map(|i| &profile.texts()[i]) else { continue };
        let (done, all) = (known.position, text.tokens.len() as u64);
        if other(known) && (1..all).contains(&done) {
            return Err(Failure::Work(format!(
                "{}: {done} of {all} tokens were counted with -c {}: go on with that, or write another file",
                text.name, known.context
            )));
        }
    }
    for text in profile.texts().iter().filter(|text| other(text)) {
        say(&format!("note: {} was counted with -c {}, not {context}", text.name, text.context));
    }
    Ok(())
}

/// Said of a text that is given a second time.
pub fn same_text(second: &str, first: &str) -> String {
    format!("note: {second} is the same text as {first}: it is counted once")
}

/// What is to be said of a text that was counted before, now that `length` of its tokens are wanted.
fn cut_short(known: &TextProfile, length: u64, chunk: u64) -> Option<String> {
    let (name, done) = (&known.name, known.position);
    if done > length {
        return Some(format!("note: {name}: {done} of its tokens are counted already, which stay, not {length}"));
    }
    let odd = done % chunk.max(1);
    (odd > 0 && done < length && known.context != 0).then(|| {
        format!(
            "note: {name}: the {odd} tokens before token {done} were counted as a chunk of their own, because an earlier run ended \
             there (--tokens); the tokens after them are counted without them. Multiples of {chunk} avoid that"
        )
    })
}

fn cause(error: Error) -> String {
    match error {
        Error::Profile { source, .. } => source.to_string(),
        other => other.to_string(),
    }
}

/// Counts what is not counted yet, and keeps that in a file, if one is given. False if it was interrupted before the end.
fn count(
    flags: &ProfileFlags,
    kept: Option<&Path>,
    profiler: &mut Profiler,
    profile: &mut Profile,
    texts: &[Text],
    interrupt: &Interrupt,
) -> Result<bool> {
    let failure = |e: Error| Failure::engine(&e, &flags.model);
    let write_down = |profile: &Profile| match kept {
        Some(path) => save(profile, path).map_err(failure),
        None => Ok(()),
    };
    interrupt.writing(); // from here on there is something to go on from
    // What is stopped before the first ten seconds are over can be gone on with, too.
    write_down(profile)?;
    let mut places: Vec<(usize, &Text)> = Vec::with_capacity(texts.len());
    for text in texts {
        let length = text.tokens.len() as u64;
        let i = profile
            .find(text.fingerprint)
            .unwrap_or_else(|| profile.begin(text.name.clone(), text.fingerprint, length));
        match places.iter().find(|(place, _)| *place == i) {
            None => places.push((i, text)),
            Some((_, first)) => say(&same_text(&text.name, &first.name)),
        }
        if let Some(known) = profile.text_mut(i) {
            if known.position == 0 {
                known.context = profiler.context() as u64;
            }
            if let Some(note) = cut_short(known, length, profiler.chunk() as u64) {
                say(&note);
            }
            known.length = length.max(known.position);
        }
    }
    let of = |part: fn(&TextProfile) -> u64, profile: &Profile| -> u64 {
        places.iter().map(|(i, _)| part(&profile.texts()[*i])).sum()
    };
    let mut progress = Progress::new(of(|t| t.length, profile), "tokens");
    let mut done = of(|t| t.position, profile);
    progress.begin_at(done);
    let mut saved = Instant::now();
    for (i, text) in &places {
        while let Some(now) = profile.text_mut(*i).filter(|now| !now.is_complete()) {
            if interrupt.writing() {
                progress.clear();
                write_down(profile)?;
                say(&match kept {
                    Some(path) if flags.output.as_deref() != kept => {
                        format!("interrupted: --resume -o {} goes on from here", path.display())
                    }
                    Some(_) => "interrupted: --resume goes on from here".into(),
                    None => "interrupted, and nothing was written: --output was not given".into(),
                });
                return Ok(false);
            }
            let rest = &text.tokens[now.position as usize..];
            let part = &rest[..rest.len().min(profiler.chunk())];
            profiler.count(part, &mut now.counts).map_err(failure)?;
            now.position += part.len() as u64;
            done += part.len() as u64;
            progress.show(done, &format!("{:.2} % active", 100.0 * now.counts.active_share()));
            if saved.elapsed() >= SAVE {
                write_down(profile)?;
                saved = Instant::now();
            }
        }
    }
    Ok(true)
}

fn write(path: &Path, text: &str) -> Result<()> {
    let failure = |e: String| Failure::Work(e);
    let mut file = AtomicFile::create(path).map_err(|e| failure(e.to_string()))?;
    file.write_all(text.as_bytes()).map_err(|e| failure(format!("{}: cannot write: {e}", path.display())))?;
    file.commit().map_err(|e| failure(e.to_string()))
}
