//! The placement problem as the paper writes it: an integer linear program.

use crate::dual::Dual;
use crate::problem::set_of;
use crate::search::round;
use crate::table::Table;
use crate::{Error, Objective, Placement, Problem, Result, Solver};
use good_lp::solvers::{SolutionStatus, WithInitialSolution, WithMipGap, WithTimeLimit};
use good_lp::{Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, constraint, variable};
use std::time::{Duration, Instant};

/// Which program solves the ILP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// microlp, in Rust.
    #[default]
    Microlp,
    /// HiGHS, on one thread.
    #[cfg(feature = "highs")]
    Highs,
}

/// Equations 2, 3, 6, 7 and 8 of the paper, with `C_l` from equation 4, for a general solver.
///
/// Variables: for each batch of 64 neurons (the problem's batch) with similar impact `a = 1` if it is on the device (else it is on the
/// host: eq. 3), for each layer `y = 1` if it has neurons there.
///
/// ```text
/// maximise    Σ impact · a                                  (2)
/// subject to  Σ a · bytes <= limit, for device and host     (6)
///             Σ_layer a · size >= C_l · y_l                 (7)
///             a <= y_l for each batch                       (8): with a K the relaxation would be useless
///             the rest of a layer after its last whole batch only with all of the layer
/// ```
///
/// It starts from what a greedy solver found, so that a time limit leaves something to return.
///
/// [`Exact`](crate::Exact) gives the same answers in a fraction of the time; this is what it is tested against.
#[derive(Clone, Debug, PartialEq)]
pub struct Ilp {
    /// The program that solves it.
    pub backend: Backend,
    /// When to stop with the best placement so far. `None`: never.
    pub time_limit: Option<Duration>,
    /// A gap that is small enough, as a share of the objective. 0: proved to be the best.
    pub gap: f32,
}

impl Default for Ilp {
    /// microlp, for half a minute at most, to optimality.
    fn default() -> Self {
        Self { backend: Backend::default(), time_limit: Some(Duration::from_secs(30)), gap: 0.0 }
    }
}

/// A layer's part of the program.
struct LayerVariables {
    batches: Vec<Variable>,
    sizes: Vec<usize>,
    used: Variable,
}

impl Solver for Ilp {
    fn name(&self) -> &str {
        match self.backend {
            Backend::Microlp => "ilp (microlp)",
            #[cfg(feature = "highs")]
            Backend::Highs => "ilp (HiGHS)",
        }
    }

    fn solve(&self, problem: &Problem) -> Result<Placement> {
        let start = Instant::now();
        // Where limits are contradictory, the table says which and why.
        let table = Table::new(problem, Objective::Impact)?;
        let dual = Dual::new(&table);
        // The neurons per layer of a good choice.
        let mut greedy = round(&table, &dual)
            .map(|choice| table.layers.iter().zip(choice).map(|(l, j)| l.count[j] as usize).collect::<Vec<_>>());
        // Rounded down to what whole batches can use, which makes the relaxation tighter.
        let mut capacity = table.device;
        let mut bound = None;
        // A solver works with tolerances: if it exceeds the limit by some bytes, it is asked again with so much less.
        for _ in 0..4 {
            let (hot, objective, proved) = self.ask(problem, capacity, greedy.as_deref())?;
            let first = if proved { objective } else { dual.bound };
            let bound = *bound.get_or_insert(first);
            let used: u64 = hot.iter().zip(problem.layers()).map(|(h, l)| h.len() as u64 * l.spec().device.bytes).sum();
            if let Some(over) = used.checked_sub(problem.memory().device).filter(|&over| over > 0) {
                capacity = capacity.saturating_sub(over);
                greedy = None; // it may need what was taken away
                continue;
            }
            let sets = problem.layers().iter().zip(hot).map(|(l, h)| set_of(l.neurons(), h.into_iter()));
            let sets = sets.collect::<Result<_>>()?;
            let mut placement = Placement::new(problem, sets, Objective::Impact, self.name())?;
            placement.bound = Some(bound.max(placement.value));
            return Ok(placement.started(start));
        }
        let message = "its answers exceed the memory limit".to_owned();
        Err(Error::Backend { solver: self.name_of_backend(), message })
    }
}

