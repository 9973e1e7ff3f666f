// Predictors of two matrices: bits come out of the second product, so no vector as wide as the layer is written.
#include "types.cuh"

typedef unsigned long long u64;

// What PowerInfer's predictors round inputs of F16 matrices to. What is beyond F16 stays as it is.
__device__ __forceinline__ float to_half(float v) {
    if (fabsf(v) > 65504.0f)
        return v;
#ifdef PI_CUDA_EMU
    return __half2float(__float2half_rn(v));
#else
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return half_bits(bits);
#endif
}

// y = x, rounded to F16.
extern "C" __global__ void pi_round(const float *x, i64 n, float *y) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = to_half(x[i]);
}

// x = relu(x), rounded to F16 or not. NaN stays, and marks its neurons.
extern "C" __global__ void pi_relu(i64 n, int rounds, float *x) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        const float v = x[i] < 0.0f ? 0.0f : x[i];
        x[i] = rounds ? to_half(v) : v;
    }
}

// marks[t, word]: bit i is set if row 64 word + i of w, times x[t], reaches the threshold. w: [rows, cols]; x: [tokens,
// cols]. Blocks of eight warps; a word each in x, four tokens each in y.
template <class T>
__device__ __forceinline__ void marks(const u8 *w, const float *x, int rows, int cols, int tokens, float threshold,
                                      u64 *out) {
    PI_SHARED(u32, on, 64);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int first = 4 * blockIdx.y, last = min(first + 4, tokens);
    for (int t = first; t < last; ++t) {
        for (int i = warp; i < 64; i += warps) {
            const int row = 64 * blockIdx.x + i;
            const u8 *r = w + min(row, rows - 1) * row_bytes<T>(cols);
            const float v = warp_sum(lane_dot<T>(r, x + (i64)t * cols, cols, lane));
            if (lane == 0)
                on[i] = row < rows && (v >= threshold || v != v);
        }
        __syncthreads();
        if (warp == 0) {
            const u64 low = __ballot_sync(ALL_LANES, on[lane]), high = __ballot_sync(ALL_LANES, on[WARP + lane]);
            if (lane == 0)
                out[(i64)t * gridDim.x + blockIdx.x] = low | high << 32;
        }
        __syncthreads(); // `on` is written again
    }
}

#define MARKS(T)                                                                                                       \
    extern "C" __global__ void pi_marks_##T(const u8 *w, const float *x, int rows, int cols, int tokens,               \
                                            float threshold, u64 *out) {                                               \
        marks<T>(w, x, rows, cols, tokens, threshold, out);                                                            \
    }
FOR_TYPES(MARKS)
