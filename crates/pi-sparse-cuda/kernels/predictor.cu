// Predictors of two matrices: bits come out of the second product, so no vector as wide as the layer is written.
#include "types.cuh"

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

// out[t, half]: bit i is set if row 32 half + i of w, times x[t], reaches the threshold: halves of words, the lower first.
// w: [rows, cols]; x: [tokens, cols]. Blocks of eight warps; a half each in x, as many as all words have; FEW tokens each
// in y.
template <class T>
__device__ __forceinline__ void marks(const u8 *w, const float *x, int rows, int cols, int tokens, float threshold,
                                      u32 *out) {
    PI_SHARED(u32, on, FEW *WARP);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int first = FEW * blockIdx.y, some = min(FEW, tokens - first);
    for (int i = warp; i < WARP; i += warps) {
        const int row = WARP * blockIdx.x + i;
        const u8 *r = w + min(row, rows - 1) * row_bytes<T>(cols);
        float v[FEW];
        warp_dots<T>(r, x + (i64)first * cols, cols, some, lane, v);
        if (lane == 0)
#pragma unroll
            for (int n = 0; n < FEW; ++n)
                if (n < some)
                    on[WARP * n + i] = row < rows && (v[n] >= threshold || v[n] != v[n]);
    }
    __syncthreads();
    if (warp < some) { // a warp for each token: a block has more warps than FEW
        const u32 half = __ballot_sync(ALL_LANES, on[WARP * warp + lane]);
        if (lane == 0)
            out[(i64)(first + warp) * gridDim.x + blockIdx.x] = half;
    }
}

// Registers for all loads of a turn, as in FFNs. With so many as this leaves the compiler computes addresses of Q8_K again
// and again, in an order that differs from run to run, and there would be no one PTX: there it may have all it wants.
#define MARKS(T)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(8 * WARP, T::BYTES == Q8_K::BYTES ? 1 : 3)                            \
        pi_marks_##T(const u8 *w, const float *x, int rows, int cols, int tokens, float threshold, u32 *out) {         \
        marks<T>(w, x, rows, cols, tokens, threshold, out);                                                            \
    }
FOR_TYPES(MARKS)
