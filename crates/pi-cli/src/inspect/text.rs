//! The findings as a page for people. Everything that comes from the file is shown with what does not print escaped.

use super::{Content, Findings, InspectFlags, part_size};
use crate::output::{printable, size};
use pi_engine::{
    ModelReport, PredictorForm, PredictorReport,
    pi_gguf::{Kind, NeuronIndex, Value},
};
use std::fmt::Write;

/// Longer values are cut.
const WIDTH: usize = 100;

/// Adds a line. (Writing to a string does not fail.)
macro_rules! line {
    ($page:expr, $($format:tt)*) => {{ let _ = writeln!($page, $($format)*); }};
}

/// The whole page.
pub fn page(findings: &Findings, flags: &InspectFlags) -> String {
    let mut page = String::new();
    file(&mut page, findings);
    metadata(&mut page, findings, flags.full);
    if !flags.no_tensors {
        tensors(&mut page, findings);
    }
    totals(&mut page, findings);
    match &findings.content {
        Content::Model(report) => model(&mut page, report),
        Content::Predictors(report) => {
            line!(page, "\nPredictors of a model that is not in this file (for --predictor-file)");
            if let Some(found) = &report.predictors {
                let (dim, neurons) = found.shape;
                let layers = found.layers.map_or_else(String::new, |n| format!("{n} layers, "));
                line!(page, "  for a model of {layers}width {dim}, {neurons} neurons per layer");
                predictors(&mut page, found);
            }
        }
        Content::NeuronIndex(Ok(index)) => neuron_index(&mut page, index),
        Content::NeuronIndex(Err(_)) => {}
    }
    problems(&mut page, &findings.problems);
    page
}

fn file(page: &mut String, findings: &Findings) {
    let f = &findings.file;
    let kind = match (f.kind(), &findings.content) {
        (_, Content::NeuronIndex(_)) => "neuron index of PowerInfer",
        (Kind::PowerInfer, _) => "PowerInfer GGUF (magic PWRI)",
        (_, Content::Predictors(_)) => "predictors in GGUF",
        (Kind::Gguf, _) if f.tensors().len() == 0 => {
            "GGUF without tensors (a vocabulary, or the first part of a model)"
        }
        (Kind::Gguf, _) => "GGUF",
    };
    line!(page, "{}", printable(&f.path().display().to_string()));
    line!(page, "{kind}, version {}, alignment {}, {}", f.version(), f.alignment(), size(findings.size()));
    for part in (0..f.parts()).filter(|_| f.parts() > 1) {
        let path = f.part_path(part).map(|p| p.display().to_string()).unwrap_or_default();
        line!(page, "part {} of {}: {}, {}", part + 1, f.parts(), printable(&path), size(part_size(f, part)));
    }
}

fn metadata(page: &mut String, findings: &Findings, full: bool) {
    let metadata = findings.file.metadata();
    line!(page, "\nMetadata ({} keys)", metadata.len());
    let rows: Vec<_> = metadata.iter().map(|(k, v)| (printable(k), type_name(&v), shown(&v, full))).collect();
    let width =
        |f: fn(&(String, String, String)) -> &String| rows.iter().map(|r| f(r).chars().count()).max().unwrap_or(0);
    let (keys, types) = (width(|r| &r.0), width(|r| &r.1));
    for (key, ty, value) in &rows {
        line!(page, "  {key:keys$}  {ty:types$}  {value}");
    }
}

fn type_name(value: &Value<'_>) -> String {
    match value {
        Value::Array(array) => format!("{}[{}]", array.element_type(), array.len()),
        other => other.ty().to_string(),
    }
}

/// A value on one line: strings quoted and escaped, long ones and arrays cut unless `full`.
fn shown(value: &Value<'_>, full: bool) -> String {
    let limit = if full { usize::MAX } else { WIDTH };
    match value {
        Value::String(text) => quoted(&text.to_string_lossy(), limit),
        Value::Array(array) => {
            let mut list = String::from("[");
            for (i, element) in array.iter().enumerate() {
                if list.len() >= limit {
                    list.push_str(", …");
                    break;
                }
                let comma = if i == 0 { "" } else { ", " };
                let _ = write!(list, "{comma}{}", shown(&element, full));
            }
            list + "]"
        }
        number => number.to_string(),
    }
}

fn quoted(text: &str, limit: usize) -> String {
    let short: String = text.chars().take(limit).collect();
    match text.len() - short.len() {
        0 => format!("{short:?}"),
        rest => format!("{short:?}… and {rest} bytes more"),
    }
}

