// Attention with keys and values on the device: rotation, storing, and a softmax that goes over positions in tiles.
#include "types.cuh"

// Rotates the first `dims` numbers of each head. x: [tokens, heads · head_dim]; table: [tokens, dims], a cosine and a
// sine for each pair; `halves`: pairs are (i, i + dims / 2), else (2 i, 2 i + 1). A thread per pair.
extern "C" __global__ void pi_rope(float *x, const float *table, int tokens, int heads, int head_dim, int dims,
                                   int halves) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const int pairs = dims / 2, pair = (int)(at % pairs);
    const i64 head = at / pairs, t = head / heads;
    if (t >= tokens)
        return;
    float *h = x + head * head_dim;
    const int i = halves ? pair : 2 * pair, j = halves ? pair + pairs : 2 * pair + 1;
    const float c = table[t * dims + 2 * pair], s = table[t * dims + 2 * pair + 1];
    const float a = h[i], b = h[j];
    h[i] = a * c - b * s;
    h[j] = a * s + b * c;
}

// Stores: a lane's numbers of a head of `n`, into a row at `to`.
struct KeepF32 : F32 {
    static __device__ __forceinline__ void put(const float *x, int n, u8 *to, int lane) {
        for (int i = lane; i < n; i += WARP)
            reinterpret_cast<float *>(to)[i] = x[i];
    }
    static __device__ __forceinline__ float at(const u8 *row, int i) { return one(row, i); }
};

struct KeepF16 : F16 {
    static __device__ __forceinline__ void put(const float *x, int n, u8 *to, int lane) {
        for (int i = lane; i < n; i += WARP)
            reinterpret_cast<u16 *>(to)[i] = half_of(x[i]);
    }
    static __device__ __forceinline__ float at(const u8 *row, int i) { return one(row, i); }
};

struct KeepQ8_0 : Q8_0 {
    static __device__ __forceinline__ void put(const float *x, int n, u8 *to, int lane) {
        for (int b = 0; b < n / WARP; ++b) {
            const float v = x[WARP * b + lane];
            float most = fabsf(v);
#pragma unroll
            for (int o = WARP / 2; o > 0; o >>= 1) {
                const float other = __shfl_xor_sync(ALL_LANES, most, o);
                most = most > other || most != most ? most : other; // NaN stays
            }
            const float d = most / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
            u8 *block = to + BYTES * b;
            if (lane == 0)
                *reinterpret_cast<u16 *>(block) = half_of(d);
            block[2 + lane] = (u8)(i8)(int)roundf(v * inverse);
        }
    }
    static __device__ __forceinline__ float at(const u8 *row, int i) {
        const u8 *b = row + (i64)(i / LEN) * BYTES;
        return half_at(b) * (float)(i8)b[2 + i % LEN];
    }
};

// Keys or values of a step to their places. x: [tokens, heads · head_dim]; places: sequence and position of each token;
// store: [sequences, heads, context, row]. A warp per token and head.
template <class T>
__device__ __forceinline__ void keep(const float *x, const int *places, int tokens, int heads, int head_dim,
                                     int context, u8 *store) {
    const int lane = threadIdx.x % WARP;
    const i64 at = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    const i64 t = at / heads, head = at % heads;
    if (t >= tokens)
        return;
    const i64 row = ((i64)places[2 * t] * heads + head) * context + places[2 * t + 1];
    T::put(x + at * head_dim, head_dim, store + row * row_bytes<T>(head_dim), lane);
}

#define TILE 128

// out[t, head] = Σ over positions up to the token's own of softmax(scale · q · k) · v. q, out: [tokens, heads ·
// head_dim]. A block per head in x and token in y; dynamic shared memory for 2 · head_dim + TILE floats.
template <class K, class V>
__device__ __forceinline__ void attend(const float *q, const int *places, const u8 *keys, const u8 *values, int heads,
                                       int kv_heads, int head_dim, int context, float scale, float *out) {
    PI_DYN_SHARED(float, shared);
    PI_SHARED(float, most, 1);
    float *query = shared, *sum = shared + head_dim, *weight = sum + head_dim;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int t = blockIdx.y, head = blockIdx.x, seq = places[2 * t], seen = places[2 * t + 1] + 1;
    const i64 base = ((i64)seq * kv_heads + head / (heads / kv_heads)) * context;
    const u8 *k = keys + base * row_bytes<K>(head_dim), *v = values + base * row_bytes<V>(head_dim);
    const i64 at = ((i64)t * heads + head) * head_dim;
    for (int c = threadIdx.x; c < head_dim; c += blockDim.x) {
        query[c] = q[at + c];
        sum[c] = 0.0f;
    }
    float largest = -INFINITY, total = 0.0f; // the same in all threads
    for (int from = 0; from < seen; from += TILE) {
        const int n = min(seen - from, TILE);
        __syncthreads(); // `query` is there; weights of the last tile were used
        for (int p = warp; p < n; p += warps) {
            const float s = warp_sum(lane_dot<K>(k + (from + p) * row_bytes<K>(head_dim), query, head_dim, lane));
            if (lane == 0)
                weight[p] = s * scale;
        }
        __syncthreads();
        if (warp == 0) {
            float m = -INFINITY;
            for (int p = lane; p < n; p += WARP)
                m = fmaxf(m, weight[p]);
#pragma unroll
            for (int o = WARP / 2; o > 0; o >>= 1)
                m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, o));
            if (lane == 0)
                most[0] = m;
        }
        __syncthreads();
        const float now = fmaxf(largest, most[0]);
        // nothing but −∞ so far: there is nothing to be scaled down
        const float fade = largest == now ? 1.0f : expf(largest - now);
        largest = now;
        float part = 0.0f;
        for (int p = threadIdx.x; p < n; p += blockDim.x) {
            weight[p] = now == -INFINITY ? 0.0f : expf(weight[p] - now);
            part += weight[p];
        }
        total = total * fade + block_sum(part); // waits for all weights, too
        for (int c = threadIdx.x; c < head_dim; c += blockDim.x) {
            float s = sum[c] * fade;
            for (int p = 0; p < n; ++p)
                s = fmaf(weight[p], V::at(v + (from + p) * row_bytes<V>(head_dim), c), s);
            sum[c] = s;
        }
    }
    for (int c = threadIdx.x; c < head_dim; c += blockDim.x)
        out[at + c] = sum[c] / total;
}

#define KEEP(T)                                                                                                        \
    extern "C" __global__ void pi_keep_##T(const float *x, const int *places, int tokens, int heads, int head_dim,     \
                                           int context, u8 *store) {                                                   \
        keep<Keep##T>(x, places, tokens, heads, head_dim, context, store);                                             \
    }
#define ATTEND(K, V)                                                                                                   \
    extern "C" __global__ void pi_attend_##K##_##V(const float *q, const int *places, const u8 *keys,                  \
                                                   const u8 *values, int heads, int kv_heads, int head_dim,            \
                                                   int context, float scale, float *out) {                             \
        attend<Keep##K, Keep##V>(q, places, keys, values, heads, kv_heads, head_dim, context, scale, out);             \
    }
#define KV_TYPES(M) M(F32) M(F16) M(Q8_0)
#define ATTEND_ALL(M)                                                                                                  \
    M(F32, F32) M(F32, F16) M(F32, Q8_0) M(F16, F32) M(F16, F16) M(F16, Q8_0) M(Q8_0, F32) M(Q8_0, F16) M(Q8_0, Q8_0)
KV_TYPES(KEEP)
ATTEND_ALL(ATTEND)
