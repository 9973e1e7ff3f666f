// How weights of each type are laid out. A type says how many numbers (LEN) and bytes (BYTES) a block has, and gives
// numbers 8 e … 8 e + 7 of a block, exactly as the CPU's reference decodes them: a lane takes eight neighbours, so that
// the block's scale is read once for them. The tables of bytes are in pi-core, `quant/`.
//
// Where they go, `V`, is an array of floats, or what wants codes and scales apart (`codes.cuh`).
#pragma once
#include "pi.cuh"

// Floats: eight numbers are called a block. A row may end with fewer, which `one` reads.
struct F32 {
    static const int LEN = 8, BYTES = 32;
    static __device__ __forceinline__ float one(const u8 *row, int i) {
        return reinterpret_cast<const float *>(row)[i];
    }
    static __device__ __forceinline__ void eight(const u8 *b, int, float *v) {
        floats(reinterpret_cast<const float *>(b), v);
    }
};

// Eight numbers of two bytes each.
template <class T>
__device__ __forceinline__ void numbers(const u32 *w, float *v) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        v[i] = T::number(i % 2 ? w[i / 2] >> 16 : w[i / 2] & 0xffffu);
}

// Floats of two bytes; `T` says what their bits mean.
template <class T>
struct TwoBytes {
    static const int LEN = 8, BYTES = 16;
    static __device__ __forceinline__ float one(const u8 *row, int i) { return T::number(two(row + 2 * (i64)i)); }
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int, V v) {
        u32 w[4];
        sixteen(b, w);
        numbers<T>(w, v);
    }
};

struct F16 : TwoBytes<F16> {
    static __device__ __forceinline__ float number(u32 bits) { return half_bits((u16)bits); }
};

struct BF16 : TwoBytes<BF16> {
    static __device__ __forceinline__ float number(u32 bits) { return __uint_as_float(bits << 16); }
};

// Rows of blocks are whole blocks.
struct Blocks {
    static __device__ __forceinline__ float one(const u8 *, int) { return 0.0f; }
};

// Nibbles of numbers 8 e … 8 e + 7 of 32, of which 16 bytes at `q` hold the first half in their lower and the second in
// their upper nibbles: as two words of bytes.
__device__ __forceinline__ void nibbles(const u8 *q, int e, u32 *words) {
    const u8 *p = q + 8 * (e % 2);
    const int shift = 4 * (e / 2);
    words[0] = four(p) >> shift & 0x0f0f0f0fu;
    words[1] = four(p + 4) >> shift & 0x0f0f0f0fu;
}

// Fifth bits of numbers 8 e … 8 e + 7, put above the nibbles.
__device__ __forceinline__ void fifth_bits(u32 bits, u32 *words) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        words[i / 4] |= (bits >> i & 1u) << (8 * (i % 4) + 4);
}

// `(code − less) · d`
__device__ __forceinline__ void scaled(const u32 *words, float less, float d, float *v) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        v[i] = (byte_of(words[i / 4], i % 4) - less) * d;
}

// `code · d + m`, rounded once, as the product is exact.
__device__ __forceinline__ void shifted(const u32 *words, float d, float m, float *v) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        v[i] = fmaf(byte_of(words[i / 4], i % 4), d, m);
}

struct Q4_0 : Blocks {
    static const int LEN = 32, BYTES = 18;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        nibbles(b + 2, e, w);
        scaled(w, 8.0f, half_at(b), v);
    }
};

struct Q4_1 : Blocks {
    static const int LEN = 32, BYTES = 20;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        nibbles(b + 4, e, w);
        shifted(w, half_at(b), half_at(b + 2), v);
    }
};

struct Q5_0 : Blocks {
    static const int LEN = 32, BYTES = 22;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        nibbles(b + 6, e, w);
        fifth_bits(four(b + 2) >> (8 * e), w);
        scaled(w, 16.0f, half_at(b), v);
    }
};

