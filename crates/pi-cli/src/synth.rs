//! `pi synth`: writes a model of random weights and a given activation, for measurements and tests.

use crate::{
    failure::{Failure, Result},
    interrupt::{INTERRUPTED, Interrupt},
    output::{Output, say, size},
    writing::quant_type,
};
use clap::{Args, ValueEnum, ValueHint, value_parser};
use pi_engine::{
    pi_core::QuantType,
    pi_gguf::{Error, Kind},
};
use pi_testkit::synth::{Family, LayerReport, Options, Preset, Progress, Report, SynthError, SynthModel};
use std::{
    io::{self, IsTerminal, Write},
    ops::ControlFlow,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

/// The options of `pi synth`.
#[derive(Args, Debug)]
pub struct SynthFlags {
    /// The file to write
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// gguf: ordinary, with down matrices as usual; pwri: PowerInfer's, with predictors and with down matrices stored neuron by
    /// neuron
    #[arg(long, value_name = "gguf|pwri", default_value = "gguf", hide_possible_values = true)]
    format: Format,
    /// Type of the matrices, as in Q4_0, Q8_0, Q4_K, F16
    #[arg(long = "type", value_name = "TYPE", default_value = "Q4_0", value_parser = quant_type)]
    ty: QuantType,
    /// Of the random numbers: the same seed gives the same file
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,
    /// Threads [default: as many as cores]
    #[arg(short, long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,

    /// Published shape to start from: 7b, 13b, 40b-falcon, 70b, opt-30b
    #[arg(long, value_name = "NAME", default_value = "7b", value_parser = str::parse::<Preset>, help_heading = "Shape")]
    preset: Preset,
    /// llama, bamboo, falcon or opt [default: the preset's]
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Family>, help_heading = "Shape")]
    family: Option<Family>,
    /// Layers
    #[arg(long, value_name = "N", help_heading = "Shape")]
    layers: Option<usize>,
    /// Width
    #[arg(long, value_name = "N", requires_all = ["ffn", "heads"], help_heading = "Shape")]
    dim: Option<usize>,
    /// Neurons per layer
    #[arg(long, value_name = "N", help_heading = "Shape")]
    ffn: Option<usize>,
    /// Query heads
    #[arg(long, value_name = "N", help_heading = "Shape")]
    heads: Option<usize>,
    /// Key and value heads [default: the preset's, or with --heads as many]
    #[arg(long, value_name = "N", help_heading = "Shape")]
    kv_heads: Option<usize>,
    /// Tokens
    #[arg(long, value_name = "N", help_heading = "Shape")]
    vocab: Option<usize>,
    /// Positions
    #[arg(long, value_name = "N", help_heading = "Shape")]
    context: Option<usize>,

    /// Share of neurons that fire for a token: that have a positive gate, or a positive up if the family has no gate
    #[arg(
        long,
        value_name = "SHARE",
        default_value_t = 0.1,
        allow_negative_numbers = true,
        help_heading = "Activation"
    )]
    active: f64,
    /// Share of neurons, from the most active on, that give 80 % of the activations; 0.8 if all are alike [default: 0.43 for llama
    /// and bamboo, 0.26 for falcon and opt, or what comes nearest]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true, help_heading = "Activation")]
    skew: Option<f64>,
    /// Width of the predictors [default: a quarter of the model's]
    #[arg(long, value_name = "N", help_heading = "Activation")]
    rank: Option<usize>,
    /// What predictors cannot see of a neuron's input, in standard deviations of what they see
    #[arg(long, value_name = "X", default_value_t = 0.1, allow_negative_numbers = true, help_heading = "Activation")]
    noise: f64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    Gguf,
    Pwri,
}

