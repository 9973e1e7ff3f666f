//! The figures of a profile: how activations are spread over neurons, how often they fire, what texts have in common.

use super::{
    report::{Report, TOP},
    svg::{Figure, colour},
};
use pi_engine::pi_predictor::profile::{Counts, LayerCounts, Profile};

const WIDTH: f64 = 720.0;
const GREY: &str = "#ddd";
const SMALL: &str = "font-size=\"11\"";

/// All of them, below each other.
pub fn all(profile: &Profile, report: &Report) -> Figure {
    let mut page = Figure::new(WIDTH, 0.0);
    for (title, figure) in titled(profile, report) {
        page.append(title, &figure);
    }
    page
}

/// The figures with their titles. What texts have in common is shown if there are several.
pub fn titled(profile: &Profile, report: &Report) -> Vec<(&'static str, Figure)> {
    let counts = profile.merged();
    let mut figures = vec![
        ("Activations given by the most active neurons", cdf(&counts, report)),
        ("How often neurons fire, the most active of each layer first", heat(&counts)),
    ];
    if report.texts.len() > 1 {
        figures.push(("Most active neurons in common between texts", overlap(report)));
    }
    figures
}

/// A colour for layer `i` of `n`; the lightest would not be seen on white.
fn of_layer(i: usize, n: usize) -> String {
    colour(0.88 * i as f64 / (n.max(2) - 1) as f64)
}

/// Share of activations over share of neurons, a curve for each layer and one for the whole model (paper fig. 5).
fn cdf(counts: &Counts, report: &Report) -> Figure {
    const POINTS: usize = 200;
    let (left, top, w, h) = (60.0, 12.0, 440.0, 360.0);
    let mut f = Figure::new(WIDTH, top + h + 48.0);
    let at = |x: f64, y: f64| (left + w * x, top + h * (1.0 - y));
    for i in 0..=5 {
        let v = f64::from(i) / 5.0;
        f.line(&[at(v, 0.0), at(v, 1.0)], GREY, 1.0, "");
        f.line(&[at(0.0, v), at(1.0, v)], GREY, 1.0, "");
        let label = format!("{:.0} %", 100.0 * v);
        f.text((at(v, 0.0).0, top + h + 16.0), "middle", SMALL, &label);
        f.text((left - 6.0, at(0.0, v).1 + 4.0), "end", SMALL, &label);
    }
    f.text((left + w / 2.0, top + h + 36.0), "middle", "", "neurons");
    let turned = format!("transform=\"rotate(-90 14 {:.0})\"", top + h / 2.0);
    f.text((14.0, top + h / 2.0), "middle", &turned, "activations");
    let mut curve = |points: &[(f64, f64)], colour: &str, width| {
        let points: Vec<_> = points.iter().map(|&(x, y)| at(x, y)).collect();
        f.line(&points, colour, width, "stroke-linejoin=\"round\"");
    };
    let n = counts.layers().len();
    for (i, layer) in counts.layers().iter().enumerate() {
        curve(&layer.cdf(POINTS), &of_layer(i, n), 1.5);
    }
    curve(&counts.cdf(POINTS), "#000", 2.5);
    let share = report.whole.share_for_80;
    f.line(&[at(0.0, 0.8), at(share, 0.8), at(share, 0.0)], "#000", 1.0, "stroke-dasharray=\"4 3\"");

    let mut legend = |row: usize, colour: &str, width: f64, text: &str| {
        let y = top + 24.0 + 18.0 * row as f64;
        f.line(&[(left + w + 20.0, y - 4.0), (left + w + 44.0, y - 4.0)], colour, width, "");
        f.text((left + w + 52.0, y), "start", SMALL, text);
    };
    let from = |share: f64| format!("{:.1} %", 100.0 * share);
    legend(0, "#000", 2.5, &format!("whole model: {}", from(share)));
    let each = n.div_ceil(16).max(1);
    let shown: Vec<usize> = (0..n).filter(|i| i % each == 0 || i + 1 == n).collect();
    for (row, &i) in shown.iter().enumerate() {
        let layer = &report.layers[i];
        let text = format!("layer {}: {}", layer.layer, from(layer.shares.share_for_80));
        legend(row + 1, &of_layer(i, n), 1.5, &text);
    }
    f.text((left + w + 20.0, top + 6.0), "start", SMALL, "80 % come from");
    f
}

