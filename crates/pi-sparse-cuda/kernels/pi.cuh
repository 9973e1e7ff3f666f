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

// Two bytes at any even address, little endian as all devices are. Rows of blocks are aligned to two bytes, not to
// more.
__device__ __forceinline__ u32 two(const u8 *p) { return *reinterpret_cast<const u16 *>(p); }

__device__ __forceinline__ float half_at(const u8 *p) { return half_bits((u16)two(p)); }

__device__ __forceinline__ u32 four(const u8 *p) { return two(p) | two(p + 2) << 16; }

// Signed byte `i` of a word.
__device__ __forceinline__ float byte_of(u32 word, int i) { return (float)(i8)(word >> (8 * i)); }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = WARP / 2; o > 0; o >>= 1)
        v += __shfl_xor_sync(ALL_LANES, v, o);
    return v;
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
