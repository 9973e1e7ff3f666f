// Attention with keys and values on the device: rotation, storing, and a softmax that goes over positions in chunks.
#include "attend.cuh"

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

// out[t, head] = Σ over positions up to the token's own of softmax(scale · q · k) · v. q, out: [tokens, heads ·
// head_dim]. Up to N rows, a row being a head of a token, share keys and values, which are read and decoded once for them:
// `together` heads of a group, and of `share` tokens those that follow each other in one sequence. Blocks: in x, sets of
// heads; in y, `share` tokens; in z, who takes which chunks in turns. With `sums` ([tokens, heads, chunks of the context,
// head_dim]) and `marks` ([…, 2]: largest score, sum of weights) chunks are written there, for `pi_attend_join`, and blocks
// without a chunk end at once; without, z is 1, and `out` is written. Dynamic shared memory for N · (CHUNK + 2 · head_dim)
// floats, head_dim being rounded up to 4.
template <class K, class V, int N>
__device__ __forceinline__ void attend(const float *q, const int *places, const u8 *keys, const u8 *values, int tokens,
                                       int heads, int kv_heads, int head_dim, int context, float scale, int together,
                                       int share, float *sums, float *marks, float *out) {
    PI_DYN_SHARED(float, shared);
    PI_SHARED(Together, done, N);
    PI_SHARED(int, seen, N);  // positions that a row sees
    PI_SHARED(i64, place, N); // which it is of [tokens, heads]
    const int width = (head_dim + 3) / 4 * 4;
    float *weight = shared, *query = weight + CHUNK * N, *sum = query + N * width;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const int group = heads / kv_heads, sets = (group + together - 1) / together;
    const int kv = blockIdx.x / sets, other = blockIdx.x % sets * together;
    const int head = kv * group + other, here = min(together, group - other), all = (context - 1) / CHUNK + 1;
    const int end = min(tokens, (int)(blockIdx.y + 1) * share);
#pragma unroll 1
    for (int first = blockIdx.y * share, next; first < end; first = next) {
        // positions of a sequence follow each other
        const int seq = places[2 * first], early = places[2 * first + 1] + 1;
        for (next = first + 1; next < end && places[2 * next] == seq;)
            ++next;
        const int rows = (next - first) * here, late = early + (next - first) - 1, chunks = (late - 1) / CHUNK + 1;
        if (blockIdx.z >= chunks)
            continue;
        const i64 base = ((i64)seq * kv_heads + kv) * context;
        const u8 *k = keys + base * row_bytes<K>(head_dim), *v = values + base * row_bytes<V>(head_dim);
        __syncthreads(); // the tokens before are done with what is shared
        if (threadIdx.x < N) {
            const int r = threadIdx.x;
            seen[r] = r < rows ? early + r / here : 0;
            place[r] = (i64)(first + r / here) * heads + head + r % here;
            done[r].begin();
        }
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x; i < N * width; i += blockDim.x) {
            const int r = i / width, c = i % width;
            query[i] = r < rows && c < head_dim ? q[place[r] * head_dim + c] : 0.0f;
            sum[i] = 0.0f;
        }
#pragma unroll 1
        for (int chunk = blockIdx.z; chunk < chunks; chunk += gridDim.z) {
            const int from = CHUNK * chunk, n = min(late - from, CHUNK);
            __syncthreads(); // `query` is there; weights of the chunk before were used
            scores<K, N>(k + from * row_bytes<K>(head_dim), n, query, width, head_dim, scale, weight);
            __syncthreads();
#pragma unroll 1
            for (int r = warp; r < rows; r += warps) {
                // none of a chunk's positions: that adds nothing
                const int own = min(seen[r] - from, n);
                float m, t;
                soften<N>(weight + r, own, lane, &m, &t);
                if (lane > 0)
                    continue;
                if (sums) {
                    float *mark = marks + 2 * (place[r] * all + chunk);
                    mark[0] = m;
                    mark[1] = t;
                } else {
                    done[r].add(m, t);
                }
            }
            __syncthreads();
#pragma unroll 1
            for (int c = threadIdx.x; c < head_dim; c += blockDim.x) {
                float part[N];
                weighted<V, N>(v + from * row_bytes<V>(head_dim), c, head_dim, min(early - from, n), n, from, seen, weight,
                               part);
#pragma unroll
                for (int r = 0; r < N; ++r) {
                    if (from >= seen[r])
                        continue;
                    if (sums)
                        sums[(place[r] * all + chunk) * head_dim + c] = part[r];
                    else
                        sum[r * width + c] = done[r].sum(sum[r * width + c], part[r]);
                }
            }
        }
        if (sums)
            continue;
#pragma unroll 1
        for (int c = threadIdx.x; c < head_dim; c += blockDim.x)
#pragma unroll 1
            for (int r = 0; r < rows; ++r)
                out[place[r] * head_dim + c] = sum[r * width + c] / done[r].total;
    }
}

// Puts together what `attend` wrote. A block per head in x and token in y.
extern "C" __global__ void pi_attend_join(const float *sums, const float *marks, const int *places, int heads,
                                          int head_dim, int context, float *out) {
    const int t = blockIdx.y, head = blockIdx.x, chunks = places[2 * t + 1] / CHUNK + 1;
    const i64 row = (i64)t * heads + head, first = row * ((context - 1) / CHUNK + 1);
    for (int c = threadIdx.x; c < head_dim; c += blockDim.x) {
        Together done;
        done.begin();
        float sum = 0.0f;
        for (int chunk = 0; chunk < chunks; ++chunk) {
            done.add(marks[2 * (first + chunk)], marks[2 * (first + chunk) + 1]);
            sum = done.sum(sum, sums[(first + chunk) * head_dim + c]);
        }
        out[row * head_dim + c] = sum / done.total;
    }
}

#define KEEP(T)                                                                                                        \
    extern "C" __global__ void pi_keep_##T(const float *x, const int *places, int tokens, int heads, int head_dim,     \
                                           int context, u8 *store) {                                                   \
        keep<Keep##T>(x, places, tokens, heads, head_dim, context, store);                                             \
    }
#define ATTEND_ROWS(N, K, V)                                                                                           \
    extern "C" __global__ void pi_attend_##N##_##K##_##V(                                                              \
        const float *q, const int *places, const u8 *keys, const u8 *values, int tokens, int heads, int kv_heads,      \
        int head_dim, int context, float scale, int together, int share, float *sums, float *marks, float *out) {      \
        attend<Keep##K, Keep##V, N>(q, places, keys, values, tokens, heads, kv_heads, head_dim, context, scale,        \
                                    together, share, sums, marks, out);                                                \
    }
#define ATTEND(K, V) ATTEND_ROWS(1, K, V) ATTEND_ROWS(4, K, V) ATTEND_ROWS(8, K, V)
#define KV_TYPES(M) M(F32) M(F16) M(Q8_0)
#define ATTEND_ALL(M)                                                                                                  \
    M(F32, F32) M(F32, F16) M(F32, Q8_0) M(F16, F32) M(F16, F16) M(F16, Q8_0) M(Q8_0, F32) M(Q8_0, F16) M(Q8_0, Q8_0)
KV_TYPES(KEEP)
ATTEND_ALL(ATTEND)
