//! A plan as a page for people.

use crate::output::{printable, size};
use pi_engine::{Side, costs::Origin, planner::Planned};
use std::{fmt::Write, path::Path};

/// The page.
pub fn page(model: &Path, planned: &Planned) -> String {
    let (m, mut page) = (&planned.memory, String::new());
    let sum = m.layers();
    let _ = writeln!(page, "{}", printable(&model.display().to_string()));
    let _ = writeln!(
        page,
        "on the device: {} bytes ({}) of a budget of {} ({})\n",
        m.total(),
        size(m.total()),
        planned.budget,
        size(planned.budget)
    );
    for (what, bytes) in [
        ("runtime", m.runtime),
        ("hidden states", m.hidden),
        ("norms", sum.norms),
        ("attention", sum.attention),
        ("KV cache", sum.kv),
        ("predictors", sum.predictor),
        ("output", m.output),
        ("neurons", sum.neurons),
        ("scratch of neurons", sum.scratch),
    ] {
        let _ = writeln!(page, "  {what:<20}{bytes:>16}");
    }
    page += "\nlayer  dense       norms    attention     KV cache   predictor    neurons        bytes      scratch  \
             CPU ms  dev. ms  sync ms  layer ms\n";
    let layers = m.layers.iter().zip(&planned.plan.layers).zip(&planned.times.layers);
    for (i, ((b, l), t)) in layers.enumerate() {
        let hot = format!("{}/{}", l.hot.len(), l.hot.total());
        let side = if l.dense == Side::Cpu { "CPU" } else { "device" };
        let _ = writeln!(
            page,
            "{i:>5}  {side:<6}{:>11} {:>12} {:>12} {:>11} {hot:>12} {:>12} {:>12} {:>7.3} {:>8.3} {:>8.3} {:>9.3}",
            b.norms,
            b.attention,
            b.kv,
            b.predictor,
            b.neurons,
            b.scratch,
            1e3 * t.host,
            1e3 * t.device,
            1e3 * t.sync,
            1e3 * t.total
        );
    }
    let side = if planned.plan.head == Side::Cpu { "CPU" } else { "device" };
    let _ = writeln!(page, "  out  {side:<6}{:>11} {:>124.3}", m.output, 1e3 * planned.times.output);
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let _ =
        writeln!(page, "\nhot neurons: {} of {} ({})", planned.hot(), planned.neurons(), percent(planned.hot_share()));
    let from = match planned.statistics.tokens() {
        Some(tokens) => format!("counted along {tokens} tokens"),
        None if planned.statistics.is_known() => "every neuron is computed".into(),
        None => "assumed".into(),
    };
    let _ = writeln!(page, "expected hit rate: {} of the activations ({from})", percent(planned.hit_rate()));
    let seconds = planned.times.total();
    let _ = writeln!(page, "expected: {:.2} tokens/s, {:.3} ms per token", 1.0 / seconds, 1e3 * seconds);
    if let Some(choice) = &planned.choice {
        let gap = choice.gap.map_or("no bound".into(), |gap| format!("within {:.4} % of a bound", 100.0 * gap));
        let _ = writeln!(
            page,
            "neurons by: {} ({}), {gap}, {:.3} s",
            choice.policy,
            choice.solver,
            choice.elapsed.as_secs_f64()
        );
    }
    page += "figures:\n";
    for (what, figure) in &planned.times.figures {
        let origin = if figure.origin == Origin::Measured { "measured" } else { "assumed" };
        let _ = writeln!(page, "  {what}: {:.4e} ({origin})", figure.value);
    }
    for note in &planned.notes {
        let _ = writeln!(page, "note: {}", printable(note));
    }
    page
}
