// Attention with keys and values on the device: rotation, storing, and a softmax that goes over positions in chunks.
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

// Positions of a chunk. Each chunk, at whole multiples of it, has a softmax of its own, and chunks are put together in
// ascending order, by `Together`. So a row's bits depend on its position and on nothing else: not on which block has which
// chunk, nor on what else a block or a step computes.
#define CHUNK 128

// Chunks of a row put together so far, and how the next is: sums are `fade · sum + gain · chunk's sum`.
struct Together {
    float largest, total, fade, gain;

    __device__ __forceinline__ void begin() { largest = -INFINITY, total = 0.0f; }

    // A chunk with the largest score `m` and the sum `t` of e^(score − m).
    __device__ __forceinline__ void add(float m, float t) {
        const float now = fmaxf(largest, m);
        // nothing but −∞ so far: there is nothing to be scaled
        fade = largest == now ? 1.0f : expf(largest - now);
        gain = m == now ? 1.0f : expf(m - now);
        largest = now;
        total = sum(total, t);
    }

    __device__ __forceinline__ float sum(float before, float chunk) const { return fmaf(chunk, gain, before * fade); }
};

// The part of a row's products with N queries, `width` apart and aligned, that this lane has; the row is decoded once.
// Each sum has the order of `lane_dots`.
template <class T, int N>
__device__ __forceinline__ void lane_products(const u8 *row, const float *query, int width, int cols, int lane,
                                              float *sum) {
#pragma unroll
    for (int n = 0; n < N; ++n)
        sum[n] = 0.0f;
    const int eights = cols / 8;
#pragma unroll 1
    for (int e = lane; e < eights; e += WARP) {
        float v[8];
        T::eight(row + (i64)(e / (T::LEN / 8)) * T::BYTES, e % (T::LEN / 8), v);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            const float4 *in = reinterpret_cast<const float4 *>(query + n * width + 8 * e);
            const float4 a = in[0], b = in[1];
            sum[n] = fmaf(v[0], a.x, sum[n]), sum[n] = fmaf(v[1], a.y, sum[n]);
            sum[n] = fmaf(v[2], a.z, sum[n]), sum[n] = fmaf(v[3], a.w, sum[n]);
            sum[n] = fmaf(v[4], b.x, sum[n]), sum[n] = fmaf(v[5], b.y, sum[n]);
            sum[n] = fmaf(v[6], b.z, sum[n]), sum[n] = fmaf(v[7], b.w, sum[n]);
        }
    }
#pragma unroll 1
    for (int i = 8 * eights + lane; i < cols; i += WARP) {
        const float v = T::one(row, i);
#pragma unroll
        for (int n = 0; n < N; ++n)
            sum[n] = fmaf(v, query[n * width + i], sum[n]);
    }
}

// Sums of N numbers over a warp's lanes, which are the bits of `warp_sum`: lane l gets that of number l / (WARP / N).
// While there are several, each lane gives away half of them, so that eight take 9 exchanges and not 40.
template <int N>
__device__ __forceinline__ float warp_sums(float *v, int lane) {
    if (N == 1)
        return warp_sum(v[0]);
    int o = WARP / 2;
#pragma unroll
    for (int left = N / 2; left > 0; left /= 2) {
        const bool upper = (lane & o) != 0;
#pragma unroll
        for (int i = 0; i < left; ++i) {
            const float keep = upper ? v[i + left] : v[i], give = upper ? v[i] : v[i + left];
            v[i] = keep + __shfl_xor_sync(ALL_LANES, give, o);
        }
        o /= 2;
    }
    float sum = v[0];
#pragma unroll
    for (int left = WARP / 2 / N; left > 0; left /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, left);
    return sum;
}

// N weights of a position, in loads of four.
template <int N>
__device__ __forceinline__ void weights_at(const float *p, float *w) {
    if (N == 1) {
        w[0] = p[0];
        return;
    }
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
        const float4 a = reinterpret_cast<const float4 *>(p)[i];
        w[4 * i] = a.x, w[4 * i + 1] = a.y, w[4 * i + 2] = a.z, w[4 * i + 3] = a.w;
    }
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
#pragma unroll(N == 1 ? 4 : 1)
            for (int p = warp; p < n; p += warps) {
                float s[N];
                lane_products<K, N>(k + (from + p) * row_bytes<K>(head_dim), query, width, head_dim, lane, s);
                const float score = warp_sums<N>(s, lane) * scale;
                if (lane % (WARP / N) == 0)
                    weight[p * N + lane / (WARP / N)] = score;
            }
            __syncthreads();
#pragma unroll 1
            for (int r = warp; r < rows; r += warps) {
                const int own = min(seen[r] - from, n);
                float m = -INFINITY, t = 0.0f;
#pragma unroll 1
                for (int p = lane; p < own; p += WARP)
                    m = fmaxf(m, weight[p * N + r]);
#pragma unroll
                for (int o = WARP / 2; o > 0; o >>= 1)
                    m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, o));
#pragma unroll 1
                for (int p = lane; p < own; p += WARP) {
                    const float s = weight[p * N + r];
                    // where all are −∞, that is the largest; what is no number has to stay none
                    const float w = s == -INFINITY ? 0.0f : expf(s - m);
                    weight[p * N + r] = w;
                    t += w;
                }
                t = warp_sum(t);
                if (lane == 0 && own > 0) {
                    if (sums) {
                        float *mark = marks + 2 * (place[r] * all + chunk);
                        mark[0] = m, mark[1] = t;
                    } else {
                        done[r].add(m, t);
                    }
                }
            }
            __syncthreads();
#pragma unroll 1
            for (int c = threadIdx.x; c < head_dim; c += blockDim.x) {
                float part[N], w[N];
#pragma unroll
                for (int r = 0; r < N; ++r)
                    part[r] = 0.0f;
                const u8 *at = v + from * row_bytes<V>(head_dim);
                int p = 0;
#pragma unroll(N == 8 ? 2 : 4)
                for (; p < min(early - from, n); ++p) {
                    const float x = V::at(at + p * row_bytes<V>(head_dim), c);
                    weights_at<N>(weight + p * N, w);
#pragma unroll
                    for (int r = 0; r < N; ++r)
                        part[r] = fmaf(w[r], x, part[r]);
                }
                // positions that the later tokens see, and the first does not
#pragma unroll 1
                for (; p < n; ++p) {
                    const float x = V::at(at + p * row_bytes<V>(head_dim), c);
                    weights_at<N>(weight + p * N, w);
#pragma unroll
                    for (int r = 0; r < N; ++r)
                        if (from + p < seen[r])
                            part[r] = fmaf(w[r], x, part[r]);
                }
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
