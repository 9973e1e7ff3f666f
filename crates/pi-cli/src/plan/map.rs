//! A plan as a picture: a row for each layer, with its attention and its neurons.

use crate::profile::svg::{Figure, colour};
use pi_engine::{Side, planner::Planned};
use std::path::Path;

/// Most cells of a row; of more neurons, each cell stands for several.
const CELLS: usize = 256;

/// The picture. Colours say which share of a cell's neurons is on the device: dark for none, yellow for all.
pub fn draw(model: &Path, planned: &Planned) -> String {
    let layers = &planned.plan.layers;
    let (left, top, row, cell, wide) = (64.0, 56.0, 10.0, 2.5, 14.0);
    let width = left + wide + 8.0 + cell * CELLS as f64 + 70.0;
    let mut f = Figure::new(width, top + row * (layers.len() + 1) as f64 + 40.0);
    let name = model.file_name().unwrap_or(model.as_os_str()).to_string_lossy();
    f.text((12.0, 24.0), "start", "font-size=\"16\" font-weight=\"600\"", format!("{name}: what is on the device"));
    let said =
        "attention, then neurons by number: dark on the CPU, yellow on the device; at the right, the share of neurons";
    f.text((12.0, 42.0), "start", "fill=\"#666\"", said);
    let side = |s: Side| colour(if s == Side::Cpu { 0.0 } else { 1.0 });
    for (i, l) in layers.iter().enumerate() {
        let y = top + row * i as f64;
        if i % 5 == 0 || i + 1 == layers.len() {
            f.text((left - 8.0, y + row - 1.0), "end", "", i);
        }
        f.rect([left, y, wide, row - 1.0], &side(l.dense));
        let (total, cells) = (l.hot.total(), CELLS.min(l.hot.total()));
        let mut hot = vec![0usize; cells];
        l.hot.iter().for_each(|n| hot[n * cells / total] += 1);
        let each = cell * CELLS as f64 / cells.max(1) as f64;
        for (c, &count) in hot.iter().enumerate() {
            // neurons n with n * cells / total = c
            let first = |c: usize| (c * total).div_ceil(cells);
            let share = count as f64 / (first(c + 1) - first(c)) as f64;
            f.rect([left + wide + 8.0 + each * c as f64, y, each, row - 1.0], &colour(share));
        }
        let share = if total == 0 { 0.0 } else { 100.0 * l.hot.len() as f64 / total as f64 };
        f.text((width - 60.0, y + row - 1.0), "start", "", format!("{share:.0} %"));
    }
    let y = top + row * layers.len() as f64 + 4.0;
    f.text((left - 8.0, y + row - 1.0), "end", "", "output");
    f.rect([left, y, wide, row - 1.0], &side(planned.plan.head));
    f.document()
}
