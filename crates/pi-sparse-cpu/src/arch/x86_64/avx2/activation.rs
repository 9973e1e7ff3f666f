//! Activation functions of whole rows: those that need an exponential.

use super::{attention::exp, lanes::*};
use crate::kernels::Activate;
use pi_core::Activation;
use std::arch::x86_64::*;

// SAFETY: leaves this module only through `super::kernels`, after the CPU was found to have the features.
pub(in crate::arch::x86_64) const ACTIVATE: Activate = |act, x| unsafe { activate(act, x) };

#[target_feature(enable = "avx2,fma,f16c")]
fn activate(act: Activation, x: &mut [f32]) {
    match act {
        Activation::Silu => each(x, |x| sigmoid_times(x, x)),
        Activation::GeluTanh => each(x, |x| {
            // x · (1 + tanh u) / 2 is x · sigmoid(2 u)
            let cube = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(0.044_715), _mm256_set1_ps(1.0));
            let u = _mm256_mul_ps(_mm256_mul_ps(x, cube), _mm256_set1_ps(2.0 * 0.797_884_6));
            sigmoid_times(u, x)
        }),
        _ => x.iter_mut().for_each(|x| *x = act.apply(*x)),
    }
}

/// `v · sigmoid(x)`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sigmoid_times(x: __m256, v: __m256) -> __m256 {
    let e = exp(_mm256_sub_ps(_mm256_setzero_ps(), x));
    _mm256_div_ps(v, _mm256_add_ps(_mm256_set1_ps(1.0), e))
}

/// Eight numbers at a time. The last ones go the same way, so that a value does not depend on its place.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn each(x: &mut [f32], f: impl Fn(__m256) -> __m256) {
    let (eights, rest) = x.as_chunks_mut();
    for eight in eights {
        let v = f(load(eight));
        store(eight, v);
    }
    if !rest.is_empty() {
        let mut eight = [0.0; 8];
        eight[..rest.len()].copy_from_slice(rest);
        let v = f(load(&eight));
        store(&mut eight, v);
        rest.copy_from_slice(&eight[..rest.len()]);
    }
}
