// The neuron-aware FFN (paper §5.4): gates of marked neurons, the rest where they fire, and the sum of what fires.
//
// A warp has a neuron, so that all its lanes read one row. What neurons contribute is added up by columns: warps
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

// Neurons of a block at most: those whose marks are put together in one vote.
#define EACH WARP

// The sum over a warp's lanes, which all get.
__device__ __forceinline__ u32 warp_total(u32 v) {
#pragma unroll
    for (int o = WARP / 2; o > 0; o >>= 1)
        v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
}

// How many neurons `wanted` is not 0 for, a thread each in the first warp; they are in `list`, the first first.
__device__ __forceinline__ int compacted(u32 wanted, u32 *list, u32 *count) {
    const int lane = threadIdx.x % WARP;
    if (threadIdx.x < WARP) {
        const u32 all = __ballot_sync(ALL_LANES, wanted != 0);
        if (wanted)
            list[__popc(all & ((1u << lane) - 1))] = (u32)lane;
        if (lane == 0)
            *count = (u32)__popc(all);
    }
    __syncthreads();
    return (int)*count;
}

// Both products of the first half. Marked neurons of a block are put together in a list, and its warps take them in
// turns: none of them is idle because its neuron is. So are those whose gates fire, for the second product.
//
// first, second: [owned, dim], and biases of [owned] or null; ids: of owned neurons, ascending, or null if they are all
// of the layer; marks: [tokens, words] or null; x: [tokens, dim]; h: [tokens, owned], what each neuron contributes with.
// With no `second`, h is act(first), or if it is `raw`, gates or IDLE; with no `first`, gates are in h. `symmetric`:
// act(up), too. `counts` gets how many neurons and tokens fire, and are marked. `dense`: null, or not 0 if nothing is to
// be done here. Blocks of whole warps; `each` neurons in x, at most EACH; FEW tokens each in y.
template <class T>
__device__ __forceinline__ void hidden(const u8 *first, const float *first_bias, const u8 *second,
                                       const float *second_bias, const int *ids, const u64 *marks, int words,
                                       const float *x, int owned, int dim, int tokens, int each, int raw, int skip,
                                       int symmetric, int act, float threshold, const u32 *dense, float *h,
                                       u64 *counts) {
    PI_SHARED(float, products, 2 * FEW *EACH);
    PI_SHARED(u32, list, EACH);
    PI_SHARED(u32, count, 1);
    if (dense && *dense)
        return;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int base = blockIdx.x * each, token = FEW * blockIdx.y, some = min(FEW, tokens - token);
    x += (i64)token * dim;
    // threads of the first warp look after a neuron each: which tokens want it, and in the end what it contributes
    const bool mine = (int)threadIdx.x < min(each, owned - base);
    const int i = base + (int)threadIdx.x;
    h += (i64)token * owned + i;
    u32 wanted = 0;
    if (mine) {
        const int id = ids ? ids[i] : i;
#pragma unroll 1
        for (int n = 0; n < some; ++n) {
            float *gate = products + n * EACH + threadIdx.x;
            bool in;
            if (first)
                in = !marks || (marks[(i64)(token + n) * words + id / 64] >> (id % 64) & 1);
            else
                in = __float_as_uint(*gate = h[(i64)n * owned]) != IDLE;
            wanted |= (in ? 1u : 0u) << n;
        }
    }
    u32 firing = wanted;
#pragma unroll 1 // one body for both
    for (int k = first ? 0 : 1; k < (second ? 2 : 1); ++k) {
        const u8 *w = (k ? second : first) + base * row_bytes<T>(dim);
        const float *bias = k ? second_bias : first_bias;
        const int size = compacted(firing, list, count);
#pragma unroll 1
        for (int at = warp; at < size; at += warps) { // the same for the whole warp, as is all that follows
            const int neuron = (int)list[at];
            float v[FEW];
            warp_dots<T>(w + neuron * row_bytes<T>(dim), x, dim, some, lane, v);
            if (lane == 0) {
                const float b = bias ? bias[base + neuron] : 0.0f;
#pragma unroll
                for (int n = 0; n < FEW; ++n)
                    if (n < some)
                        products[(k * FEW + n) * EACH + neuron] = v[n] + b;
            }
        }
        __syncthreads();
        if (k == 0 && skip)
#pragma unroll 1
            for (int n = 0; n < some; ++n)
                if ((firing >> n & 1) && !fires(products[n * EACH + threadIdx.x], act, threshold))
                    firing &= ~(1u << n);
    }
    if (mine)
#pragma unroll 1
        for (int n = 0; n < some; ++n) {
            float out = raw ? __uint_as_float(IDLE) : 0.0f;
            if (firing >> n & 1) {
                const float gate = products[n * EACH + threadIdx.x];
                const float up = second ? products[(FEW + n) * EACH + threadIdx.x] : 1.0f;
                out = raw ? gate : joined(gate, up, symmetric, act, threshold);
            }
            h[(i64)n * owned] = out;
        }
    // one addition of a block: all of them go to the same two numbers
    if (first && threadIdx.x < WARP) {
        const u32 on = warp_total(__popc(firing)), in = warp_total(__popc(wanted));
        if (lane == 0 && in) {
            atomicAdd(&counts[0], (u64)on);
            atomicAdd(&counts[1], (u64)in);
        }
    }
}

// Registers for all loads of a turn, which would wait for each other otherwise: F32 has more of them.
#define HIDDEN(T)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(8 * WARP, T::BYTES == 4 * T::LEN ? 2 : 3) pi_ffn_hidden_##T(          \
        const u8 *first, const float *first_bias, const u8 *second, const float *second_bias, const int *ids,          \
        const u64 *marks, int words, const float *x, int owned, int dim, int tokens, int each, int raw, int skip,      \
        int symmetric, int act, float threshold, const u32 *dense, float *h, u64 *counts) {                            \
        hidden<T>(first, first_bias, second, second_bias, ids, marks, words, x, owned, dim, tokens, each, raw, skip,   \
                  symmetric, act, threshold, dense, h, counts);                                                        \
    }