struct Q5_1 : Blocks {
    static const int LEN = 32, BYTES = 24;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        nibbles(b + 8, e, w);
        fifth_bits(four(b + 4) >> (8 * e), w);
        shifted(w, half_at(b), half_at(b + 2), v);
    }
};

struct Q8_0 : Blocks {
    static const int LEN = 32, BYTES = 34;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        const u32 w[2] = {four(b + 2 + 8 * e), four(b + 6 + 8 * e)};
        scaled(w, 0.0f, half_at(b), v);
    }
};

struct Q8_1 : Blocks {
    static const int LEN = 32, BYTES = 36;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        const u32 w[2] = {four(b + 4 + 8 * e), four(b + 8 + 8 * e)};
        scaled(w, 0.0f, half_at(b), v);
    }
};

// Two bits of each of numbers 8 e … 8 e + 7 of 256: of each 128 numbers, 32 bytes hold four runs of 32, from the low
// bits up.
__device__ __forceinline__ void pairs_of_bits(const u8 *q, int e, u32 *words) {
    const u8 *p = q + 32 * (e / 16) + 8 * (e % 4);
    const int shift = 2 * (e / 4 % 4);
    words[0] = four(p) >> shift & 0x03030303u;
    words[1] = four(p + 4) >> shift & 0x03030303u;
}

// Four bits of each, where 32 bytes hold 64 numbers: the first 32 in the lower nibbles.
__device__ __forceinline__ void halves(const u8 *q, int e, u32 *words) {
    const u8 *p = q + 32 * (e / 8) + 8 * (e % 4);
    const int shift = 4 * (e / 4 % 2);
    words[0] = four(p) >> shift & 0x0f0f0f0fu;
    words[1] = four(p + 4) >> shift & 0x0f0f0f0fu;
}

// Bit e / 4 of 32 bytes, that of number 8 (e % 4) + i in byte i, moved up by `to`.
__device__ __forceinline__ void high_bits(const u8 *q, int e, int to, u32 *words) {
    const u8 *p = q + 8 * (e % 4);
    words[0] |= (four(p) >> (e / 4) & 0x01010101u) << to;
    words[1] |= (four(p + 4) >> (e / 4) & 0x01010101u) << to;
}

// `scale · code − min`, rounded once.
template <class V>
__device__ __forceinline__ void lowered(const u32 *words, float scale, float min, V v) {
    shifted(words, scale, -min, v);
}

struct Q2_K : Blocks {
    static const int LEN = 256, BYTES = 84;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        pairs_of_bits(b + 16, e, w);
        const u32 s = b[e / 2];
        lowered(w, half_at(b + 80) * (float)(s & 15), half_at(b + 82) * (float)(s >> 4), v);
    }
};

struct Q3_K : Blocks {
    static const int LEN = 256, BYTES = 110;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        pairs_of_bits(b + 32, e, w);
        high_bits(b, e, 2, w);
        const int i = e / 2;
        const int s = (b[96 + i % 8] >> (4 * (i / 8)) & 15) | (b[104 + i % 4] >> (2 * (i / 4)) & 3) << 4;
        scaled(w, 4.0f, half_at(b + 108) * (float)(s - 32), v);
    }
};

// Scale and minimum of group `i` of Q4_K and Q5_K, from the 12 bytes at byte 4.
__device__ __forceinline__ void group(const u8 *b, int i, float *scale, float *min) {
    const u8 *p = b + 4 + i % 4;
    u32 s = p[0], m = p[4];
    if (i < 4) {
        s &= 63;
        m &= 63;
    } else {
        s = (p[8] & 15u) | s >> 6 << 4;
        m = p[8] >> 4 | m >> 6 << 4;
    }
    *scale = half_at(b) * (float)s;
    *min = half_at(b + 2) * (float)m;
}

struct Q4_K : Blocks {
    static const int LEN = 256, BYTES = 144;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        halves(b + 16, e, w);
        float scale, min;
        group(b, e / 4, &scale, &min);
        lowered(w, scale, min, v);
    }
};

