//! How the attention of a step is cut into blocks.
//!
//! What a block gets follows from the operator, a run's limits and which sequences a step's tokens are of, never from positions: a decoded
//! token's launches stay what they were for the token before, so that a graph of them is found. Blocks without a position end at once.
//!
//! None of it changes a result. Positions have chunks of a fixed size, which are put together in ascending order, whoever computed them.

use crate::shared::part;
use pi_core::Batch;

/// Positions of a chunk, as in `attend.cuh`.
pub(super) const CHUNK: usize = 128;
/// Rows for which there are kernels: what shares keys and values, heads of a group and tokens of a sequence.
pub(super) const ROWS: [usize; 3] = [1, 4, 8];
/// Shared memory that every device gives a block.
const SHARED: usize = 40 << 10;
/// A step that has no more blocks than this with one for each token and set of heads shares its tokens' positions out as well. With a larger
/// number, steps of more tokens would need room for chunks.
const FEW: usize = 128;
/// Blocks that such a step then has, or almost, and that a step keeps whose tokens share blocks: several for each multiprocessor.
const MANY: usize = 512;

/// What attention is made of.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub heads: usize,
    /// Divides `heads`.
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// The blocks of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Which of [`ROWS`] is the kernel's.
    pub kernel: usize,
    /// Heads of a block.
    pub together: usize,
    /// Sets of heads: blocks in x.
    pub sets: usize,
    /// Tokens of a block.
    pub share: usize,
    /// Blocks that have a token's chunks in turns. One: there is nothing to be put together.
    pub parts: usize,
}

impl Heads {
    /// Bytes of shared memory of a block for so many rows.
    pub fn shared(&self, rows: usize) -> Option<usize> {
        let width = self.head_dim.checked_next_multiple_of(4)?.checked_mul(2)?.checked_add(CHUNK)?;
        width.checked_mul(rows)?.checked_mul(4).filter(|&bytes| bytes <= SHARED)
    }

    /// Most rows of a block; `None` if not even one has room.
    pub fn rows(&self) -> Option<usize> {
        ROWS.into_iter().rev().find(|&rows| self.shared(rows).is_some())
    }

    /// Heads of a block, and how many blocks that is for a token.
    fn sets(&self) -> (usize, usize) {
        // shapes of files that are no attention are asked for, too
        let kv_heads = self.kv_heads.max(1);
        let group = (self.heads / kv_heads).max(1);
        // as few sets as there can be, of one size as far as that goes
        let sets = group.div_ceil(self.rows().unwrap_or(1));
        (group.div_ceil(sets), kv_heads.saturating_mul(sets))
    }

    /// Tokens of a step up to which positions are shared out.
    fn few(&self) -> usize {
        FEW / self.sets().1
    }

    /// The blocks of a step of so many tokens, at least one, of which `runs` times one is not of the sequence of the one before.
    pub fn cut(&self, tokens: usize, runs: usize, context: usize) -> Cut {
        let (together, sets) = self.sets();
        let all = tokens.saturating_mul(sets);
        let (mut share, mut parts) = (1, 1);
        if tokens <= self.few() {
            parts = (MANY / all).min(context.div_ceil(CHUNK)).max(1);
        } else {
            // tokens of one sequence, while that leaves enough blocks
            let most = (self.rows().unwrap_or(1) / together).min(tokens / runs.max(1)).min(all / MANY);
            share = most.max(1);
        }
        let kernel = ROWS.iter().position(|&rows| together * share <= rows).unwrap_or(ROWS.len() - 1);
        Cut { kernel, together, sets, share, parts }
    }

    /// Bytes of the sums of chunks and of their marks, for steps of up to so many tokens. `None`: more than can be counted.
    pub fn chunks(&self, tokens: usize, context: usize) -> Option<[usize; 2]> {
        let chunks = context.div_ceil(CHUNK);
        let tokens = if chunks > 1 { tokens.min(self.few()) } else { 0 };
        let rows = tokens.checked_mul(self.heads)?.checked_mul(chunks)?;
        Some([part(rows, self.head_dim)?, part(rows, 2)?])
    }
}

/// How often a token is not of the sequence of the one before, the first counted.
pub(super) fn runs(batch: &Batch) -> usize {
    batch.chunk_by(|a, b| a.seq == b.seq).count()
}