FOR_TYPES(HIDDEN)

// Whether the FFN of a step is to be dense: whether neurons that any of FEW tokens marks, counted for each FEW tokens,
// are `limit` or more. One block. The arguments are those of `hidden`.
extern "C" __global__ void pi_ffn_choose(const int *ids, const u64 *marks, int words, int owned, int tokens, i64 limit,
                                         u32 *dense) {
    PI_SHARED(u32, part, WARP);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    u32 count = 0;
    for (int i = threadIdx.x; i < owned; i += blockDim.x) {
        const int id = ids ? ids[i] : i;
        for (int t = 0; t < tokens; t += FEW) {
            u64 any = 0;
            for (int n = t; n < min(t + FEW, tokens); ++n)
                any |= marks[(i64)n * words + id / 64];
            count += (u32)(any >> (id % 64)) & 1u;
        }
    }
    count = warp_total(count);
    if (lane == 0)
        part[warp] = count;
    __syncthreads();
    if (threadIdx.x == 0) {
        i64 all = 0;
        for (int k = 0; k < warps; ++k)
            all += part[k];
        *dense = all >= limit;
    }
}

// For many tokens all gates are computed, as a product of matrices: this leaves those of neurons that fire in h:
// [tokens, owned], and counts, and that all were computed. `dense`: null, or 0 if nothing is to be done here. The other
// arguments are those of `hidden`. A thread per number.
extern "C" __global__ void pi_ffn_fire(const int *ids, const u64 *marks, int words, int owned, int tokens, int skip,
                                       int act, float threshold, const u32 *dense, float *h, u64 *counts) {
    if (dense && !*dense)
        return;
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
    if (at == 0)
        atomicAdd(&counts[2], (u64)owned * tokens);
}

// The second half of that: `up` has all up values, or is null if there is no gate and h has them. n: tokens · owned.
extern "C" __global__ void pi_ffn_join(const float *up, i64 n, int symmetric, int act, float threshold,
                                       const u32 *dense, float *h) {
    if (dense && !*dense)
        return;
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        h[i] = joined(h[i], up ? up[i] : 1.0f, symmetric, act, threshold);
}

#define DOWN_WARPS 8
#define DOWN_COLUMNS (8 * WARP)

// Rows whose numbers a warp asks for together.
#define AT_ONCE 4

// Adds up, for eight columns of this lane, what neurons `mine` of a group of 32 contribute: those that do, in their order.
template <class T>
__device__ __forceinline__ void add_rows(const u8 *group, float mine, int column, int dim, float *sum) {
    const int e = column / 8;
    for (u32 left = __ballot_sync(ALL_LANES, mine != 0.0f); left;) {
        const int n = __popc(left);
        const u8 *row[AT_ONCE];
        float by[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) {
            const int j = left ? __ffs((int)left) - 1 : 0; // what is too many is read in vain, or not at all
            left &= left - 1;
            row[k] = k < n ? group + j * row_bytes<T>(dim) : row[0];
            by[k] = __shfl_sync(ALL_LANES, mine, j);
        }
        if (column + 8 <= dim) {
            float v[AT_ONCE][8];
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
                T::eight(row[k] + (i64)(e / (T::LEN / 8)) * T::BYTES, e % (T::LEN / 8), v[k]);
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    sum[i] = k < n ? fmaf(by[k], v[k][i], sum[i]) : sum[i];
        } else { // unrolled, too: sums that are indexed would be in memory, and not in registers
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    if (k < n && column + i < dim)
                        sum[i] = fmaf(by[k], T::one(row[k], column + i), sum[i]);
        }
    }
}

// part[slice, t] = Σ over the slice's neurons of h · w. w: [owned, dim]; part: [slices, tokens, dim].
// Blocks of DOWN_WARPS warps; DOWN_COLUMNS columns each in x, a token in y, a slice of the neurons in z.
template <class T>
__device__ __forceinline__ void down(const u8 *w, const float *h, int owned, int dim, int tokens, float *part) {
    PI_SHARED(float, sums, DOWN_WARPS *DOWN_COLUMNS);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = blockIdx.y;
    const int column = 8 * (int)(blockIdx.x * WARP + lane);
    const int groups = (owned + WARP - 1) / WARP, each = (groups + gridDim.z - 1) / gridDim.z;
    const int to = min((int)(blockIdx.z + 1) * each, groups);
    const i64 row = row_bytes<T>(dim);
    const bool whole = Aligned<T>::is(w) && Aligned<T>::is(w + row); // then all rows begin so
    float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    h += (i64)t * owned;
    const int begin = blockIdx.z * each + warp;
    float next = begin < to && begin * WARP + lane < owned ? h[begin * WARP + lane] : 0.0f;
    for (int g = begin; g < to; g += DOWN_WARPS) {
        const int i = (g + DOWN_WARPS) * WARP + lane;
        const float mine = next;
        next = g + DOWN_WARPS < to && i < owned ? h[i] : 0.0f;
        if (whole)
            add_rows<Aligned<T>>(w + g * WARP * row, mine, column, dim, sum);
        else
            add_rows<T>(w + g * WARP * row, mine, column, dim, sum);
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
    extern "C" __global__ void __launch_bounds__(DOWN_WARPS *WARP, 3)                                                  \
        pi_ffn_down_##T(const u8 *w, const float *h, int owned, int dim, int tokens, float *part) {                    \
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
