// Weights as tensor cores take them: small whole numbers, or F16, which are exact in F16, apart from what they are scaled
// by. Sixteen neighbours of a row, from a multiple of sixteen on, have one scale and one shift in every type.
#pragma once
#include "types.cuh"

// Numbers 8 e … 8 e + 7: `d · code + m`.
struct Codes {
    u32 pairs[4]; // of F16
    float d, m;
    float center; // is set before: what codes that are shifted are counted from, so that `m` is as small as it can be
};

__device__ __forceinline__ u32 half_pair(float a, float b) { return half_of(a) | (u32)half_of(b) << 16; }

__device__ __forceinline__ void scaled(const u32 *words, float less, float d, Codes *c) {
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        c->pairs[i / 2] = half_pair(byte_of(words[i / 4], i % 4) - less, byte_of(words[i / 4], i % 4 + 1) - less);
    c->d = d;
    c->m = 0.0f;
}

__device__ __forceinline__ void shifted(const u32 *words, float d, float m, Codes *c) {
    scaled(words, c->center, d, c);
    c->m = fmaf(c->center, d, m);
}

__device__ __forceinline__ void valued(const u32 *words, float d, Codes *c) {
    float v[8];
    valued(words, 1.0f, v);
#pragma unroll
    for (int i = 0; i < 8; i += 2)
        c->pairs[i / 2] = half_pair(v[i], v[i + 1]);
    c->d = d;
    c->m = 0.0f;
}

// A type's codes; its shifted ones are counted from CENTER, if there are any.
template <class T>
struct Coded {
    static const int CENTER = 0;
};
template <>
struct Coded<Q4_1> {
    static const int CENTER = 8;
};
template <>
struct Coded<Q5_1> {
    static const int CENTER = 16;
};
template <>
struct Coded<Q2_K> {
    static const int CENTER = 2;
};
template <>
struct Coded<Q4_K> {
    static const int CENTER = 8;
};
template <>
struct Coded<Q5_K> {
    static const int CENTER = 16;
};

// The power of two that brings numbers of up to `most` in size near 2^14, and its inverse: sums of F16 do not overflow
// there, and what is small beside `most` loses nothing that counts. 1 if something is not finite.
__device__ __forceinline__ float unit_of(float most, float *inverse) {
    const u32 bits = __float_as_uint(most) >> 23 & 255;
    const u32 e = bits == 255 ? 141 : max(bits, 15u);
    *inverse = __uint_as_float((e - 14) << 23);
    return __uint_as_float((268 - e) << 23);
}

// The largest size of eight numbers; NaN and infinity are the largest.
__device__ __forceinline__ float largest_of(const float *v) {
    u32 most = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
        most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
    return __uint_as_float(most);
}

__device__ __forceinline__ float larger(float a, float b) {
    return __uint_as_float(max(__float_as_uint(a), __float_as_uint(b)));
}

// Numbers k … k + 7 of a row of `cols`; 0 from its end on, and if it is not there. All lanes of a warp call it, and lane
// i ^ 1 has the other half of sixteen.
template <class T>
struct CodesOf {
    static __device__ __forceinline__ void get(const u8 *row, bool there, int k, int cols, Codes *c) {
        c->center = (float)Coded<T>::CENTER;
        if (there && k + 8 <= cols) {
            const int e = k / 8;
            T::eight(row + (i64)(e / (T::LEN / 8)) * T::BYTES, e % (T::LEN / 8), c);
        } else { // rows are whole blocks
            c->pairs[0] = c->pairs[1] = c->pairs[2] = c->pairs[3] = 0;
            c->d = c->m = 0.0f;
        }
    }
};

template <>
struct CodesOf<F16> {
    static __device__ __forceinline__ void get(const u8 *row, bool there, int k, int cols, Codes *c) {
        if (there && k + 8 <= cols) {
            sixteen(row + 2 * (i64)k, c->pairs);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                const u32 a = there && k + i < cols ? two(row + 2 * (i64)(k + i)) : 0;
                const u32 b = there && k + i + 1 < cols ? two(row + 2 * (i64)(k + i + 1)) : 0;
                c->pairs[i / 2] = a | b << 16;
            }
        }
        c->d = 1.0f;
        c->m = 0.0f;
    }
};