/// A strip for each layer, its neurons in order of how often they fire.
fn heat(counts: &Counts) -> Figure {
    const CELLS: usize = 160;
    /// Decades shown below "every token".
    const DECADES: f64 = 4.0;
    let (left, w) = (60.0, 600.0);
    let row = (360.0 / counts.layers().len().max(1) as f64).clamp(6.0, 28.0);
    let bottom = row * counts.layers().len() as f64;
    let mut f = Figure::new(WIDTH, bottom + 78.0);
    // often is dark
    let shade = |rate: f64| match rate {
        r if r > 0.0 => colour(-r.log10().max(-DECADES) / DECADES),
        _ => "#f4f4f4".into(),
    };
    let each = ((16.0 / row).ceil() as usize).max(1);
    for (i, layer) in counts.layers().iter().enumerate() {
        let y = row * i as f64;
        if i % each == 0 {
            f.text((left - 6.0, y + row / 2.0 + 4.0), "end", SMALL, layer.layer());
        }
        let cells: Vec<String> = rates(layer, counts.tokens(), CELLS).into_iter().map(shade).collect();
        let (width, mut x) = (w / cells.len().max(1) as f64, left);
        for same in cells.chunk_by(|a, b| a == b) {
            f.rect([x, y, width * same.len() as f64, row - 1.0], &same[0]);
            x += width * same.len() as f64;
        }
    }
    f.text((14.0, bottom / 2.0), "middle", &format!("transform=\"rotate(-90 14 {:.0})\"", bottom / 2.0), "layer");
    for (i, anchor) in ["start", "middle", "middle", "middle", "end"].into_iter().enumerate() {
        let share = i as f64 / 4.0;
        f.text((left + w * share, bottom + 14.0), anchor, SMALL, format!("{:.0} %", 100.0 * share));
    }
    f.text((left + w / 2.0, bottom + 30.0), "middle", "", "neurons of the layer");
    let (y, steps) = (bottom + 42.0, 80);
    for i in 0..steps {
        let part = f64::from(i) / f64::from(steps);
        f.rect([left + 300.0 * part, y, 300.0 / f64::from(steps) + 0.5, 10.0], &colour(1.0 - part));
    }
    for (i, label) in ["0.01 %", "0.1 %", "1 %", "10 %", "100 % of tokens"].into_iter().enumerate() {
        let anchor = if i == 4 { "start" } else { "middle" };
        f.text((left + 75.0 * i as f64 - if i == 4 { 20.0 } else { 0.0 }, y + 24.0), anchor, SMALL, label);
    }
    f.rect([left + 440.0, y, 14.0, 10.0], "#f4f4f4");
    f.text((left + 460.0, y + 9.0), "start", SMALL, "never");
    f
}

/// The mean share of tokens for which neurons fire, in up to `cells` groups of neurons, the most active first.
fn rates(layer: &LayerCounts, tokens: u64, cells: usize) -> Vec<f64> {
    let mut fired = layer.fired().to_vec();
    fired.sort_unstable_by(|a, b| b.cmp(a));
    let n = cells.min(fired.len());
    let mean = |i: usize| {
        let group = &fired[i * fired.len() / n..(i + 1) * fired.len() / n];
        group.iter().sum::<u64>() as f64 / (group.len() as f64 * tokens.max(1) as f64)
    };
    (0..n).map(mean).collect()
}

/// A square for each pair of texts (paper fig. 4's question: does one text tell which neurons are hot in another?).
fn overlap(report: &Report) -> Figure {
    let n = report.texts.len();
    let cell = (420.0 / n as f64).clamp(26.0, 64.0);
    let (left, top) = (60.0, 26.0);
    let mut f = Figure::new(WIDTH.max(left + cell * n as f64 + 240.0), top + cell * n as f64 + 30.0);
    for (i, row) in report.overlap.iter().enumerate() {
        let middle = |i: usize| (i as f64 + 0.5) * cell;
        f.text((left - 8.0, top + middle(i) + 4.0), "end", SMALL, i + 1);
        f.text((left + middle(i), top - 8.0), "middle", SMALL, i + 1);
        for (j, &share) in row.iter().enumerate() {
            let place = [left + cell * j as f64, top + cell * i as f64, cell - 1.0, cell - 1.0];
            f.rect(place, &colour(1.0 - share));
            let ink = if share > 0.45 { "font-size=\"11\" fill=\"#fff\"" } else { SMALL };
            f.text((left + middle(j), top + middle(i) + 4.0), "middle", ink, format!("{:.0}", 100.0 * share));
        }
        // names beside the rows
        let name = &report.texts[i].name;
        let short: String = name.chars().take(34).collect();
        let more = if short.len() < name.len() { "…" } else { "" };
        f.text(
            (left + cell * n as f64 + 12.0, top + middle(i) + 4.0),
            "start",
            SMALL,
            format!("{}  {short}{more}", i + 1),
        );
    }
    let note = format!("% of the most active {:.0} % of all neurons; chance gives {:.0}", 100.0 * TOP, 100.0 * TOP);
    f.text((left, top + cell * n as f64 + 18.0), "start", SMALL, note);
    f
}
