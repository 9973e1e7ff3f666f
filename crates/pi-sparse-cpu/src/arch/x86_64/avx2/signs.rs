//! Packed signs: the plain code, compiled for the instructions that count bits.

use pi_core::signs::{SignKernels, differing, pack};

macro_rules! sign_kernels {
    ($name:ident, $features:literal) => {
        pub(in crate::arch::x86_64) const $name: SignKernels = {
            #[target_feature(enable = $features)]
            fn packed(numbers: &[f32], words: &mut [u64]) {
                pack(numbers, words);
            }

            #[target_feature(enable = $features)]
            fn counted(rows: &[u64], x: &[u64], out: &mut [u32]) {
                differing(rows, x, out);
            }

            SignKernels {
                // SAFETY: leaves this module only through `kernels`, after the CPU was found to have the features.
                pack: |numbers, words| unsafe { packed(numbers, words) },
                // SAFETY: as above.
                differing: |rows, x, out| unsafe { counted(rows, x, out) },
            }
        };
    };
}

sign_kernels!(SIGNS, "avx2,fma,f16c,popcnt");
sign_kernels!(SIGNS_AVX512, "avx2,fma,f16c,popcnt,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vpopcntdq");
