//! In how many bits rows differ, counted as fast as the CPU can.
//!
//! The code is plain Rust, compiled several times: counting bits is one instruction (`popcnt`), or one for eight words at once
//! (AVX-512), only where the compiler may take it for granted. All give the same numbers.

#![cfg_attr(target_arch = "x86_64", allow(unsafe_code))]

/// What the CPU has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// Whatever every CPU has.
    Plain,
    /// Counts the bits of a word.
    #[cfg(target_arch = "x86_64")]
    Popcnt,
    /// Counts the bits of eight words.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Counter {
    /// The fastest of this CPU.
    pub(crate) fn best() -> Self {
        Self::all().last().unwrap_or(Self::Plain)
    }

    /// Those that this CPU can run, the slowest first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let runs = |counter: &Self| match counter {
            Self::Plain => true,
            #[cfg(target_arch = "x86_64")]
            Self::Popcnt => std::arch::is_x86_feature_detected!("popcnt"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                std::arch::is_x86_feature_detected!("avx512f")
                    && std::arch::is_x86_feature_detected!("avx512vpopcntdq")
                    && std::arch::is_x86_feature_detected!("popcnt")
            }
        };
        [
            Self::Plain,
            #[cfg(target_arch = "x86_64")]
            Self::Popcnt,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512,
        ]
        .into_iter()
        .filter(runs)
    }

    /// `out[i]`: the bits in which row `i` of `rows` differs from `x`. Rows are as long as `x`.
    pub(crate) fn differing(self, rows: &[u64], x: &[u64], out: &mut [u32]) {
        match self {
            Self::Plain => differing(rows, x, out),
            // SAFETY: `all` gives these two only where the CPU has what they are compiled for, and nobody else makes them.
            #[cfg(target_arch = "x86_64")]
            Self::Popcnt => unsafe { differing_popcnt(rows, x, out) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => unsafe { differing_avx512(rows, x, out) },
        }
    }
}

#[inline(always)]
fn differing(rows: &[u64], x: &[u64], out: &mut [u32]) {
    for (row, out) in rows.chunks_exact(x.len().max(1)).zip(out) {
        *out = row.iter().zip(x).map(|(a, b)| u64::from((a ^ b).count_ones())).sum::<u64>() as u32;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "popcnt")]
fn differing_popcnt(rows: &[u64], x: &[u64], out: &mut [u32]) {
    differing(rows, x, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vpopcntdq,popcnt")]
fn differing_avx512(rows: &[u64], x: &[u64], out: &mut [u32]) {
    differing(rows, x, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_counting_finds_the_bits_that_differ() {
        let mut state = 1u64;
        let mut word = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state ^ (state >> 29)
        };
        for words in [1, 2, 7, 8, 9, 33, 64] {
            let x: Vec<u64> = (0..words).map(|_| word()).collect();
            let rows: Vec<u64> = (0..words * 5).map(|_| word()).collect();
            let differs = |i: usize, b: usize| (rows[i * words + b / 64] ^ x[b / 64]) >> (b % 64) & 1;
            let want: Vec<u32> = (0..5).map(|i| (0..64 * words).map(|b| differs(i, b) as u32).sum()).collect();
            for counter in Counter::all() {
                let mut got = vec![0; 5];
                counter.differing(&rows, &x, &mut got);
                assert_eq!(got, want, "{counter:?}, {words} words");
            }
        }
        assert!(Counter::all().any(|c| c == Counter::best()));
    }
}
