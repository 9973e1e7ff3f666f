//! Q5_K: Q4_K with a fifth bit per code.
//!
//! | bytes | field |
//! |---|---|
//! | 0…15 | head, as in Q4_K |
//! | 16…47 | fifth bits: of number `32 i + j`, bit `i` of byte `j` |
//! | 48…175 | low halves, as in Q4_K |

use super::block;
use super::q4_k::{self, Groups};
use super::search::Affine;
use super::{QuantInfo, QuantType};

pub(super) static Q5_K: QuantInfo = QuantInfo {
    ty: QuantType::Q5_K,
    name: "Q5_K",
    gguf_id: 13,
    block_len: 256,
    block_bytes: 176,
    activation: QuantType::Q8_K,
    decode: |bytes, out| block::decode(bytes, out, |b: &[u8; 176], out| q4_k::decode(&Groups::read(b), &codes(b), out)),
    encode: |x, out| block::encode(x, out, encode),
    dot: |w, x| block::dot(w, x, |w: &[u8; 176], x| q4_k::dot(&Groups::read(w), &codes(w), x)),
};

#[inline(always)]
fn codes(b: &[u8; 176]) -> [i8; 256] {
    let mut q = q4_k::halves(&b[48..]);
    for (i, part) in q.chunks_exact_mut(32).enumerate() {
        for (q, high) in part.iter_mut().zip(&b[16..48]) {
            *q |= (((high >> i) & 1) << 4) as i8;
        }
    }
    q
}

fn encode(x: &[f32; 256], out: &mut [u8; 176]) {
    const SEARCH: Affine = Affine { levels: 31, first: -0.5, steps: 15, absolute: false };
    let q = q4_k::encode_groups(x, &SEARCH, out);
    q4_k::pack(&q, &mut out[48..]);
    out[16..48].fill(0);
    for (i, q) in q.iter().enumerate() {
        out[16 + i % 32] |= (q >> 4) << (i / 32);
    }
}
