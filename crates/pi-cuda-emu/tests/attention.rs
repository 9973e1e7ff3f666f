//! Attention's kernels beside f64: all types of keys and values, groups of heads, steps of several sequences, and positions around the
//! borders of chunks, cut into blocks in all ways, in every order of lanes.
#![allow(unsafe_code)]

use pi_core::KvType;
use pi_cuda_emu::{Arg, Failure, Launch, Order, is_there, launch};
use pi_testkit::Random;

/// As in `attend.cuh`.
const CHUNK: usize = 128;
const F32: [KvType; 2] = [KvType::F32; 2];

/// Keys and values that are there, and the queries of a step.
#[derive(Clone)]
struct Case {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context: usize,
    /// Sequence and position of each token.
    places: Vec<(usize, usize)>,
    /// `[tokens, heads, head_dim]`.
    q: Vec<f32>,
    types: [KvType; 2],
    /// Keys and values, `[sequences, kv_heads, context]`, a row each.
    kept: [Vec<u8>; 2],
}

/// How a step is cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Cut {
    rows: usize,
    together: usize,
    share: usize,
    parts: usize,
}

impl Case {
    fn new(seed: u64, [heads, kv_heads, head_dim]: [usize; 3], types: [KvType; 2], places: &[(usize, usize)]) -> Self {
        let mut rng = Random(seed);
        let most = |part: fn(&(usize, usize)) -> usize| places.iter().map(part).max().unwrap() + 1;
        // room for a few positions that nobody has seen yet
        let (sequences, context) = (most(|p| p.0), most(|p| p.1) + 5);
        let rows = sequences * kv_heads * context;
        let kept = types.map(|ty| {
            let mut bytes = vec![0; rows * ty.row_bytes(head_dim).unwrap()];
            let numbers: Vec<f32> = (0..rows * head_dim).map(|_| rng.normal()).collect();
            (ty.quant().info().encode)(&numbers, &mut bytes);
            bytes
        });
        let q = (0..places.len() * heads * head_dim).map(|_| rng.normal()).collect();
        Self { heads, kv_heads, head_dim, context, places: places.to_vec(), q, types, kept }
    }

    /// Writes numbers to the key (0) or value (1) at a position of all heads of a sequence. For F32.
    fn put(&mut self, which: usize, seq: usize, pos: usize, at: usize, v: f32) {
        for head in 0..self.kv_heads {
            let row = (seq * self.kv_heads + head) * self.context + pos;
            self.kept[which][4 * (row * self.head_dim + at)..][..4].copy_from_slice(&v.to_ne_bytes());
        }
    }