struct Q5_K : Blocks {
    static const int LEN = 256, BYTES = 176;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        halves(b + 48, e, w);
        high_bits(b + 16, e, 4, w);
        float scale, min;
        group(b, e / 4, &scale, &min);
        lowered(w, scale, min, v);
    }
};

struct Q6_K : Blocks {
    static const int LEN = 256, BYTES = 210;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 high[2], w[2];
        pairs_of_bits(b + 128, e, high);
        // of each 128 numbers, 64 bytes hold the first 64 in their lower and the others in their upper nibbles
        const u8 *p = b + 64 * (e / 16) + 8 * (e % 8);
        const int shift = 4 * (e / 8 % 2);
        w[0] = (four(p) >> shift & 0x0f0f0f0fu) | high[0] << 4;
        w[1] = (four(p + 4) >> shift & 0x0f0f0f0fu) | high[1] << 4;
        scaled(w, 32.0f, half_at(b + 208) * (float)(i8)b[192 + e / 2], v);
    }
};

struct Q8_K : Blocks {
    static const int LEN = 256, BYTES = 292;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        const u32 w[2] = {four(b + 4 + 8 * e), four(b + 8 + 8 * e)};
        scaled(w, 0.0f, __uint_as_float(four(b)), v);
    }
};

// The sixteen values that codes of IQ4_NL and IQ4_XS name: in a table in constant memory, neighbours with different
// codes would wait for each other.
__device__ __forceinline__ float value_of(u32 code) {
    const u32 w = code < 8 ? (code < 4 ? 0xbfad9881u : 0xf6eaddcfu) : (code < 12 ? 0x26190d01u : 0x71594535u);
    return byte_of(w, code % 4);
}

__device__ __forceinline__ void valued(const u32 *words, float d, float *v) {
#pragma unroll
    for (int i = 0; i < 8; ++i)
        v[i] = d * value_of(words[i / 4] >> (8 * (i % 4)) & 15u);
}

struct IQ4_NL : Blocks {
    static const int LEN = 32, BYTES = 18;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        nibbles(b + 2, e, w);
        valued(w, half_at(b), v);
    }
};

struct IQ4_XS : Blocks {
    static const int LEN = 256, BYTES = 136;
    template <class V>
    static __device__ __forceinline__ void eight(const u8 *b, int e, V v) {
        u32 w[2];
        const int i = e / 4;
        nibbles(b + 8 + 16 * i, e % 4, w);
        const int s = (b[4 + i / 2] >> (4 * (i % 2)) & 15) | (int)(two(b + 2) >> (2 * i) & 3u) << 4;
        valued(w, half_at(b) * (float)(s - 32), v);
    }
};

// Calls a macro for every type.
#define FOR_TYPES(M)                                                                                                   \
    M(F32)                                                                                                             \
    M(F16)                                                                                                             \
    M(BF16) M(Q4_0) M(Q4_1) M(Q5_0) M(Q5_1) M(Q8_0) M(Q8_1) M(Q2_K) M(Q3_K) M(Q4_K) M(Q5_K) M(Q6_K) M(Q8_K) M(IQ4_NL)  \
        M(IQ4_XS)

// A type whose rows are known to begin at multiples of 16 bytes: no branch is between loads. Blocks are not read so.
template <class T>
struct Aligned : T {
    static __device__ __forceinline__ bool is(const u8 *) { return true; }
};
template <>
struct Aligned<F32> : F32 {
    static __device__ __forceinline__ bool is(const u8 *row) { return aligned(row); }
    static __device__ __forceinline__ void eight(const u8 *b, int, float *v) {
        floats_aligned(reinterpret_cast<const float *>(b), v);
    }
};
template <class T>
struct AlignedTwoBytes : T {
    static __device__ __forceinline__ bool is(const u8 *row) { return aligned(row); }
    static __device__ __forceinline__ void eight(const u8 *b, int, float *v) {
        const uint4 a = *reinterpret_cast<const uint4 *>(b);
        const u32 w[4] = {a.x, a.y, a.z, a.w};
        numbers<T>(w, v);
    }
};
template <>
struct Aligned<F16> : AlignedTwoBytes<F16> {};
template <>
struct Aligned<BF16> : AlignedTwoBytes<BF16> {};

