// The neuron-aware FFN (paper §5.4): gates of marked neurons, the rest where they fire, and the sum of what fires.
//
// A warp has a neuron, so that skipping one skips all its lanes. What neurons contribute is added up by columns: warps
// of a block in their order, then blocks in theirs, so the result is the same every time and nobody waits for a memory
// cell.
#include "tile.cuh"

typedef unsigned long long u64;

// In `h`, a neuron that is not marked or does not fire: a NaN that no arithmetic makes.
#define IDLE 0xffffdeadu

enum { SILU, GELU, GELU_TANH, RELU, RELU_SQUARED, FAT_RELU };

__device__ __forceinline__ float relu(float v, float threshold) { return v <= 0.0f || v < threshold ? 0.0f : v; }

__device__ __forceinline__ float activate(int act, float threshold, float v) {
    switch (act) {
    case SILU:
        return v / (1.0f + expf(-v));
    case GELU:
        return 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
    case GELU_TANH:
        return 0.5f * v * (1.0f + tanhf(0.7978846f * v * (1.0f + 0.044715f * v * v)));
    case RELU_SQUARED:
        v = relu(v, 0.0f);
        return v * v;
    default:
        return relu(v, threshold);
    }
}

// NaN fires, so that it is not hidden.
__device__ __forceinline__ bool fires(float v, int act, float threshold) {
    return v != v || (v > 0.0f && (act != FAT_RELU || v >= threshold));
}

// What a neuron contributes with: its gate, or IDLE, and up.
__device__ __forceinline__ float joined(float gate, float up, int symmetric, int act, float threshold) {
    if (__float_as_uint(gate) == IDLE)
        return 0.0f;
    return activate(act, threshold, gate) * (symmetric ? activate(act, threshold, up) : up);
}

// w, bias: [owned, dim] and [owned] or null; ids: of owned neurons, ascending, or null if they are all of the layer;
// marks: [tokens, words] or null; x: [tokens, dim]; h: [tokens, owned]. `counts` gets how many neurons and tokens fire,
// and are marked. Blocks of at most 32 warps; as many warps as owned neurons in x; FEW tokens each in y.
template <class T>
__device__ __forceinline__ void gate(const u8 *w, const float *bias, const int *ids, const u64 *marks, int words,
                                     const float *x, int owned, int dim, int tokens, int skip, int act, float threshold,
                                     float *h, u64 *counts) {
    PI_SHARED(u32, tally, 2 * WARP);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int i = blockIdx.x * warps + warp;
    const int first = FEW * blockIdx.y, some = min(FEW, tokens - first);
    u32 firing = 0, marked = 0;
    if (i < owned) { // the same for the whole warp, as is all that follows
        const int id = ids ? ids[i] : i;
        u32 wanted = 0;
        for (int n = 0; n < some; ++n)
            wanted |= (!marks || (marks[(i64)(first + n) * words + id / 64] >> (id % 64) & 1) ? 1u : 0u) << n;
        float v[FEW] = {};
        if (wanted)
            warp_dots<T>(w + i * row_bytes<T>(dim), x + (i64)first * dim, dim, some, lane, v);
        const float b = bias ? bias[i] : 0.0f;
#pragma unroll
        for (int n = 0; n < FEW; ++n)
            if (n < some) {
                const bool in = wanted >> n & 1;
                const bool on = in && (!skip || fires(v[n] + b, act, threshold));
                firing += on;
                marked += in;
                if (lane == 0)
                    h[(i64)(first + n) * owned + i] = on ? v[n] + b : __uint_as_float(IDLE);
            }
    }
    // one addition of a block, not of every warp: all of them go to the same two numbers
    if (lane == 0) {
        tally[warp] = firing;
        tally[WARP + warp] = marked;
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        u32 all = 0;
        for (int k = 0; k < warps; ++k)
            all += tally[WARP * threadIdx.x + k];
        if (all)
            atomicAdd(&counts[threadIdx.x], (u64)all);
    }
}

#define GATE(T)                                                                                                        \
    extern "C" __global__ void pi_ffn_gate_##T(const u8 *w, const float *bias, const int *ids, const u64 *marks,       \
                                               int words, const float *x, int owned, int dim, int tokens, int skip,    \
                                               int act, float threshold, float *h, u64 *counts) {                      \
        gate<T>(w, bias, ids, marks, words, x, owned, dim, tokens, skip, act, threshold, h, counts);                   \
    }