fn tensors(page: &mut String, findings: &Findings) {
    let f = &findings.file;
    line!(page, "\nTensors ({}; shapes begin with the length of a row)", f.tensors().len());
    let several = f.parts() > 1;
    let rows: Vec<[String; 5]> = f
        .tensors()
        .map(|t| {
            let part = if several { format!(" in part {}", t.part() + 1) } else { String::new() };
            let shape = t.dims().iter().map(usize::to_string).collect::<Vec<_>>().join(" × ");
            let offset = format!("{}{part}", t.range().start);
            [printable(t.name()), t.ty().to_string(), shape, t.data().len().to_string(), offset]
        })
        .collect();
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let (name, ty, shape, bytes, offset) = (width(0), width(1), width(2), width(3), width(4));
    for r in &rows {
        let [n, t, s, b, o] = r;
        line!(page, "  {n:name$}  {t:ty$}  {s:shape$}  {b:>bytes$} bytes at {o:>offset$}");
    }
}

fn totals(page: &mut String, findings: &Findings) {
    if findings.totals.is_empty() {
        return;
    }
    line!(page, "\nTypes");
    for total in &findings.totals {
        let unsupported = if total.ty.quant().is_some() { "" } else { "; the engine does not compute with it" };
        let plural = if total.tensors == 1 { "" } else { "s" };
        line!(
            page,
            "  {}: {} tensor{plural}, {} numbers, {}{unsupported}",
            total.ty,
            total.tensors,
            total.numbers,
            size(total.bytes)
        );
    }
    let (count, bytes) = findings.totals.iter().fold((0, 0), |(n, b), t| (n + t.numbers, b + t.bytes));
    line!(page, "  all: {} tensors, {count} numbers, {}", findings.file.tensors().len(), size(bytes));
}

fn model(page: &mut String, report: &ModelReport) {
    line!(page, "\nModel");
    match &report.config {
        None => line!(page, "  the engine cannot run it; see the problems"),
        Some(c) => {
            line!(page, "  {}: {} layers, width {}, {} neurons per layer", c.architecture, c.layers, c.dim, c.neurons);
            line!(
                page,
                "  {} query and {} key/value heads of {}, context {}",
                c.heads,
                c.kv_heads,
                c.head_dim,
                c.context
            );
        }
    }
    match &report.sparsity {
        Some(sparsity) => line!(page, "  sparsity: {}", printable(&sparsity.to_string())),
        None => line!(page, "  sparsity: not known"),
    }
    if let Some(found) = &report.predictors {
        predictors(page, found);
    }
}

/// All predictors in a line, and then layer by layer.
fn predictors(page: &mut String, found: &PredictorReport) {
    let range = |(from, to): (String, String)| if from == to { from } else { format!("{from} to {to}") };
    let of = found.layers.map_or_else(String::new, |n| format!(" of {n}"));
    let mut all = format!("in {}{of} layers", found.found.len());
    if let Some((from, to)) = found.ranks() {
        let threshold = found.thresholds().map(|(from, to)| range((from.to_string(), to.to_string())));
        let threshold = threshold.unwrap_or_else(|| "not stated".into());
        all += &format!(", rank {}, threshold {threshold}", range((from.to_string(), to.to_string())));
    }
    line!(page, "  predictors: {all}, {}", size(found.bytes()));
    let mut of_layer: Vec<(usize, String)> = found.exact().map(|layer| (layer, "none, runs exactly".into())).collect();
    of_layer.extend(found.found.iter().map(|p| {
        let what = match &p.form {
            PredictorForm::Mlp { rank, types, threshold } => {
                let threshold = threshold.map_or_else(|| "not stated".into(), |t| t.to_string());
                let types = range((types[0].to_string(), types[1].to_string()));
                format!("rank {rank}, {types}, threshold {threshold}, {}", size(p.bytes))
            }
            PredictorForm::Sign { margin } => format!("signs of the gate, margin {margin}"),
            _ => "of a kind that is not known here".into(),
        };
        (p.layer, what)
    }));
    of_layer.sort_unstable_by_key(|(layer, _)| *layer);
    for (layer, what) in of_layer {
        line!(page, "    layer {layer}: {what}");
    }
}

fn neuron_index(page: &mut String, index: &NeuronIndex) {
    line!(page, "\nHot neurons, chosen for {} of device memory", size(index.vram_capacity));
    for (i, layer) in index.layers.iter().enumerate() {
        line!(page, "  layer {i}: {} of {}", layer.hot().len(), layer.neurons());
    }
}

fn problems(page: &mut String, problems: &[String]) {
    if problems.is_empty() {
        return line!(page, "\nNo problems found");
    }
    line!(page, "\nProblems");
    for problem in problems {
        line!(page, "  - {}", printable(problem));
    }
}