impl Ilp {
    fn name_of_backend(&self) -> &'static str {
        match self.backend {
            Backend::Microlp => "microlp",
            #[cfg(feature = "highs")]
            Backend::Highs => "HiGHS",
        }
    }

    /// The neurons per layer, the objective, and whether it is the best.
    fn ask(&self, problem: &Problem, capacity: u64, start: Option<&[usize]>) -> Result<(Vec<Vec<usize>>, f64, bool)> {
        let mut variables = ProblemVariables::new();
        let mut objective = Expression::with_capacity(problem.neurons() / problem.batch());
        let mut layers = Vec::new();
        for layer in problem.layers() {
            // A layer that never pays has y = 0 (eq. 8).
            let chunks: Vec<_> = match layer.min_hot() {
                Some(_) => layer.ranking().chunks(problem.batch()).collect(),
                None => Vec::new(),
            };
            let batches: Vec<Variable> = chunks.iter().map(|_| variables.add(variable().binary())).collect();
            for (&a, mass) in batches.iter().zip(layer.mass().windows(2)) {
                objective.add_mul(mass[1] - mass[0], a);
            }
            let sizes = chunks.iter().map(|c| c.len()).collect();
            layers.push(LayerVariables { batches, sizes, used: variables.add(variable().binary()) });
        }
        let model = variables.maximise(objective.clone());
        match self.backend {
            Backend::Microlp => self.finish(
                problem,
                capacity,
                &layers,
                objective,
                start,
                model.using(good_lp::solvers::microlp::microlp),
            ),
            #[cfg(feature = "highs")]
            Backend::Highs => {
                let model = model.using(good_lp::solvers::highs::highs).set_threads(1);
                self.finish(problem, capacity, &layers, objective, start, model)
            }
        }
    }

    fn finish<M>(
        &self,
        problem: &Problem,
        capacity: u64,
        layers: &[LayerVariables],
        objective: Expression,
        start: Option<&[usize]>,
        mut model: M,
    ) -> Result<(Vec<Vec<usize>>, f64, bool)>
    where
        M: SolverModel<Error = ResolutionError> + WithInitialSolution + WithMipGap + WithTimeLimit,
    {
        let specs = || problem.layers().iter().map(|l| l.spec());
        // Bytes in units of the largest batch, so that coefficients are near 1.
        let unit = |bytes: &dyn Fn(usize) -> u64| {
            let most = (0..layers.len()).map(bytes).max().unwrap_or(0);
            (most.max(1) as f64) * problem.batch() as f64
        };
        let device: Vec<u64> = specs().map(|s| s.device.bytes).collect();
        let host: Vec<u64> = specs().map(|s| s.host.bytes).collect();
        let device_total: u64 = specs().map(|s| s.device.bytes * s.neurons as u64).sum();
        let host_total: u64 = specs().map(|s| s.host.bytes * s.neurons as u64).sum();
        if capacity < device_total {
            let unit = unit(&|l| device[l]);
            model.add_constraint(constraint!(weighted(layers, &device, unit) <= capacity as f64 / unit));
        }
        if let Some(excess) = host_total.checked_sub(problem.memory().host) {
            let unit = unit(&|l| host[l]);
            model.add_constraint(constraint!(weighted(layers, &host, unit) >= excess as f64 / unit));
        }
        for (layer, v) in problem.layers().iter().zip(layers) {
            if let Some(least) = layer.min_hot().filter(|&c| c > 0) {
                let count: Expression = v.batches.iter().zip(&v.sizes).map(|(&a, &s)| s as f64 * a).sum();
                model.add_constraint(constraint!(count >= least as f64 * v.used));
                for &a in &v.batches {
                    model.add_constraint(constraint!(a <= v.used));
                }
            }
            if let (Some((&rest, whole)), false) = (v.batches.split_last(), layer.neurons() % problem.batch() == 0) {
                let all: Expression = whole.iter().sum();
                model.add_constraint(constraint!(all >= whole.len() as f64 * rest));
            }
        }
        if let Some(counts) = start {
            let values = layers.iter().zip(counts).flat_map(|(v, count)| {
                let mut left = *count;
                let batches = v.batches.iter().zip(&v.sizes).map(move |(&a, &size)| {
                    let hot = left >= size;
                    left -= if hot { size } else { left };
                    (a, f64::from(u8::from(hot)))
                });
                batches.chain([(v.used, f64::from(u8::from(*count > 0)))])
            });
            model = model.with_initial_solution(values.collect::<Vec<_>>());
        }
        model = model.with_mip_gap(self.gap).map_err(|e| self.failed(e))?;
        if let Some(limit) = self.time_limit {
            model = model.with_time_limit(limit.as_secs_f64());
        }
        let solution = model.solve().map_err(|e| match e {
            ResolutionError::Infeasible => Error::Infeasible { why: "no choice keeps the limits of both sides".into() },
            other => self.failed(other),
        })?;
        let chosen = |v: &LayerVariables, layer: &crate::Layer| {
            let chunks = layer.ranking().chunks(problem.batch()).zip(&v.batches);
            let hot = chunks.filter(|(_, a)| solution.value(**a) > 0.5);
            hot.flat_map(|(chunk, _)| chunk.iter().map(|&i| i as usize)).collect()
        };
        let hot = layers.iter().zip(problem.layers()).map(|(v, layer)| chosen(v, layer)).collect();
        let proved = matches!(solution.status(), SolutionStatus::Optimal);
        Ok((hot, solution.eval(objective), proved))
    }

    fn failed(&self, error: impl ToString) -> Error {
        Error::Backend { solver: self.name_of_backend(), message: error.to_string() }
    }
}

/// Bytes of the neurons on the device, as counted by `bytes` per neuron of each layer, in units of `unit`.
fn weighted(layers: &[LayerVariables], bytes: &[u64], unit: f64) -> Expression {
    let terms = layers
        .iter()
        .zip(bytes)
        .flat_map(|(v, &b)| v.batches.iter().zip(&v.sizes).map(move |(&a, &s)| (s as u64 * b) as f64 / unit * a));
    terms.sum()
}
