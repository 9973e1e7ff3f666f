// y = W x + b. For few tokens a warp has a row of W and all tokens of its block; for many, blocks have tiles of rows and
// tokens.
#include "tile.cuh"

// w: [rows, cols], x: [tokens, cols], bias: [rows] or null, y: [tokens, rows]. `add`: y += instead of y =.
// Blocks of whole warps, eight at most; as many warps as rows in x; FEW tokens each in y.
template <class T>
__device__ __forceinline__ void linear(const u8 *w, const float *x, const float *bias, int rows, int cols, int tokens,
                                       int add, float *y) {
    const int lane = threadIdx.x % WARP;
    const int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (row >= rows)
        return; // the whole warp
    const int first = FEW * blockIdx.y, some = min(FEW, tokens - first);
    float sum[FEW];
    warp_dots<T>(w + row * row_bytes<T>(cols), x + (i64)first * cols, cols, some, lane, sum);
    if (lane != 0)
        return;
#pragma unroll
    for (int n = 0; n < FEW; ++n)
        if (n < some) {
            float *out = y + (i64)(first + n) * rows + row;
            const float v = sum[n] + (bias ? bias[row] : 0.0f);
            *out = add ? *out + v : v;
        }
}

// Registers for all loads of a turn, which would wait for each other otherwise.
#define LINEAR(T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(8 * WARP, 3)                                                          \
        pi_linear_##T(const u8 *w, const float *x, const float *bias, int rows, int cols, int tokens, int add,         \
                      float *y) {                                                                                      \
        linear<T>(w, x, bias, rows, cols, tokens, add, y);                                                             \
    }
FOR_TYPES(LINEAR)

// The same for many tokens: blocks of TILE_THREADS; TILE rows each in x, TILE tokens each in y. `wanted`: null, or 0 if
// nothing is to be done.
template <class T>
__device__ __forceinline__ void tile_linear(const u8 *w, const float *x, const float *bias, int rows, int cols,
                                            int tokens, int add, const u32 *wanted, float *y) {
    PI_SHARED(float4, weights, TILE_FLOATS / 4);
    PI_SHARED(float4, inputs, TILE_FLOATS / 4);
    if (wanted && !*wanted)
        return;
    float *a = reinterpret_cast<float *>(weights), *b = reinterpret_cast<float *>(inputs);
    const int row = TILE * blockIdx.x, token = TILE * blockIdx.y;
    const int mine = row + threadIdx.x / 4; // of which this thread decodes
    const u8 *r = w + min(mine, rows - 1) * row_bytes<T>(cols);
    float sum[4][4] = {};
    for (int from = 0; from < cols; from += TILE_STEP) {
        const int k = 8 * (threadIdx.x % 4);
        float v[8];
        part_of_row<T>(r, mine < rows, from + k, cols, v);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            a[tile_at(k + i, threadIdx.x / 4)] = v[i];
        tile_inputs(x, cols, from, token, tokens, b);
        __syncthreads();
        tile_step(a, b, sum);
        __syncthreads(); // the next ones are written there
    }
    tile_out(sum, row, rows, token, tokens, bias, add, y);
}

#define TILE_LINEAR(T)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS)                                                         \
        pi_tile_linear_##T(const u8 *w, const float *x, const float *bias, int rows, int cols, int tokens, int add,    \
                           const u32 *wanted, float *y) {                                                              \
        tile_linear<T>(w, x, bias, rows, cols, tokens, add, wanted, y);                                                \
    }
FOR_TYPES(TILE_LINEAR)

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