FOR_TYPES(GATE)

// h: gates of neurons that fire, and becomes what they contribute with; 0 for the others. `symmetric`: act(up), too.
template <class T>
__device__ __forceinline__ void up(const u8 *w, const float *bias, const float *x, int owned, int dim, int tokens,
                                   int symmetric, int act, float threshold, float *h) {
    const int lane = threadIdx.x % WARP;
    const int i = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (i >= owned)
        return;
    const int first = FEW * blockIdx.y, some = min(FEW, tokens - first);
    float g[FEW];
    bool any = false;
#pragma unroll
    for (int n = 0; n < FEW; ++n) {
        g[n] = n < some ? h[(i64)(first + n) * owned + i] : __uint_as_float(IDLE);
        any |= __float_as_uint(g[n]) != IDLE;
    }
    __syncwarp(); // all have read them
    float v[FEW] = {};
    if (any)
        warp_dots<T>(w + i * row_bytes<T>(dim), x + (i64)first * dim, dim, some, lane, v);
    if (lane != 0)
        return;
    const float b = bias ? bias[i] : 0.0f;
#pragma unroll
    for (int n = 0; n < FEW; ++n)
        if (n < some)
            h[(i64)(first + n) * owned + i] = joined(g[n], v[n] + b, symmetric, act, threshold);
}

#define UP(T)                                                                                                          \
    extern "C" __global__ void pi_ffn_up_##T(const u8 *w, const float *bias, const float *x, int owned, int dim,       \
                                             int tokens, int symmetric, int act, float threshold, float *h) {          \
        up<T>(w, bias, x, owned, dim, tokens, symmetric, act, threshold, h);                                           \
    }
FOR_TYPES(UP)

// The same for FFNs without a gate, where `h` holds what `up` gave.
extern "C" __global__ void pi_ffn_activate(i64 n, int act, float threshold, float *h) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        h[i] = __float_as_uint(h[i]) == IDLE ? 0.0f : activate(act, threshold, h[i]);
}

// For many tokens all gates are computed, as a product of matrices: this leaves those of neurons that fire in h:
// [tokens, owned], and counts. The other arguments are those of `gate`. A thread per number.
extern "C" __global__ void pi_ffn_fire(const int *ids, const u64 *marks, int words, int owned, int tokens, int skip,
                                       int act, float threshold, float *h, u64 *counts) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x, t = at / owned;
    const int i = (int)(at % owned), id = t < tokens && ids ? ids[i] : i;
    const bool in = t < tokens && (!marks || (marks[t * words + id / 64] >> (id % 64) & 1));
    const bool on = in && (!skip || fires(h[at], act, threshold));
    if (t < tokens && !on)
        h[at] = __uint_as_float(IDLE);
    const int firing = __syncthreads_count(on), marked = __syncthreads_count(in);
    if (threadIdx.x == 0 && marked) {
        atomicAdd(&counts[0], (u64)firing);
        atomicAdd(&counts[1], (u64)marked);
    }
}

// The second half of that: `up` has all up values. n: tokens · owned.
extern "C" __global__ void pi_ffn_join(const float *up, i64 n, int symmetric, int act, float threshold, float *h) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        h[i] = joined(h[i], up[i], symmetric, act, threshold);
}

#define DOWN_WARPS 8
#define DOWN_COLUMNS (8 * WARP)