impl SynthFlags {
    fn model(&self) -> SynthModel {
        let mut model = SynthModel::of(self.preset);
        let s = &mut model.shape;
        if let Some(heads) = self.heads {
            (s.heads, s.kv_heads) = (heads, heads);
        }
        let numbers = [
            (&mut s.layers, self.layers),
            (&mut s.dim, self.dim),
            (&mut s.neurons, self.ffn),
            (&mut s.kv_heads, self.kv_heads),
            (&mut s.vocab, self.vocab),
            (&mut s.context, self.context),
        ];
        for (number, given) in numbers {
            *number = given.unwrap_or(*number);
        }
        SynthModel {
            family: self.family.unwrap_or(model.family),
            ty: self.ty,
            kind: match self.format {
                Format::Gguf => Kind::Gguf,
                Format::Pwri => Kind::PowerInfer,
            },
            active: self.active,
            skew: self.skew,
            rank: self.rank,
            noise: self.noise,
            seed: self.seed,
            ..model
        }
    }
}

/// Writes a model, and prints what was measured while it was made.
///
/// # Errors
/// If the numbers do not fit together, or the file cannot be written.
pub fn synth(flags: &SynthFlags) -> Result {
    let model = flags.model();
    let failure = |error: SynthError| match error {
        SynthError::Setting { name, expected, got } => {
            Failure::Usage(format!("--{name}: expected {expected}, got {got}"))
        }
        // The folder's errors name the path, the writer's do not.
        SynthError::Gguf(error @ Error::Io { .. }) => Failure::Work(error.to_string()),
        other => Failure::Work(format!("{}: {other}", flags.output.display())),
    };
    model.check().map_err(failure)?;
    let interrupt = Interrupt::watch()?;
    interrupt.writing(); // from here on there is something to clean up
    let (begun, mut line) = (Instant::now(), Line::new());
    let mut progress = |now: &Progress<'_>| {
        if interrupt.writing() {
            return ControlFlow::Break(());
        }
        line.show(now);
        ControlFlow::Continue(())
    };
    let options = Options { threads: flags.threads.map(|n| n as usize), progress: Some(&mut progress) };
    let done = model.create(&flags.output, options);
    line.clear();
    let report = match done {
        Err(SynthError::Cancelled) => {
            say("interrupted: nothing was written");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        done => done.map_err(failure)?,
    };
    Output::new().write(summary(flags, &report, begun.elapsed()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn summary(flags: &SynthFlags, report: &Report, time: Duration) -> String {
    let mean = |of: fn(&LayerReport) -> f64| report.mean(of);
    let active = report.layers.iter().map(|l| l.active);
    let (least, most) = active.fold((1.0f64, 0.0f64), |(a, b), v| (a.min(v), b.max(v)));
    let mut text = format!(
        "{}: {} of tensors in {:.1} s\nactive neurons: {:.2} % on average, {:.2} to {:.2} % by layer\n80 % of the \
         activations: from {:.1} % of the neurons\n",
        flags.output.display(),
        size(report.bytes),
        time.as_secs_f64(),
        100.0 * mean(|l| l.active),
        100.0 * least,
        100.0 * most,
        100.0 * mean(|l| l.hot),
    );
    if report.layers.iter().all(|l| l.recall.is_some()) {
        text += &format!(
            "predictors: {:.1} % of the neurons that fire are found, {:.1} % of those found fire\n",
            100.0 * mean(|l| l.recall.unwrap_or_default()),
            100.0 * mean(|l| l.precision.unwrap_or_default()),
        );
    }
    text
}

/// One line on standard error that is written anew; where that is not a terminal, a line per layer.
struct Line {
    is_terminal: bool,
    shown: Option<Instant>,
}

impl Line {
    fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), shown: None }
    }

    fn show(&mut self, now: &Progress<'_>) {
        if let Some(layer) = now.done {
            self.clear();
            let found = layer.recall.map_or_else(String::new, |r| format!(", {:.1} % of them predicted", 100.0 * r));
            let active = 100.0 * layer.active;
            say(&format!("layer {} of {}: {active:.2} % active{found}", now.layer + 1, now.layers));
        } else if self.is_terminal && self.shown.is_none_or(|t| t.elapsed() > Duration::from_millis(200)) {
            let _ = write!(io::stderr(), "\r{} of {} layers, {} ", now.layer, now.layers, size(now.bytes));
            self.shown = Some(Instant::now());
        }
    }

    fn clear(&mut self) {
        if self.is_terminal && self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r{:60}\r", "");
        }
    }
}
