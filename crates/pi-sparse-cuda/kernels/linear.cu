// y = W x + b, for few tokens: a warp has a row of W and all tokens of its block, four at a time.
#include "types.cuh"

// w: [rows, cols], x: [tokens, cols], bias: [rows] or null, y: [tokens, rows]. `add`: y += instead of y =.
// Blocks of whole warps; as many warps as rows in x; four tokens each in y.
template <class T>
__device__ __forceinline__ void linear(const u8 *w, const float *x, const float *bias, int rows, int cols, int tokens,
                                       int add, float *y) {
    const int lane = threadIdx.x % WARP;
    const int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= rows)
        return; // the whole warp
    const u8 *r = w + row * row_bytes<T>(cols);
    const int first = 4 * blockIdx.y, last = min(first + 4, tokens);
    for (int t = first; t < last; ++t) {
        const float sum = warp_sum(lane_dot<T>(r, x + (i64)t * cols, cols, lane));
        if (lane == 0) {
            float *out = y + (i64)t * rows + row;
            const float v = sum + (bias ? bias[row] : 0.0f);
            *out = add ? *out + v : v;
        }
    }
}

#define LINEAR(T)                                                                                                      \
    extern "C" __global__ void pi_linear_##T(const u8 *w, const float *x, const float *bias, int rows, int cols,       \
                                             int tokens, int add, float *y) {                                          \
        linear<T>(w, x, bias, rows, cols, tokens, add, y);                                                             \
    }
FOR_TYPES(LINEAR)

// Numbers of rows, as the CPU's reference decodes them: a thread per eight.
template <class T>
__device__ __forceinline__ void decode(const u8 *w, i64 n, int cols, float *out) {
    const i64 per_row = (cols + 7) / 8, at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const i64 row = at / per_row, e = at % per_row;
    if (row >= n)
        return;
    const u8 *r = w + row * row_bytes<T>(cols);
    float *o = out + row * cols + 8 * e;
    if (8 * e + 8 <= cols) {
        float v[8];
        T::eight(r + e / (T::LEN / 8) * T::BYTES, (int)(e % (T::LEN / 8)), v);
        for (int i = 0; i < 8; ++i)
            o[i] = v[i];
    } else {
        for (int i = 0; i < cols - 8 * e; ++i)
            o[i] = T::one(r, (int)(8 * e + i));
    }
}

#define DECODE(T)                                                                                                      \
    extern "C" __global__ void pi_decode_##T(const u8 *w, i64 rows, int cols, float *out) {                            \
        decode<T>(w, rows, cols, out);                                                                                 \
    }
FOR_TYPES(DECODE)
