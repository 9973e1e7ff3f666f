// What all kernels share. One source for NVRTC, nvcc and the emulator on the CPU, so:
// entry points are `extern "C" __global__`, there is no host code, no header of the toolkit is needed, shared memory is
// declared with PI_SHARED and PI_DYN_SHARED, and inline PTX stands beside plain code for the emulator.
#pragma once

#ifndef PI_CUDA_EMU
#define INFINITY __int_as_float(0x7f800000)
extern __shared__ __align__(16) unsigned char pi_dyn_shared[];
#define PI_DYN_SHARED(T, name) T *name = reinterpret_cast<T *>(pi_dyn_shared)
#define PI_SHARED(T, name, N) __shared__ T name[N]
#endif

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;

#define WARP 32
#define ALL_LANES 0xffffffffu

// A half-precision number from its bits.
__device__ __forceinline__ float half_bits(u16 bits) {
#ifdef PI_CUDA_EMU
    return __half2float(__half{bits});
#else
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
    return f;
#endif
}

// The bits of the nearest half-precision number.
__device__ __forceinline__ u16 half_of(float v) {
#ifdef PI_CUDA_EMU
    return __float2half_rn(v).bits;
#else
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
#endif
}

// Two bytes at any even address, little endian as all devices are. Rows of blocks are aligned to two bytes, not to
// more.
__device__ __forceinline__ u32 two(const u8 *p) { return *reinterpret_cast<const u16 *>(p); }

__device__ __forceinline__ float half_at(const u8 *p) { return half_bits((u16)two(p)); }

__device__ __forceinline__ u32 four(const u8 *p) { return two(p) | two(p + 2) << 16; }

// Signed byte `i` of a word.
__device__ __forceinline__ float byte_of(u32 word, int i) { return (float)(i8)(word >> (8 * i)); }

// The sum over a warp's lanes, which all get.
__device__ __forceinline__ float warp_sum(float v) {
#ifdef PI_CUDA_EMU
    return cuemu::butterfly_sum(v); // the same bits in one meeting of the lanes: emulated ones cost more than the arithmetic
#else
#pragma unroll
    for (int o = WARP / 2; o > 0; o >>= 1)
        v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
#endif
}

__device__ __forceinline__ bool aligned(const void *p) { return ((unsigned long long)p & 15) == 0; }

// Eight floats at a multiple of 16 bytes.
__device__ __forceinline__ void floats_aligned(const float *p, float *v) {
    const float4 a = reinterpret_cast<const float4 *>(p)[0], b = reinterpret_cast<const float4 *>(p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Eight floats: in two loads where they are aligned, as they are wherever rows are whole multiples of four numbers. A
// load per number would cost more than the weights that they meet.
__device__ __forceinline__ void floats(const float *p, float *v) {
    if (aligned(p)) {
        floats_aligned(p, v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            v[i] = p[i];
    }
}

// Sixteen bytes at an even address as four words; in one load where they are aligned.
__device__ __forceinline__ void sixteen(const u8 *p, u32 *w) {
    if (aligned(p)) {
        const uint4 a = *reinterpret_cast<const uint4 *>(p);
        w[0] = a.x, w[1] = a.y, w[2] = a.z, w[3] = a.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            w[i] = four(p + 4 * i);
    }
}

// The sum over a block of whole warps; every thread gets it.
__device__ __forceinline__ float block_sum(float v) {
    PI_SHARED(float, part, WARP);
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    v = warp_sum(v);
    if (lane == 0)
        part[warp] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? part[lane] : 0.0f);
    __syncthreads(); // the caller's next sum writes there again
    return v;
}