// Adds the products of eights e, e + WARP, … e + (AT_ONCE - 1) WARP of a row with N rows of `x` at `in`, all aligned. The
// row's are asked for together: a warp waits for memory once for all of them, and there are few warps where few neurons
// fire.
template <class T, int N, int AT_ONCE>
__device__ __forceinline__ void eights_dots(const u8 *row, const float *const *in, int e, float *sum) {
    float v[AT_ONCE][8];
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
        const int at = e + k * WARP;
        Aligned<T>::eight(row + (i64)(at / (T::LEN / 8)) * T::BYTES, at % (T::LEN / 8), v[k]);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k)
#pragma unroll
        for (int n = 0; n < N; ++n) {
            float a[8];
            floats_aligned(in[n] + 8 * (e + k * WARP), a);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                sum[n] = fmaf(v[k][i], a[i], sum[n]);
        }
}

// The part of a row's products with up to N rows of `x` that this lane has: eights of numbers in turns. The row is
// decoded once for all of them, and each sum has the order it has alone. `tokens`: how many rows there are, at least one.
template <class T, int N>
__device__ __forceinline__ void lane_dots(const u8 *row, const float *x, int cols, int tokens, int lane, float *sum) {
    const float *in[N];
#pragma unroll
    for (int n = 0; n < N; ++n) {
        in[n] = x + (i64)min(n, tokens - 1) * cols; // what is too many computes the last again
        sum[n] = 0.0f;
    }
    const int eights = cols / 8;
    int e = lane;
    if (aligned(x) && cols % 4 == 0 && Aligned<T>::is(row)) { // of all lanes
        // as many as there are registers for
        const int AT_ONCE = N == 1 ? 4 : 1;
#pragma unroll 1
        for (; e + (AT_ONCE - 1) * WARP < eights; e += AT_ONCE * WARP)
            eights_dots<T, N, AT_ONCE>(row, in, e, sum);
#pragma unroll 1
        for (; e < eights; e += WARP)
            eights_dots<T, N, 1>(row, in, e, sum);
    }
#pragma unroll 1
    for (; e < eights; e += WARP) {
        float v[8];
        T::eight(row + (i64)(e / (T::LEN / 8)) * T::BYTES, e % (T::LEN / 8), v);
#pragma unroll
        for (int n = 0; n < N; ++n) {
            float a[8];
            floats(in[n] + 8 * e, a);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                sum[n] = fmaf(v[i], a[i], sum[n]);
        }
    }
    for (int i = 8 * eights + lane; i < cols; i += WARP) {
        const float v = T::one(row, i);
#pragma unroll
        for (int n = 0; n < N; ++n)
            sum[n] = fmaf(v, in[n][i], sum[n]);
    }
}

template <class T>
__device__ __forceinline__ float lane_dot(const u8 *row, const float *x, int cols, int lane) {
    float sum;
    lane_dots<T, 1>(row, x, cols, 1, lane, &sum);
    return sum;
}

// Tokens that share a decoded row in kernels for few tokens.
#define FEW 4

// The same for 1 to FEW tokens, summed over the warp.
template <class T>
__device__ __forceinline__ void warp_dots(const u8 *row, const float *x, int cols, int tokens, int lane, float *sum) {
    if (tokens == 1) // decoding: no product is computed in vain
        lane_dots<T, 1>(row, x, cols, 1, lane, sum);
    else
        lane_dots<T, FEW>(row, x, cols, tokens, lane, sum);
#pragma unroll
    for (int n = 0; n < FEW; ++n)
        if (n < tokens)
            sum[n] = warp_sum(sum[n]);
}

// Bytes of a row.
template <class T>
__device__ __forceinline__ i64 row_bytes(int cols) {
    return (i64)cols / T::LEN * T::BYTES + (i64)(cols % T::LEN) * (T::BYTES / T::LEN);
}
