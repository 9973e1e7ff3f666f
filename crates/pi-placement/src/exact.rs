//! The structured solver: a multiple-choice knapsack with a certified bound.

use crate::dual::Dual;
use crate::search::{round, search};
use crate::table::Table;
use crate::{Error, Objective, Placement, Problem, Remark, Result, Solver};
use std::time::Instant;

/// Chooses the best prefix of each layer's ranking, for either [`Objective`].
///
/// Three steps: a bound from prices of memory (Lagrangian relaxation), a choice from it by filling what room is left, and a search
/// that closes the gap between both. Small problems are solved to optimality. Large ones are when the gap happens to close within
/// [`effort`](Self::effort); otherwise [`Placement::gap`] says how far the optimum can be, usually some millionths, because the second step
/// alone is within about one batch of it.
///
/// For eq. 2 the result is optimal among *all* choices of whole batches, prefixes or not (a swap of a hot batch for a colder one
/// of the same layer never gains). For the expected time the hottest neurons are on the device by definition; that is no loss unless
/// a tight host limit forces neurons on a device that is hardly faster, where the coldest would be the better ones to take.
#[derive(Clone, Debug, PartialEq)]
pub struct Exact {
    /// What is wanted.
    pub objective: Objective,
    /// A gap that is small enough: the search ends (or is left out) there. 0 for optimality.
    pub gap: f64,
    /// How many combinations the search looks at, at most, roughly; some millions take a second.
    pub effort: u64,
}

impl Exact {
    /// The most impact on the device (eq. 2–8).
    pub fn impact() -> Self {
        Self { objective: Objective::Impact, gap: 0.0, effort: 500_000 }
    }

    /// The least expected time per token.
    pub fn time() -> Self {
        Self { objective: Objective::Time, ..Self::impact() }
    }
}

impl Default for Exact {
    fn default() -> Self {
        Self::impact()
    }
}

impl Solver for Exact {
    fn name(&self) -> &str {
        match self.objective {
            Objective::Impact => "exact",
            Objective::Time => "exact-time",
        }
    }

    fn solve(&self, problem: &Problem) -> Result<Placement> {
        let start = Instant::now();
        let table = Table::new(problem, self.objective)?;
        let dual = Dual::new(&table);
        let known = round(&table, &dual);
        let close = self.gap.max(1e-13) * dual.bound.abs();
        let found = match known {
            Some(choice) if dual.bound - table.value(&choice) <= close => {
                let bound = dual.bound.max(table.value(&choice));
                crate::search::Found { choice: Some(choice), bound }
            }
            known => search(&table, &dual, known, self.effort),
        };
        let Some(mut choice) = found.choice else {
            return Err(if found.bound == f64::NEG_INFINITY {
                Error::Infeasible { why: "no choice keeps the limits of both sides".into() }
            } else {
                let why = format!(
                    "none of {} combinations keeps the limits of both sides; more effort may help",
                    self.effort
                );
                Error::Undecided { why }
            });
        };
        if self.objective == Objective::Impact {
            use_spare_room(&table, &mut choice);
        }
        Ok(placement(problem, &table, &choice, found.bound, self.objective, self.name())?.started(start))
    }
}

/// Takes neurons that never fired as well where there is room: they might yet, and a layer without cold neurons needs no merge.
fn use_spare_room(table: &Table, choice: &mut [usize]) {
    let (mut device, _) = table.bytes(choice);
    for (layer, now) in table.layers.iter().zip(choice) {
        let room = table.device - (device - layer.device_bytes(*now));
        let more = (*now..layer.count.len())
            .rev()
            .find(|&j| layer.value[j] >= layer.value[*now] && layer.device_bytes(j) <= room);
        if let Some(j) = more {
            device = device - layer.device_bytes(*now) + layer.device_bytes(j);
            *now = j;
        }
    }
}

/// The placement that `choice` of `table` is, of which `bound` is known.
pub(crate) fn placement(
    problem: &Problem,
    table: &Table,
    choice: &[usize],
    bound: f64,
    objective: Objective,
    solver: &str,
) -> Result<Placement> {
    let layers = problem.layers().iter().zip(&table.layers).zip(choice);
    let hot = layers.map(|((layer, c), &j)| layer.hottest(c.count[j] as usize)).collect::<Result<_>>()?;
    let mut placement = Placement::new(problem, hot, objective, solver)?;
    // The table's sums, so that value and bound are rounded alike.
    let value = table.value(choice);
    let bound = if bound - value <= 1e-13 * value.abs() { value } else { bound };
    (placement.value, placement.bound) = match objective {
        Objective::Impact => (value, Some(bound)),
        Objective::Time => (-value, Some(-bound)),
    };
    remark(problem, &mut placement);
    Ok(placement)
}

fn remark(problem: &Problem, placement: &mut Placement) {
    if placement.objective == Objective::Impact {
        let layers = problem.layers().iter().filter(|l| l.neurons() > 0 && l.min_hot().is_none()).count();
        if layers > 0 {
            placement.remarks.push(Remark::NeverPays { layers });
        }
    }
    if placement.hot() > 0 || problem.neurons() == 0 {
        return;
    }
    let budget = problem.memory().device;
    let smallest = problem.layers().iter().filter(|l| l.neurons() > 0).filter_map(|l| {
        let least = match placement.objective {
            Objective::Impact => l.min_hot()?,
            Objective::Time => 1,
        };
        let whole = least.max(1).div_ceil(problem.batch()) * problem.batch();
        Some(whole.min(l.neurons()) as u64 * l.spec().device.bytes)
    });
    match smallest.min() {
        Some(smallest) if smallest > budget => placement.remarks.push(Remark::TooSmall { budget, smallest }),
        Some(_) if placement.objective == Objective::Time => placement.remarks.push(Remark::NothingIsFaster),
        _ => {}
    }
}
