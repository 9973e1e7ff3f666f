//! The first half: from inputs to one number per neuron and token.

use crate::{Activate, TypeKernels, split::Columns, weights::Weights};
use pi_core::{EncodedRows, Error, FfnWeights, Gating, Hidden, MatrixView, NeuronSet, Result};

/// Tokens that share a pass over a run of neurons.
const TOKEN_BLOCK: usize = 32;

/// A matrix of an FFN's first half, its kernel, and its encoded input.
pub(super) struct Half<'a> {
    k: &'a TypeKernels,
    w: MatrixView<'a>,
    bias: Option<&'a [f32]>,
    x: EncodedRows<'a>,
}

impl<'a> Half<'a> {
    pub(super) fn new(weights: &'a Weights, bias: Option<&'a [f32]>, x: &'a Hidden) -> Result<Self> {
        let Weights { m, k } = weights;
        let x = x.encoded(k.activations.form).ok_or_else(|| Error::shape("ffn input", "encoded rows", "none"))?;
        Ok(Self { k, w: m.view(), bias, x })
    }

    fn bias(&self, id: usize) -> f32 {
        self.bias.map_or(0.0, |b| b[id])
    }

    fn one(&self, id: usize, t: usize) -> f32 {
        (self.k.dot)(self.w.row(id), self.x.row(t)) + self.bias(id)
    }

    /// Rows anywhere, four at a time.
    fn gathered(&self, list: &List, t: usize, out: &mut [f32; CHUNK]) {
        let x = self.x.row(t);
        let ids = &list.ids[..list.len];
        let (fours, rest) = ids.as_chunks::<4>();
        for (i, (four, out)) in fours.iter().zip(out.as_chunks_mut().0).enumerate() {
            let next = fours.get(i + 1).map_or([&[][..]; 4], |four| four.map(|id| self.w.row(id as usize)));
            *out = (self.k.dot4)(four.map(|id| self.w.row(id as usize)), next, x);
            (0..4).for_each(|j| out[j] += self.bias(four[j] as usize));
        }
        for (id, out) in rest.iter().zip(&mut out[fours.len() * 4..]) {
            *out = self.one(*id as usize, t);
        }
    }

    /// `n` owned neurons from place `i` on beside the tokens from `t` on: `out` has a row of `n` per token.
    fn tile(&self, set: &NeuronSet, i: usize, n: usize, t: usize, out: &mut [f32]) {
        let mut rows: [&[u8]; CHUNK] = [&[]; CHUNK];
        rows.iter_mut().zip(i..i + n).for_each(|(row, i)| *row = self.w.row(set.id(i)));
        self.k.tile(&rows[..n], self.x.from(t), self.x.row_bytes(), out);
        if self.bias.is_some() {
            for out in out.chunks_exact_mut(n) {
                out.iter_mut().zip(i..).for_each(|(out, i)| *out += self.bias(set.id(i)));
            }
        }
    }
}

/// What the first section needs beside its part of `h`.
pub(super) struct Task<'a> {
    pub w: &'a FfnWeights,
    pub activate: Activate,
    /// Every neuron is computed; those that are not marked or do not fire become 0 afterwards.
    pub dense: bool,
    pub neurons: &'a NeuronSet,
    pub bits: Option<&'a [u64]>,
    pub words: usize,
    pub gate: Option<&'a Half<'a>>,
    pub up: &'a Half<'a>,
}

#[derive(Default)]
pub(super) struct Counts {
    pub active: u64,
    pub dense: u64,
    pub first: u64,
    pub second: u64,
}

/// Neurons that are gone through at a time. Their marks are one word.
const CHUNK: usize = 64;

/// Some of a task's neurons: their places, and their ids.
struct List {
    len: usize,
    places: [u32; CHUNK],
    ids: [u32; CHUNK],
}

impl List {
    const EMPTY: Self = Self { len: 0, places: [0; CHUNK], ids: [0; CHUNK] };

