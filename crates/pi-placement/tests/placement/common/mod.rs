//! Random small problems, and the obvious ways to solve them.
#![allow(dead_code)]

use fastrand::Rng;
use pi_placement::{LayerSpec, Memory, PerNeuron, Problem, SyncTime};

/// A problem of up to four layers of up to `most` neurons each; many have ties, limits that bind, or no solution.
pub fn random_problem(random: &mut Rng, most: usize) -> Problem {
    let coarse = random.bool();
    let layers: Vec<LayerSpec> = (0..random.usize(1..=4))
        .map(|_| {
            let neurons = random.usize(0..=most);
            let frequency = (0..neurons)
                .map(|_| if coarse { random.u8(0..=4) as f32 / 4.0 } else { random.f32().powi(random.i32(1..4)) })
                .collect();
            let device = PerNeuron { bytes: random.u64(0..=6), seconds: random.u8(0..=4) as f64 * 0.25 };
            let host = PerNeuron { bytes: random.u64(0..=6), seconds: random.u8(0..=12) as f64 * 0.25 };
            let seconds = random.u8(0..=6) as f64 * 0.5;
            let sync = match random.u8(0..8) {
                0 => SyncTime::host_layer(f64::INFINITY),
                1..=3 => SyncTime::device_layer(seconds),
                _ => SyncTime::host_layer(seconds),
            };
            LayerSpec { neurons, frequency, device, host, sync }
        })
        .collect();
    let total = |f: fn(&LayerSpec) -> u64| layers.iter().map(|l| f(l) * l.neurons as u64).sum::<u64>();
    let (device, host) = (total(|l| l.device.bytes), total(|l| l.host.bytes));
    let device = random.u64(0..=device + device / 8 + 1);
    let host = if random.u8(0..3) == 0 { random.u64(0..=host + 1) } else { u64::MAX };
    Problem::new(layers, Memory { device, host }, random.usize(1..=3)).expect("a valid problem")
}

/// Frequencies of a layer, the highest first.
pub fn sorted(spec: &LayerSpec) -> Vec<f64> {
    let mut f: Vec<f64> = spec.frequency.iter().map(|&f| f64::from(f)).collect();
    f.sort_by(|a, b| b.total_cmp(a));
    f
}

/// Eq. 4 by trying every number. 0 counts if synchronising is free.
pub fn min_hot(spec: &LayerSpec) -> Option<usize> {
    if spec.sync.split == 0.0 {
        return (spec.device.seconds <= spec.host.seconds).then_some(0);
    }
    let pays = |c: usize| c as f64 * spec.device.seconds + spec.sync.split <= c as f64 * spec.host.seconds;
    (1..=spec.neurons).find(|&c| pays(c))
}

/// The time of a layer, written out.
pub fn layer_time(spec: &LayerSpec, count: usize) -> f64 {
    let f = sorted(spec);
    let (hot, cold): (f64, f64) = (f[..count].iter().sum(), f[count..].iter().sum());
    match count {
        _ if spec.neurons == 0 => 0.0,
        0 => cold * spec.host.seconds + spec.sync.none,
        c if c == spec.neurons => hot * spec.device.seconds + spec.sync.all,
        _ => f64::max(hot * spec.device.seconds, cold * spec.host.seconds) + spec.sync.split,
    }
}

/// The best value over all combinations of allowed counts, where `worth` values a count of a layer (`None`: not allowed).
pub fn brute_force(problem: &Problem, worth: &dyn Fn(&LayerSpec, usize) -> Option<f64>) -> Option<f64> {
    fn go(p: &Problem, l: usize, used: (u64, u64), worth: &dyn Fn(&LayerSpec, usize) -> Option<f64>) -> Option<f64> {
        if used.0 > p.memory().device || used.1 > p.memory().host {
            return None;
        }
        let Some(layer) = p.layers().get(l) else { return Some(0.0) };
        let (spec, n) = (layer.spec(), layer.neurons());
        let counts = (0..=n).filter(|&k| k % p.batch() == 0 || k == n);
        let tries = counts.filter_map(|k| {
            let more = (k as u64 * spec.device.bytes, (n - k) as u64 * spec.host.bytes);
            Some(worth(spec, k)? + go(p, l + 1, (used.0 + more.0, used.1 + more.1), worth)?)
        });
        tries.max_by(f64::total_cmp)
    }
    go(problem, 0, (0, 0), worth)
}

pub fn best_impact(problem: &Problem) -> Option<f64> {
    brute_force(problem, &|spec, k| {
        let allowed = k == 0 || min_hot(spec).is_some_and(|c| k >= c);
        allowed.then(|| sorted(spec)[..k].iter().sum())
    })
}

pub fn best_time(problem: &Problem) -> Option<f64> {
    brute_force(problem, &|spec, k| Some(-layer_time(spec, k)).filter(|t| t.is_finite())).map(|t| -t)
}

/// The most impact over all *subsets* of neurons, whether or not they fire most often.
pub fn best_subset(problem: &Problem) -> Option<f64> {
    fn go(p: &Problem, l: usize, used: (u64, u64)) -> Option<f64> {
        if used.0 > p.memory().device || used.1 > p.memory().host {
            return None;
        }
        let Some(layer) = p.layers().get(l) else { return Some(0.0) };
        let (spec, n) = (layer.spec(), layer.neurons());
        let tries = (0u32..1 << n).filter_map(|subset| {
            let k = subset.count_ones() as usize;
            if k > 0 && min_hot(spec).is_none_or(|c| k < c) {
                return None;
            }
            let impact: f64 = (0..n).filter(|i| subset >> i & 1 == 1).map(|i| f64::from(spec.frequency[i])).sum();
            let more = (k as u64 * spec.device.bytes, (n - k) as u64 * spec.host.bytes);
            Some(impact + go(p, l + 1, (used.0 + more.0, used.1 + more.1))?)
        });
        tries.max_by(f64::total_cmp)
    }
    go(problem, 0, (0, 0))
}

pub fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * (1.0 + a.abs().max(b.abs()))
}