    /// The step of some of the tokens.
    fn only(&self, tokens: std::ops::Range<usize>) -> Self {
        let width = self.heads * self.head_dim;
        let q = self.q[tokens.start * width..tokens.end * width].to_vec();
        Self { places: self.places[tokens].to_vec(), q, ..self.clone() }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// What has to come out.
    fn want(&self) -> Vec<f64> {
        let n = self.head_dim;
        let [keys, values] = [0, 1].map(|i| {
            let mut numbers = vec![0.0; self.kept[i].len() / self.types[i].row_bytes(n).unwrap() * n];
            (self.types[i].quant().info().decode)(&self.kept[i], &mut numbers);
            numbers
        });
        let mut out = Vec::new();
        for (i, q) in self.q.chunks(n).enumerate() {
            let (seq, pos) = self.places[i / self.heads];
            let head = i % self.heads / (self.heads / self.kv_heads);
            let first = (seq * self.kv_heads + head) * self.context;
            let row = |of: &[f32], p: usize| of[(first + p) * n..][..n].to_vec();
            let scores: Vec<f64> = (0..=pos)
                .map(|p| {
                    let products = row(&keys, p).into_iter().zip(q).map(|(k, q)| f64::from(k) * f64::from(*q));
                    products.sum::<f64>() * f64::from(self.scale())
                })
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut sum = vec![0.0; n];
            for (p, w) in weights.iter().enumerate() {
                sum.iter_mut().zip(row(&values, p)).for_each(|(s, v)| *s += w / total * f64::from(v));
            }
            out.extend(sum);
        }
        out
    }

    /// What the kernels make of it, which is the same in every order of lanes; `None` where there is no emulator.
    fn run(&self, cut: Cut) -> Option<Vec<f32>> {
        if !is_there() {
            assert!(std::env::var_os("CI").is_none(), "the emulator has to be there in CI");
            eprintln!("SKIPPED: {}", Failure::Absent);
            return None;
        }
        let mut all = Order::ALL.map(|order| self.run_in(cut, order)).into_iter();
        let first = all.next()?;
        for other in all {
            let differs = first.iter().zip(&other).position(|(a, b)| a.to_bits() != b.to_bits());
            assert_eq!(differs.map(|i| (i, first[i], other[i])), None, "{cut:?}, {:?}", self.places);
        }
        Some(first)
    }

    fn run_in(&self, cut: Cut, order: Order) -> Vec<f32> {
        let (tokens, chunks, int) = (self.places.len(), self.context.div_ceil(CHUNK), |n| Arg::Int(n as i32));
        let places: Vec<u8> =
            self.places.iter().flat_map(|p| [p.0, p.1]).flat_map(|n| (n as u32).to_ne_bytes()).collect();
        let places = Arg::Read(Some(&places));
        // what nobody writes shows
        let mut out = vec![f32::NAN; tokens * self.heads * self.head_dim];
        let mut sums = vec![f32::NAN; out.len() * chunks];
        let mut marks = vec![f32::NAN; tokens * self.heads * chunks * 2];
        let outs: &mut [&mut [f32]] = &mut [&mut out, &mut sums, &mut marks];
        let parted = |i| if cut.parts > 1 { Arg::Out(i) } else { Arg::Numbers(None) };
        let sets = (self.heads / self.kv_heads).div_ceil(cut.together) * self.kv_heads;
        let [keys, values] = [0, 1].map(|i| Arg::Read(Some(&self.kept[i])));
        let [heads, head_dim, context] = [self.heads, self.head_dim, self.context].map(int);
        let args = [
            Arg::Numbers(Some(&self.q)),
            places,
            keys,
            values,
            int(tokens),
            heads,
            int(self.kv_heads),
            head_dim,
            context,
            Arg::Float(self.scale()),
            int(cut.together),
            int(cut.share),
            parted(1),
            parted(2),
            Arg::Out(0),
        ];
        let size = Launch {
            grid: [sets, tokens.div_ceil(cut.share), cut.parts].map(|n| n as u32),
            block: [128, 1, 1],
            shared: (4 * cut.rows * (2 * self.head_dim.next_multiple_of(4) + CHUNK)) as u32,
            order,
        };
        let kernel = format!("pi_attend_{}_{}_{}", cut.rows, self.types[0].quant(), self.types[1].quant());
        // SAFETY: arrays are as large as the other arguments say.
        unsafe { launch(&kernel, size, &args, outs) }.unwrap();
        if cut.parts > 1 {
            let args = [Arg::Out(1), Arg::Out(2), places, heads, head_dim, context, Arg::Out(0)];
            let grid = [self.heads as u32, tokens as u32, 1];
            // SAFETY: as above.
            unsafe { launch("pi_attend_join", Launch { grid, shared: 0, ..size }, &args, outs) }.unwrap();
        }
        out
    }

    /// [`run`](Self::run), compared with f64.
    fn check(&self, cut: Cut) -> Option<Vec<f32>> {
        let (got, want) = (self.run(cut)?, self.want());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let off = (f64::from(*got) - want).abs();
            let what = format!("{:?}, {cut:?}, {:?}, number {i}", self.places, self.types);
            assert!(off <= 3e-6 * (1.0 + want.abs()), "{what}: {got} instead of {want}");
        }
        Some(got)
    }
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn keys_and_values_of_every_type_meet_groups_of_heads() {
    let mut seed = 1;
    for keys in KvType::ALL {
        for values in KvType::ALL {
            let whole = [keys, values].contains(&KvType::Q8_0);
            for (heads, kv_heads, head_dim, cut) in [
                (2, 2, 64, Cut { rows: 1, together: 1, share: 1, parts: 2 }),
                (4, 1, 128, Cut { rows: 4, together: 4, share: 1, parts: 3 }),
                (7, 1, if whole { 32 } else { 80 }, Cut { rows: 8, together: 7, share: 1, parts: 1 }),
                (9, 1, 32, Cut { rows: 4, together: 4, share: 1, parts: 2 }),
                (2, 1, 256, Cut { rows: 4, together: 2, share: 2, parts: 1 }),
                (1, 1, if whole { 32 } else { 21 }, Cut { rows: 8, together: 1, share: 7, parts: 1 }),
            ] {
                seed += 1;
                let places = [(0, 140), (0, 141), (0, 142)];
                Case::new(seed, [heads, kv_heads, head_dim], [keys, values], &places).check(cut);
            }
        }
    }
}

/// Several sequences, at positions at and around the borders of chunks.
#[test]
fn tokens_of_any_sequences_and_positions_are_computed() {
    let places =
        [(2, 0), (0, 126), (0, 127), (0, 128), (0, 129), (1, 254), (1, 255), (1, 256), (2, 1), (0, 130), (3, 383)];
    for (heads, kv_heads) in [(2, 2), (4, 1), (7, 1)] {
        let case = Case::new(5, [heads, kv_heads, 24], F32, &places);
        let group = heads / kv_heads;
        for cut in [
            Cut { rows: 1, together: 1, share: 1, parts: 4 },
            Cut { rows: 8, together: group, share: 8 / group, parts: 1 },
            Cut { rows: 8, together: group, share: 1, parts: 3 },
        ] {
            case.check(cut);
        }
    }
}

/// Neither what a block has beside a token, nor which block has which chunk, nor what else is in a step.
#[test]
fn no_cut_changes_a_bit() {
    let places: Vec<_> = (0..9).map(|i| (0, 250 + i)).chain([(1, 3), (0, 259), (1, 4)]).collect();
    for (heads, kv_heads) in [(2, 2), (4, 1), (7, 1)] {
        let group = heads / kv_heads;
        let case = Case::new(6, [heads, kv_heads, 32], [KvType::F16, KvType::Q8_0], &places);
        let Some(want) = case.check(Cut { rows: 1, together: 1, share: 1, parts: 1 }) else { return };
        for (rows, together, share) in
            [(1, 1, 1), (4, 1, 4), (4, 2, 2), (8, 1, 5), (8, 2, 4), (8, 4, 2), (8, 8, 1), (8, 7, 1), (4, 4, 1)]
        {
            for parts in [1, 2, 3, 5] {
                let cut = Cut { rows, together: group.min(together), share, parts };
                // a token's chunks are written apart only if it is alone
                if parts == 1 || share == 1 {
                    assert_eq!(bits(&case.run(cut).unwrap()), bits(&want), "{heads} heads, {cut:?}");
                }
            }
        }
        let width = want.len() / places.len();
        for t in [0, 5, 6, 9, 11] {
            for parts in [1, 3] {
                let alone = case.only(t..t + 1).run(Cut { rows: 8, together: group, share: 1, parts }).unwrap();
                assert_eq!(bits(&alone), bits(&want[t * width..][..width]), "token {t} alone, {parts} parts");
            }
        }
    }
}

/// A chunk whose scores are all −∞ adds nothing, wherever it is.
#[test]
fn chunks_without_a_weight_add_nothing() {
    for nothing in [0..CHUNK, CHUNK..2 * CHUNK, 2 * CHUNK..301, 0..2 * CHUNK, 3..301] {
        let mut case = Case::new(7, [4, 1, 16], F32, &[(0, 299), (0, 300)]);
        case.q.iter_mut().step_by(16).for_each(|q| *q = 1.0 + q.abs());
        for pos in nothing.clone() {
            case.put(0, 0, pos, 0, f32::NEG_INFINITY);
        }
        let cuts = [(1, 1, 1, 1), (1, 1, 1, 3), (8, 4, 2, 1), (4, 4, 1, 2)];
        for (rows, together, share, parts) in cuts {
            case.check(Cut { rows, together, share, parts });
        }
    }
    // nothing at all is no number
    let mut case = Case::new(8, [1, 1, 8], F32, &[(0, 200)]);
    case.q[0] = 1.0;
    (0..201).for_each(|pos| case.put(0, 0, pos, 0, f32::NEG_INFINITY));
    for parts in [1, 2] {
        let got = case.run(Cut { rows: 1, together: 1, share: 1, parts });
        assert!(got.is_none_or(|got| got.iter().all(|v| v.is_nan())));
    }
}

/// What is no number is seen by the tokens that see its position, and by no others: not by those before, whatever they share.
#[test]
fn what_is_no_number_stays_visible() {
    let places: Vec<_> = (253..260).map(|pos| (0, pos)).collect();
    let good = Case::new(9, [4, 2, 16], F32, &places);
    for (which, pos) in [(0, 3), (0, 130), (0, 256), (1, 127), (1, 255), (1, 258), (1, 260), (0, 260)] {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = good.clone();
            // an infinite score is the largest, and divided by itself
            case.put(which, 0, pos, 5, bad);
            for (rows, together, share, parts) in [(1, 1, 1, 1), (8, 2, 4, 1), (8, 1, 8, 1), (4, 2, 1, 3), (4, 2, 1, 2)]
            {
                let cut = Cut { rows, together, share, parts };
                let (Some(got), Some(before)) = (case.run(cut), good.run(cut)) else { return };
                for (i, (got, before)) in got.chunks(16).zip(before.chunks(16)).enumerate() {
                    let (token, negative) = (places[i / 4].1, case.q[16 * i + 5] < 0.0);
                    let what = format!("{bad} at {pos} of {which}, token at {token}, {cut:?}");
                    if token < pos {
                        assert_eq!(bits(got), bits(before), "{what}");
                    } else if which == 1 {
                        assert!(!got[5].is_finite(), "{what}: {got:?}");
                        assert_eq!(
                            (bits(&got[..5]), bits(&got[6..])),
                            (bits(&before[..5]), bits(&before[6..])),
                            "{what}"
                        );
                    } else if bad.is_nan() || !negative {
                        assert!(got.iter().all(|v| v.is_nan()), "{what}: {got:?}");
                    } else {
                        assert!(got.iter().all(|v| v.is_finite()), "{what}: {got:?}");
                    }
                }
            }
        }
    }
    // a chunk of nothing else
    let mut case = good.clone();
    (128..256).for_each(|pos| case.put(0, 0, pos, 2, f32::NAN));
    for parts in [1, 3] {
        let got = case.run(Cut { rows: 4, together: 2, share: 1, parts });
        assert!(got.is_none_or(|got| got.iter().all(|v| v.is_nan())), "{parts}");
    }
}