    fn push(&mut self, place: usize, id: usize) {
        (self.places[self.len], self.ids[self.len]) = (place as u32, id as u32);
        self.len += 1;
    }

    fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        self.places[..self.len].iter().zip(&self.ids).map(|(place, id)| (*place as usize, *id as usize))
    }

    /// The places from `at` on as bits.
    fn bits(&self, at: usize) -> u64 {
        self.places[..self.len].iter().fold(0, |bits, place| bits | 1 << (*place as usize - at))
    }
}

impl Task<'_> {
    fn may_fire(&self, t: usize, id: usize) -> bool {
        self.bits.is_none_or(|b| b[t * self.words + id / 64] >> (id % 64) & 1 == 1)
    }

    /// Hidden values of a run of owned neurons, for all tokens.
    pub(super) fn run(&self, part: &mut Columns<'_>, tokens: usize) -> Counts {
        let range = part.range();
        let mut count = Counts::default();
        if tokens == 1 && !self.dense {
            self.one_token(range.start, part.row(0), &mut count);
            return count;
        }
        for from in range.clone().step_by(CHUNK) {
            let n = (range.end - from).min(CHUNK);
            let at = from - range.start;
            let mut touched = (0, 0);
            if self.dense || self.bits.is_none() {
                self.tiles(from, n, part, tokens, &mut touched, &mut count);
            } else {
                for t in 0..tokens {
                    let h = part.row(t);
                    let (mut marked, mut fires) = (List::EMPTY, List::EMPTY);
                    h[at..at + n].fill(0.0);
                    for i in 0..n {
                        let id = self.neurons.id(from + i);
                        if self.may_fire(t, id) {
                            marked.push(at + i, id);
                        }
                    }
                    self.gates(&marked, t, h, |i, id, _| fires.push(i, id));
                    touched.0 |= marked.bits(at);
                    touched.1 |= self.finish(&fires, t, h, &mut count).bits(at);
                }
            }
            count.first += u64::from(u64::count_ones(touched.0));
            count.second += u64::from(u64::count_ones(touched.1));
        }
        count
    }

    /// The same for one token: neurons are collected until there are enough of them to ask for the next rows while the ones
    /// before are computed.
    fn one_token(&self, start: usize, h: &mut [f32], count: &mut Counts) {
        let (mut marked, mut fires) = (List::EMPTY, List::EMPTY);
        h.fill(0.0);
        for i in 0..h.len() {
            let id = self.neurons.id(start + i);
            if self.may_fire(0, id) {
                marked.push(i, id);
                if marked.len == CHUNK {
                    self.pass(&mut marked, &mut fires, h, count);
                }
            }
        }
        self.pass(&mut marked, &mut fires, h, count);
        count.second += self.finish(&fires, 0, h, count).len as u64;
    }

    /// Empties a list of marked neurons: those that fire go to the other one, and that is worked off when it is full.
    fn pass(&self, marked: &mut List, fires: &mut List, h: &mut [f32], count: &mut Counts) {
        count.first += marked.len as u64;
        self.gates(marked, 0, h, |i, id, h| {
            fires.push(i, id);
            if fires.len == CHUNK {
                count.second += self.finish(fires, 0, h, count).len as u64;
                fires.len = 0;
            }
        });
        marked.len = 0;
    }

    /// The gates of marked neurons: `h` gets them where they fire.
    fn gates(&self, marked: &List, t: usize, h: &mut [f32], mut fires: impl FnMut(usize, usize, &mut [f32])) {
        let first = self.gate.unwrap_or(self.up);
        let mut gates = [0.0; CHUNK];
        first.gathered(marked, t, &mut gates);
        for ((i, id), gate) in marked.iter().zip(gates) {
            if !self.w.skip || self.w.act.fires(gate) {
                h[i] = gate;
                fires(i, id, h);
            }
        }
    }

    /// Neurons that fire: `h` holds what the gate is, and gets what the neuron contributes with. Returns those whose second
    /// row was read.
    fn finish<'l>(&self, fires: &'l List, t: usize, h: &mut [f32], count: &mut Counts) -> &'l List {
        count.active += fires.len as u64;
        let mut ups = [0.0; CHUNK];
        let second = self.w.gating != Gating::UpOnly;
        if second {
            self.up.gathered(fires, t, &mut ups);
        }
        self.contribute(fires, h, &mut ups);
        if second { fires } else { &List::EMPTY }
    }

    /// What some neurons contribute with: `h` holds their gates, `ups` the rest in the order of the list.
    fn contribute(&self, list: &List, h: &mut [f32], ups: &mut [f32; CHUNK]) {
        let mut gates = [0.0; CHUNK];
        for ((i, _), gate) in list.iter().zip(&mut gates) {
            *gate = h[i];
        }
        self.multiply(&mut gates[..list.len], &mut ups[..list.len]);
        for ((i, _), v) in list.iter().zip(gates) {
            h[i] = v;
        }
    }

    /// The same for neighbours: `gates` becomes what they contribute with, `ups` is left with anything.
    fn multiply(&self, gates: &mut [f32], ups: &mut [f32]) {
        (self.activate)(self.w.act, gates);
        if self.w.gating == Gating::UpOnly {
            return;
        }
        if self.w.gating == Gating::Symmetric {
            (self.activate)(self.w.act, ups);
        }
        gates.iter_mut().zip(ups).for_each(|(gate, up)| *gate *= *up);
    }

    /// Neurons from `from` on for all tokens, four rows at a time beside many tokens: all of the gate, and, on the dense path,
    /// all of the rest.
    fn tiles(
        &self,
        from: usize,
        n: usize,
        part: &mut Columns<'_>,
        tokens: usize,
        touched: &mut (u64, u64),
        count: &mut Counts,
    ) {
        let start = part.range().start;
        let first = self.gate.unwrap_or(self.up);
        let (mut gates, mut ups) = ([0.0f32; CHUNK * TOKEN_BLOCK], [0.0f32; CHUNK * TOKEN_BLOCK]);
        touched.0 |= u64::MAX >> (CHUNK - n);
        for t0 in (0..tokens).step_by(TOKEN_BLOCK) {
            let block = TOKEN_BLOCK.min(tokens - t0);
            let (gates, ups) = (&mut gates[..n * block], &mut ups[..n * block]);
            first.tile(self.neurons, from, n, t0, gates);
            if self.dense {
                count.dense += (n * block) as u64;
                if self.gate.is_some() {
                    self.up.tile(self.neurons, from, n, t0, ups);
                    touched.1 |= u64::MAX >> (CHUNK - n);
                }
            }
            if self.dense && !self.w.skip && self.bits.is_none() {
                count.active += (n * block) as u64;
                self.multiply(gates, ups);
                for (t, gates) in gates.chunks_exact(n).enumerate() {
                    part.row(t0 + t)[from - start..][..n].copy_from_slice(gates);
                }
                continue;
            }
            for (t, (gates, ups)) in gates.chunks_exact(n).zip(ups.chunks_exact(n)).enumerate() {
                let h = &mut part.row(t0 + t)[from - start..][..n];
                let (mut fires, mut fire_ups) = (List::EMPTY, [0.0; CHUNK]);
                for j in 0..n {
                    let id = self.neurons.id(from + j);
                    h[j] = 0.0;
                    if self.may_fire(t0 + t, id) && (!self.w.skip || self.w.act.fires(gates[j])) {
                        (h[j], fire_ups[fires.len]) = (gates[j], ups[j]);
                        fires.push(j, id);
                    }
                }
                if self.dense {
                    count.active += fires.len as u64;
                    self.contribute(&fires, h, &mut fire_ups);
                } else {
                    touched.1 |= self.finish(&fires, t0 + t, h, count).bits(0);
                }
            }
        }
    }
}
