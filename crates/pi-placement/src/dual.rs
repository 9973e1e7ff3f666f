//! The bound: memory with a price instead of a limit (Lagrangian relaxation).
//!
//! For any prices `λ, μ >= 0` of a byte on the device and on the host, `λ · device + μ · host + Σ_l max_j (value − λ w − μ h)` is at
//! least what any choice within the limits is worth. Layers are independent in it, and the best choice of each lies on its concave
//! hull, so one evaluation is a binary search per layer. The prices that make the bound least are found by bisection; the bound is
//! valid for whatever prices come out. It differs from the optimum by no more than about one layer's step off its hull.

use crate::table::Table;

const BISECTIONS: usize = 100;
const OUTER: usize = 60;

/// Prices, and what follows from them.
#[derive(Clone, Debug)]
pub(crate) struct Dual {
    /// Price of a byte on the device.
    pub lambda: f64,
    /// Price of a byte on the host.
    pub mu: f64,
    /// No choice within the limits is worth more.
    pub bound: f64,
    /// The best choices at these prices; they keep the device's limit.
    pub choice: Vec<usize>,
}

impl Dual {
    /// The least bound for `table`.
    pub fn new(table: &Table) -> Self {
        let (mut low, excess) = at(table, 0.0);
        if excess <= 0.0 {
            return low;
        }
        // The host has too much: raise its price until it has not, then halve the interval.
        let scale =
            table.layers.iter().filter(|l| l.host > 0).filter_map(|l| Some(l.slopes()?.0.abs() / l.host as f64));
        let mut mu = scale.fold(0.0, f64::max).max(1e-30) * 1e-3;
        let (mut below, mut best) = (0.0, low.clone());
        let mut above = None;
        for _ in 0..OUTER {
            let (dual, excess) = at(table, mu);
            if dual.bound < best.bound {
                best = dual.clone();
            }
            if excess > 0.0 {
                (below, low) = (mu, dual);
            } else {
                above = Some(mu);
            }
            mu = above.map_or(mu * 4.0, |above| (below + above) / 2.0);
        }
        // Of neighbouring prices that with the more neurons on the device keeps the host's limit, where one does.
        if let Some(above) = above {
            let (dual, _) = at(table, above);
            if table.fits(&dual.choice) || !table.fits(&low.choice) {
                best.choice = dual.choice;
            }
        }
        best
    }

    /// How far choice `j` of layer `l` is below the layer's best at these prices.
    pub fn deficits(&self, table: &Table, l: usize) -> Vec<f64> {
        let layer = &table.layers[l];
        let price = price(table, l, self.lambda, self.mu);
        let worth: Vec<f64> = layer.value.iter().zip(&layer.count).map(|(v, &k)| v - price * k as f64).collect();
        let best = worth.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        worth.iter().map(|w| best - w).collect()
    }
}

/// What a neuron on the device costs: its bytes there less those it frees on the host.
fn price(table: &Table, l: usize, lambda: f64, mu: f64) -> f64 {
    let layer = &table.layers[l];
    lambda * layer.device as f64 - mu * layer.host as f64
}

fn choose(table: &Table, lambda: f64, mu: f64, most: bool) -> Vec<usize> {
    (0..table.layers.len()).map(|l| table.layers[l].best(price(table, l, lambda, mu), most)).collect()
}

fn bound(table: &Table, lambda: f64, mu: f64, choice: &[usize]) -> f64 {
    let mut sum = lambda * table.device as f64;
    if table.host_binds {
        sum += mu * table.host as f64;
    }
    for (l, (layer, &j)) in table.layers.iter().zip(choice).enumerate() {
        let constant = mu * (layer.neurons * layer.host) as f64;
        sum += layer.value[j] - price(table, l, lambda, mu) * layer.count[j] as f64 - constant;
    }
    sum
}

/// The least bound at a price `mu`, and by how many bytes the relaxed optimum exceeds the host's limit.
fn at(table: &Table, mu: f64) -> (Dual, f64) {
    let device = |choice: &[usize]| table.bytes(choice).0;
    let free = choose(table, 0.0, mu, true);
    if device(&free) <= table.device {
        let excess = table.bytes(&free).1 as f64 - table.host as f64;
        // Of equally good choices the smallest, unless the host needs the room.
        let small = choose(table, 0.0, mu, false);
        let choice = if table.fits(&small) || excess > 0.0 { small } else { free };
        return (Dual { lambda: 0.0, mu, bound: bound(table, 0.0, mu, &choice), choice }, excess);
    }
    // At the highest price every layer takes its smallest choice, which fits (`Table::new`).
    let highest = table.layers.iter().filter(|l| l.device > 0).filter_map(|l| {
        let (slope, _) = l.slopes()?;
        Some((slope + mu * l.host as f64) / l.device as f64)
    });
    let (mut low, mut high) = (0.0, highest.fold(0.0, f64::max) * (1.0 + 1e-9));
    while device(&choose(table, high, mu, false)) > table.device && high.is_finite() {
        high = (high * 2.0).max(f64::MIN_POSITIVE);
    }
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        if middle <= low || middle >= high {
            break;
        }
        let fits = device(&choose(table, middle, mu, false)) <= table.device;
        *(if fits { &mut high } else { &mut low }) = middle;
    }
    let (choice, over) = (choose(table, high, mu, false), choose(table, low, mu, true));
    let (bound_high, bound_low) = (bound(table, high, mu, &choice), bound(table, low, mu, &over));
    let (lambda, bound) = if bound_low < bound_high { (low, bound_low) } else { (high, bound_high) };
    // The relaxed optimum mixes both so that the device is full.
    let ((d0, h0), (d1, h1)) = (table.bytes(&choice), table.bytes(&over));
    let part = if d1 > d0 { (table.device - d0) as f64 / (d1 - d0) as f64 } else { 0.0 };
    let host = h0 as f64 + part.min(1.0) * (h1 as f64 - h0 as f64);
    (Dual { lambda, mu, bound, choice }, host - table.host as f64)
}