/// Positions that are read of each head of a group's keys and values, in sets of heads: once for tokens that a block has of one sequence.
pub(super) fn positions(batch: &Batch, share: usize) -> usize {
    let runs = batch.chunks(share).flat_map(|block| block.chunk_by(|a, b| a.seq == b.seq));
    runs.filter_map(<[_]>::last).map(|t| t.pos as usize + 1).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pi_core::BatchToken;

    const HEADS: [Heads; 8] = [
        Heads { heads: 32, kv_heads: 32, head_dim: 128 },
        Heads { heads: 32, kv_heads: 8, head_dim: 128 },
        Heads { heads: 28, kv_heads: 4, head_dim: 128 },
        Heads { heads: 71, kv_heads: 1, head_dim: 64 },
        Heads { heads: 4, kv_heads: 2, head_dim: 16 },
        Heads { heads: 16, kv_heads: 4, head_dim: 512 },
        Heads { heads: 8, kv_heads: 2, head_dim: 3001 },
        Heads { heads: 300, kv_heads: 300, head_dim: 64 },
    ];

    #[test]
    fn every_head_and_token_has_a_block_and_rows_have_room() {
        for heads in HEADS {
            for tokens in (1..140).chain([512, 70_000]) {
                for runs in [1, 2, tokens / 2, tokens].map(|runs| runs.max(1)) {
                    for context in [1, 128, 129, 4096, 1 << 20] {
                        let cut = heads.cut(tokens, runs, context);
                        let rows = ROWS[cut.kernel];
                        assert!(heads.shared(rows).is_some() && cut.together * cut.share <= rows, "{cut:?}");
                        let sets = (heads.heads / heads.kv_heads).div_ceil(cut.together);
                        assert_eq!(cut.sets, sets * heads.kv_heads);
                        assert!(cut.parts <= context.div_ceil(CHUNK) && cut.sets * cut.parts <= MANY.max(cut.sets));
                        assert!(cut.parts == 1 || cut.share == 1, "{cut:?}");
                        // few blocks only where there are no positions to be shared out
                        let blocks = cut.sets * tokens.div_ceil(cut.share) * cut.parts;
                        assert!(blocks >= FEW || cut.parts == context.div_ceil(CHUNK), "{blocks}, {cut:?}");
                        assert!(blocks >= MANY || cut.share == 1, "{blocks}, {cut:?}");
                        let [sums, marks] = heads.chunks(tokens, context).unwrap();
                        if cut.parts > 1 {
                            let rows = tokens * heads.heads * context.div_ceil(CHUNK);
                            assert!(sums >= 4 * rows * heads.head_dim && marks >= 8 * rows);
                        }
                        // no more tokens than that need more
                        let [a, b] = heads.chunks(tokens + 1, context).unwrap();
                        assert!(a >= sums && b >= marks);
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_share_what_they_can() {
        let [many, four, seven, all, ..] = HEADS;
        let of = |heads: Heads, tokens, runs| {
            let Cut { kernel, together, share, parts, .. } = heads.cut(tokens, runs, 4096);
            (ROWS[kernel], together, share, parts)
        };
        assert_eq!(of(many, 1, 1), (1, 1, 1, 16));
        assert_eq!(of(four, 1, 1), (4, 4, 1, 32), "no more parts than chunks");
        assert_eq!(of(seven, 8, 8), (8, 7, 1, 16));
        assert_eq!(of(all, 1, 1), (8, 8, 1, 32));
        assert_eq!(of(Heads { heads: 12, kv_heads: 1, head_dim: 64 }, 1, 1), (8, 6, 1, 32), "two sets of a size");
        assert_eq!(of(four, 16, 16), (4, 4, 1, 4));
        assert_eq!([of(four, 17, 1), of(four, 127, 1)], [(4, 4, 1, 1); 2], "too few blocks for two tokens each");
        assert_eq!(of(four, 128, 1), (8, 4, 2, 1));
        assert_eq!((of(four, 512, 1), of(seven, 512, 1)), ((8, 4, 2, 1), (8, 7, 1, 1)));
        assert_eq!(
            (of(many, 512, 1), of(many, 512, 200), of(many, 512, 512)),
            ((8, 1, 8, 1), (4, 1, 2, 1), (1, 1, 1, 1))
        );
        assert_eq!(four.cut(1, 1, 128).parts, 1, "a short context needs no second kernel");
        assert_eq!(four.chunks(512, 128), Some([0, 0]));
        assert_eq!(four.chunks(512, 129), four.chunks(16, 129));
        assert_eq!(four.chunks(usize::MAX, usize::MAX), None);
    }

    #[test]
    fn positions_are_counted_as_they_are_read() {
        let batch: Vec<_> =
            [(0, 5), (0, 6), (0, 7), (2, 0), (0, 8), (2, 1), (2, 2)].map(|(seq, pos)| BatchToken { seq, pos }).to_vec();
        assert_eq!(runs(&batch), 4);
        assert_eq!(positions(&batch, 1), 6 + 7 + 8 + 1 + 9 + 2 + 3);
        assert_eq!(positions(&batch, 2), 7 + 8 + 1 + 9 + 2 + 3);
        assert_eq!(positions(&batch, 8), 8 + 1 + 9 + 3);
        assert_eq!((runs(&[]), positions(&[], 4)), (0, 0));
    }
}
