//! Where the dense path of an FFN overtakes the sparse one.

use crate::{machine, repack::Repack};
use pi_engine::{
    pi_core::{Error, QuantType},
    pi_sparse_cpu::{CpuDevice, Crossover, Kernels, Pool},
};
use pi_testkit::cases::{Case, Ffn, Prepared, Select};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// What was found for a type.
pub struct Found {
    pub ty: QuantType,
    /// The share from which the dense path is faster; 1 if it never is.
    pub share: f32,
    /// Per share that was tried: the sparse path's time, as a part of the dense path's.
    pub ratios: Vec<(f64, f64)>,
}

/// Tries several shares of marked neurons with both paths, in turns.
///
/// # Errors
/// If a result is wrong, or there is no memory.
pub fn find(ty: QuantType, kernels: &Kernels, pool: &Arc<Pool>, quick: bool) -> Result<Found, String> {
    let device = |crossover| {
        CpuDevice::new(kernels.clone(), pool.clone())
            .with_crossover(Crossover::uniform(crossover))
            .with_repacking(Repack::default().limit())
    };
    let (sparse, dense) = (device(1.0), device(0.0));
    let (shares, time): (&[f64], _) = match quick {
        true => (&[0.5, 0.95], Duration::from_millis(15)),
        false => (&[0.4, 0.6, 0.8, 0.95], Duration::from_millis(120)),
    };
    // In a hurry, weights may come from the last cache.
    let (dim, neurons) = if quick { (1024, 2048) } else { (2048, 4096) };
    let cold = if quick { machine::last_cache() / 2 } else { machine::cold() };
    let mut ratios = Vec::new();
    for (i, &active) in shares.iter().enumerate() {
        let case = Case::Ffn(Ffn { ty, dim, neurons, tokens: 1, active, select: Select::Marks });
        let prepare = |device| case.prepare(device, cold).map_err(|e| format!("{case}: {e}"));
        if i == 0 {
            case.check(&dense, &CpuDevice::new(Kernels::reference(), pool.clone()))?;
        }
        let (mut a, mut b) = (prepare(&sparse)?, prepare(&dense)?);
        ratios.push((active, ratio(&mut a, &mut b, time).map_err(|e| format!("{case}: {e}"))?));
    }
    Ok(Found { ty, share: crossing(&ratios), ratios })
}

/// Time of `a` as a part of `b`'s, the two in turns for `time` each, so that whatever else the machine does hits both.
fn ratio(a: &mut Prepared, b: &mut Prepared, time: Duration) -> Result<f64, Error> {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    let start = Instant::now();
    while of_a.len() < 6 || start.elapsed() < 2 * time {
        for (prepared, times) in [(&mut *a, &mut of_a), (&mut *b, &mut of_b)] {
            let call = Instant::now();
            prepared.step()?;
            times.push(call.elapsed().as_secs_f64());
        }
    }
    // The first calls touch the weights for the first time.
    Ok(undisturbed(&mut of_a[1..]) / undisturbed(&mut of_b[1..]))
}

/// The lower quartile: what else the machine does makes times longer, never shorter.
fn undisturbed(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

/// The share at which the ratio reaches 1: times grow in proportion to the share, so a line is laid through the points. Never
/// less than the least share that was tried: below it nothing is known.
fn crossing(ratios: &[(f64, f64)]) -> f32 {
    let n = ratios.len() as f64;
    let (x, y) = ratios.iter().fold((0.0, 0.0), |(x, y), r| (x + r.0 / n, y + r.1 / n));
    let (xx, xy) = ratios.iter().fold((0.0, 0.0), |(xx, xy), r| (xx + (r.0 - x).powi(2), xy + (r.0 - x) * (r.1 - y)));
    let least = ratios.iter().fold(1.0, |least: f64, r| least.min(r.0));
    let slope = xy / xx;
    match slope > 0.0 {
        true => (x + (1.0 - y) / slope).clamp(least, 1.0) as f32,
        // No crossing is seen: one of the paths is faster throughout.
        false if y > 1.0 => least as f32,
        false => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crossing_is_where_a_line_through_the_points_reaches_1() {
        let share = crossing(&[(0.4, 0.5), (0.6, 0.75), (0.8, 1.0), (0.9, 1.125)]);
        assert!((share - 0.8).abs() < 1e-6, "{share}");
        assert_eq!(crossing(&[(0.4, 0.4), (0.9, 0.9)]), 1.0);
        assert_eq!(crossing(&[(0.4, 0.1), (0.9, 0.2)]), 1.0);
        assert_eq!(crossing(&[(0.4, 1.5), (0.9, 1.4)]), 0.4, "the dense path was faster throughout");
        assert_eq!(crossing(&[(0.4, 0.6), (0.9, 0.5)]), 1.0, "the sparse path was");
        assert_eq!(crossing(&[(0.4, 4.0), (0.9, 9.0)]), 0.4, "not below what was tried");
        assert_eq!(crossing(&[(0.4, 1.5), (0.9, 1.6)]), 0.4);
    }
}
