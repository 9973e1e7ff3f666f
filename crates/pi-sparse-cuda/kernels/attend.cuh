// What attention computes of a chunk of positions, for N rows of queries that share keys and values. Scores and weights are
// in `weight`: [CHUNK, N].
#pragma once
#include "types.cuh"

// Positions of a chunk. Each chunk, at whole multiples of it, has a softmax of its own, and chunks are put together in
// ascending order, by `Together`. So a row's bits depend on its position and on nothing else: not on which block has which
// chunk, nor on what else a block or a step computes.
#define CHUNK 128

// Chunks of a row put together so far, and how the next is: sums are `fade · sum + gain · chunk's sum`.
struct Together {
    float largest, total, fade, gain;

    __device__ __forceinline__ void begin() {
        largest = -INFINITY;
        total = 0.0f;
    }

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
            const float w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 8; ++i)
                sum[n] = fmaf(v[i], w[i], sum[n]);
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

// Scores of a chunk's `n` positions, whose keys are rows from `k` on: a warp per position. What is no row of a query scores
// nothing that anybody reads.
template <class K, int N>
__device__ __forceinline__ void scores(const u8 *k, int n, const float *query, int width, int head_dim, float scale,
                                       float *weight) {
    const int lane = threadIdx.x % WARP, each = WARP / N;
#pragma unroll(N == 1 ? 4 : 1)
    for (int p = threadIdx.x / WARP; p < n; p += blockDim.x / WARP) {
        float s[N];
        lane_products<K, N>(k + p * row_bytes<K>(head_dim), query, width, head_dim, lane, s);
        const float score = warp_sums<N>(s, lane) * scale;
        if (lane % each == 0)
            weight[p * N + lane / each] = score;
    }
}

// A row's scores of the `own` positions that it sees become weights e^(score − largest), by a warp. `weight` begins with the
// row's first. Gives the largest score and the sum of weights.
template <int N>
__device__ __forceinline__ void soften(float *weight, int own, int lane, float *largest, float *total) {
    float m = -INFINITY, t = 0.0f;
#pragma unroll 1
    for (int p = lane; p < own; p += WARP)
        m = fmaxf(m, weight[p * N]);
#pragma unroll
    for (int o = WARP / 2; o > 0; o >>= 1)
        m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, o));
#pragma unroll 1
    for (int p = lane; p < own; p += WARP) {
        const float s = weight[p * N];
        // where all are −∞, that is the largest; what is no number has to stay none
        const float w = s == -INFINITY ? 0.0f : expf(s - m);
        weight[p * N] = w;
        t += w;
    }
    *largest = m;
    *total = warp_sum(t);
}

// Number `c` of the sum of weighted values of a chunk's `n` positions, for each row, which sees the first seen[row] − from.
// All rows see the first `common`.
template <class V, int N>
__device__ __forceinline__ void weighted(const u8 *v, int c, int head_dim, int common, int n, int from,
                                         const int *seen, const float *weight, float *part) {
    float w[N];
#pragma unroll
    for (int r = 0; r < N; ++r)
        part[r] = 0.0f;
    int p = 0;
#pragma unroll(N == 8 ? 2 : 4)
    for (; p < common; ++p) {
        const float x = V::at(v + p * row_bytes<V>(head_dim), c);
        weights_at<N>(weight + p * N, w);
#pragma unroll
        for (int r = 0; r < N; ++r)
            part[r] = fmaf(w[r], x, part[r]);
    }
#pragma unroll 1
    for (; p < n; ++p) {
        const float x = V::at(v + p * row_bytes<V>(head_dim), c);
        weights_at<N>(weight + p * N, w);
#pragma unroll
        for (int r = 0; r < N; ++r)
            if (from + p < seen[r])
                part[r] = fmaf(w[r], x, part[r]);
    }
}
