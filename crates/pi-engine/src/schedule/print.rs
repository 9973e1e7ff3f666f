//! Schedules as text and as graphs.

use super::{Node, Operation, Schedule};
use crate::plan::Side;
use std::fmt::{self, Write as _};

/// What a node is, in a few words.
fn label(node: &Node, schedule: &Schedule) -> String {
    let with_parts = |side| {
        let other = |n: &&Node| n.layer == node.layer && n.operation == Operation::Ffn && n.side != side;
        schedule.nodes().iter().any(|n| other(&n))
    };
    match (node.operation, &node.predictor) {
        (Operation::Ffn, _) => {
            let which = match (with_parts(node.side), node.side) {
                (false, _) => "",
                (true, Side::Cpu) => "cold ",
                (true, Side::Accelerator) => "hot ",
            };
            format!("{which}FFN, {} neurons", node.neurons)
        }
        (Operation::Mark, None) => "mark all neurons".into(),
        (Operation::Mark, Some(kind)) => format!("mark neurons ({kind})"),
        (other, _) => other.name().into(),
    }
}

fn moved(node: &Node) -> String {
    let one =
        |m: &super::Move| format!("{} to the {}", m.value.name(), if m.to == Side::Cpu { "CPU" } else { "device" });
    node.moves.iter().map(one).collect::<Vec<_>>().join(", ")
}

pub(super) fn text(schedule: &Schedule, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let width =
        [Side::Cpu, Side::Accelerator].map(|s| schedule.device(s).chars().count()).into_iter().max().unwrap_or(0);
    for (i, node) in schedule.nodes().iter().enumerate() {
        let layer = node.layer.map_or_else(|| "-".into(), |l| l.to_string());
        let needs = node.needs.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        write!(f, "{i:>5}  {layer:>4}  {:<width$}  {:<32}", schedule.device(node.side), label(node, schedule))?;
        write!(f, "  after {}", if needs.is_empty() { "nothing" } else { &needs })?;
        match node.moves.is_empty() {
            true => writeln!(f)?,
            false => writeln!(f, "; moves: {}", moved(node))?,
        }
    }
    Ok(())
}

/// Groups of consecutive nodes of one layer.
fn groups(schedule: &Schedule) -> Vec<(Option<usize>, Vec<usize>)> {
    let mut all: Vec<(Option<usize>, Vec<usize>)> = Vec::new();
    for (i, node) in schedule.nodes().iter().enumerate() {
        match all.last_mut() {
            Some((layer, group)) if *layer == node.layer && layer.is_some() => group.push(i),
            _ => all.push((node.layer, vec![i])),
        }
    }
    all
}

/// Text between double quotes of a Mermaid label: Mermaid has entities of its own, written with `#`.
fn mermaid_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '#' | '&' | '<' | '>' | '`' | '\\' => {
                let _ = write!(out, "#{};", c as u32);
            }
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Text between double quotes of DOT.
fn dot_text(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).collect::<String>().replace('\\', "\\\\").replace('"', "\\\"")
}

pub(super) fn mermaid(schedule: &Schedule) -> String {
    let mut out = String::from("flowchart TD\n");
    for (layer, group) in groups(schedule) {
        if let Some(layer) = layer {
            let _ = writeln!(out, "  subgraph layer{layer} [\"layer {layer}\"]");
        }
        for i in group {
            let node = &schedule.nodes()[i];
            let (what, device) = (label(node, schedule), schedule.device(node.side));
            let class = if node.side == Side::Cpu { "cpu" } else { "device" };
            let text = format!("{}<br/>{}", mermaid_text(&what), mermaid_text(device));
            let _ = writeln!(out, "    n{i}[\"{text}\"]:::{class}");
        }
        if layer.is_some() {
            out.push_str("  end\n");
        }
    }
    for (i, node) in schedule.nodes().iter().enumerate() {
        for (k, need) in node.needs.iter().enumerate() {
            // what moves stands at one of the arrows
            match (k, moved(node)) {
                (0, moves) if !moves.is_empty() => {
                    let _ = writeln!(out, "  n{need} -->|\"{}\"| n{i}", mermaid_text(&moves));
                }
                _ => {
                    let _ = writeln!(out, "  n{need} --> n{i}");
                }
            }
        }
    }
    out.push_str("  classDef cpu fill:#e8f0fe,stroke:#1a73e8,color:#202124\n");
    out.push_str("  classDef device fill:#fce8e6,stroke:#d93025,color:#202124\n");
    out
}

pub(super) fn dot(schedule: &Schedule) -> String {
    let mut out = String::from("digraph schedule {\n  node [shape=box, style=filled];\n");
    for (layer, group) in groups(schedule) {
        if let Some(layer) = layer {
            let _ = writeln!(out, "  subgraph cluster_{layer} {{\n    label=\"layer {layer}\";");
        }
        for i in group {
            let node = &schedule.nodes()[i];
            let colour = if node.side == Side::Cpu { "#e8f0fe" } else { "#fce8e6" };
            let (what, device) = (dot_text(&label(node, schedule)), dot_text(schedule.device(node.side)));
            let _ = writeln!(out, "    n{i} [label=\"{what}\\n{device}\", fillcolor=\"{colour}\"];");
        }
        if layer.is_some() {
            out.push_str("  }\n");
        }
    }
    for (i, node) in schedule.nodes().iter().enumerate() {
        for (k, need) in node.needs.iter().enumerate() {
            match (k, moved(node)) {
                (0, moves) if !moves.is_empty() => {
                    let _ = writeln!(out, "  n{need} -> n{i} [label=\"{}\"];", dot_text(&moves));
                }
                _ => {
                    let _ = writeln!(out, "  n{need} -> n{i};");
                }
            }
        }
    }
    out.push_str("}\n");
    out
}
