// What kernels on tensor cores share. A block has TILE outputs of TILE tokens, and its warps 32 outputs of 16 tokens each;
// both are brought in steps of TILE_STEP numbers, as pairs of F16 in shared memory.
#pragma once
#include "codes.cuh"
#include "tile.cuh"

// Words of a row of pairs in shared memory: four more than there are pairs, so that the lanes of a warp read from
// different banks.
#define PAIRS 20

// c += a · b: 16 rows of a, 8 columns of b, 16 numbers each.
__device__ __forceinline__ void mma(float *c, const u32 *a, const u32 *b) {
#if defined(PI_CUDA_EMU)
    cuemu::mma_m16n8k16(c, a, b);
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else // eight numbers at a time
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

__device__ __forceinline__ void put_pairs(u32 *to, const u32 *pairs) {
    uint4 four_pairs;
    four_pairs.x = pairs[0], four_pairs.y = pairs[1], four_pairs.z = pairs[2], four_pairs.w = pairs[3];
    *reinterpret_cast<uint4 *>(to) = four_pairs;
}

// Eight numbers, brought near one size by `up`, as the sums of two of F16 each: 22 bits of 24.
__device__ __forceinline__ void split(const float *v, float up, u32 *high, u32 *low) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const float p = v[i] * up, q = v[i + 1] * up;
        high[i / 2] = half_pair(p, q);
        low[i / 2] = half_pair(p - half_bits((u16)high[i / 2]), q - half_bits((u16)(high[i / 2] >> 16)));
    }
}

// Brings the step's eight numbers of this thread's row, of TILE rows with four threads each: `v`, split; `low` may be
// null. `unit` gets what sums of the row are to be multiplied by.
__device__ __forceinline__ void split_row(const float *v, u32 *high, u32 *low, float *unit) {
    const int mine = threadIdx.x / 4, part = threadIdx.x % 4;
    float most = largest_of(v), back;
    most = larger(most, __shfl_xor_sync(ALL_LANES, most, 1));
    most = larger(most, __shfl_xor_sync(ALL_LANES, most, 2));
    const float up = unit_of(most, &back);
    u32 h[4], l[4];
    split(v, up, h, l);
    put_pairs(high + mine * PAIRS + 4 * part, h);
    if (low)
        put_pairs(low + mine * PAIRS + 4 * part, l);
    if (part == 0)
        unit[mine] = back;
}

// What a warp multiplies: 16 rows of weights, of which `p` is the first, and half a step's numbers.
__device__ __forceinline__ void rows_of(const u32 *p, u32 *a) {
    a[0] = p[0];
    a[1] = p[8 * PAIRS];
    a[2] = p[4];
    a[3] = p[8 * PAIRS + 4];
}

// y: [tokens, rows]; `add`: y += instead of y =. sum: of a warp's 32 rows and 16 tokens.
__device__ __forceinline__ void tensor_out(float (*sum)[2][4], int row, int rows, int token, int tokens,
                                           const float *bias, int add, float *y) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    row += 32 * (warp % 2) + lane / 4;
    token += 16 * (warp / 2) + 2 * (lane % 4);
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int m = row + 16 * i + 8 * (k / 2), n = token + 8 * j + k % 2;
                if (m < rows && n < tokens) {
                    float *out = y + (i64)n * rows + m;
                    const float v = sum[i][j][k] + (bias ? bias[m] : 0.0f);
                    *out = add ? *out + v : v;
                }
            }
}

// Adds the products of a step, of weights and inputs that are both split; what is low in both is below what floats keep.
// unit: what sums of an output are to be multiplied by, HALF numbers further for the second half of the step; x_unit: the
// same of a token.
// Without LOW, weights are exact in what is high.
template <int HALF, bool LOW>
__device__ __forceinline__ void split_step(const u32 *high, const u32 *low, const float *unit, const u32 *x_high,
                                           const u32 *x_low, const float *x_unit, float (*sum)[2][4]) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const int first_row = 32 * (warp % 2), first_token = 16 * (warp / 2);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int r = (first_row + 16 * i + g) * PAIRS + 8 * half + t;
            u32 wh[4], wl[4];
            rows_of(high + r, wh);
            if (LOW)
                rows_of(low + r, wl);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int p = (first_token + 8 * j + g) * PAIRS + 8 * half + t;
                const u32 xh[2] = {x_high[p], x_high[p + 4]}, xl[2] = {x_low[p], x_low[p + 4]};
                float d[4] = {};
                if (LOW)
                    mma(d, wl, xh);
                mma(d, wh, xl);
                mma(d, wh, xh);
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    const int m = half * HALF + first_row + 16 * i + g + 8 * (k / 2);
                    const int n = first_token + 8 * j + 2 * t + k % 2;
                    sum[i][j][k] = fmaf(d[k] * unit[m], x_unit[n], sum[i][j][k]); // their product may be no number
                }
            }
        }
}