// part[slice, t] = Σ over the slice's neurons of h · w. w: [owned, dim]; part: [slices, tokens, dim].
// Blocks of DOWN_WARPS warps; DOWN_COLUMNS columns each in x, a token in y, a slice of the neurons in z.
template <class T>
__device__ __forceinline__ void down(const u8 *w, const float *h, int owned, int dim, int tokens, float *part) {
    PI_SHARED(float, sums, DOWN_WARPS *DOWN_COLUMNS);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = blockIdx.y;
    const int e = blockIdx.x * WARP + lane, column = 8 * e;
    const int groups = (owned + WARP - 1) / WARP, each = (groups + gridDim.z - 1) / gridDim.z;
    const int to = min((int)(blockIdx.z + 1) * each, groups);
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int g = blockIdx.z * each + warp; g < to; g += DOWN_WARPS) {
        const int i = g * WARP + lane;
        const float mine = i < owned ? h[(i64)t * owned + i] : 0.0f;
        // the neurons of these 32 that contribute, one after the other
        for (u32 left = __ballot_sync(ALL_LANES, mine != 0.0f); left; left &= left - 1) {
            const int j = __ffs((int)left) - 1;
            const float by = __shfl_sync(ALL_LANES, mine, j);
            const u8 *row = w + (i64)(g * WARP + j) * row_bytes<T>(dim);
            float v[8];
            if (column + 8 <= dim) {
                T::eight(row + (i64)(e / (T::LEN / 8)) * T::BYTES, e % (T::LEN / 8), v);
#pragma unroll
                for (int k = 0; k < 8; ++k)
                    sum[k] = fmaf(by, v[k], sum[k]);
            } else { // unrolled, too: sums that are indexed would be in memory, and not in registers
#pragma unroll
                for (int k = 0; k < 8; ++k)
                    if (column + k < dim)
                        sum[k] = fmaf(by, T::one(row, column + k), sum[k]);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < 8; ++k)
        sums[warp * DOWN_COLUMNS + 8 * lane + k] = sum[k];
    __syncthreads();
    const int c = blockIdx.x * DOWN_COLUMNS + threadIdx.x; // as many threads as columns
    if (c < dim) {
        float all = 0.0f;
        for (int k = 0; k < DOWN_WARPS; ++k)
            all += sums[k * DOWN_COLUMNS + threadIdx.x];
        part[((i64)blockIdx.z * tokens + t) * dim + c] = all;
    }
}

#define DOWN(T)                                                                                                        \
    extern "C" __global__ void pi_ffn_down_##T(const u8 *w, const float *h, int owned, int dim, int tokens,            \
                                               float *part) {                                                          \
        down<T>(w, h, owned, dim, tokens, part);                                                                       \
    }
FOR_TYPES(DOWN)

// y = Σ over slices of part + bias; n: tokens · dim; `add`: y += instead of y =. bias: [dim] or null.
extern "C" __global__ void pi_ffn_sum(const float *part, int slices, i64 n, int dim, const float *bias, int add,
                                      float *y) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float sum = bias ? bias[i % dim] : 0.0f;
    for (int s = 0; s < slices; ++s)
        sum += part[s * n + i];
    y[i] = add ? y[i] + sum : sum;
}

// For many tokens: y = Σ over neurons of h · w + bias, as a product of matrices. h: [tokens, owned]; w: [owned, dim];
// y: [tokens, dim]; `add`: y += instead of y =. Blocks of TILE_THREADS; TILE columns each in x, TILE tokens each in y.
template <class T>
__device__ __forceinline__ void tile_down(const u8 *w, const float *h, const float *bias, int owned, int dim,
                                          int tokens, int add, float *y) {
    PI_SHARED(float4, weights, TILE_FLOATS / 4);
    PI_SHARED(float4, inputs, TILE_FLOATS / 4);
    float *a = reinterpret_cast<float *>(weights), *b = reinterpret_cast<float *>(inputs);
    const int column = TILE * blockIdx.x, token = TILE * blockIdx.y;
    const int k = threadIdx.x / 8, c = 8 * (threadIdx.x % 8);
    float sum[4][4] = {};
    for (int from = 0; from < owned; from += TILE_STEP) {
        float v[8];
        part_of_row<T>(w + min(from + k, owned - 1) * row_bytes<T>(dim), from + k < owned, column + c, dim, v);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            a[tile_at(k, c + i)] = v[i];
        tile_inputs(h, owned, from, token, tokens, b);
        __syncthreads();
        tile_step(a, b, sum);
        __syncthreads(); // the next ones are written there
    }
    tile_out(sum, column, dim, token, tokens, bias, add, y);
}

#define TILE_DOWN(T)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS)                                                         \
        pi_tile_down_##T(const u8 *w, const float *h, const float *bias, int owned, int dim, int tokens, int add,      \
                         float *y) {                                                                                   \
        tile_down<T>(w, h, bias, owned, dim, tokens, add, y);                                                          \
    }
FOR_TYPES(TILE_DOWN)
