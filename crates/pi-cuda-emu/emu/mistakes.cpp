// Kernels with planted mistakes, to see that the emulator reports them.
#include "cuda_emu.hpp"

extern "C" __global__ void mistake_divergent_barrier(float *y) {
    if (threadIdx.x < 7) {
        y[0] = 1;
        __syncthreads();
    } else {
        y[1] = __shfl_xor_sync(0xffffffffu, 1.0f, 16);
    }
}

extern "C" __global__ void mistake_missing_barrier(float *y) {
    PI_SHARED(float, s, 64);
    s[threadIdx.x] = (float)threadIdx.x;
    y[threadIdx.x] = s[63 - threadIdx.x];
}

extern "C" __global__ void mistake_exited_lane(float *y) {
    if (threadIdx.x == 3)
        return;
    y[threadIdx.x] = __shfl_down_sync(0xffffffffu, 1.0f, 1);
}

extern "C" __global__ void mistake_overrun(float *y) {
    PI_DYN_SHARED(float, s);
    s[threadIdx.x] = 1.0f;
    y[0] = s[0];
}

extern "C" __global__ void mistake_outside_the_mask(float *y) {
    y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
}

CUEMU_KERNEL(mistake_divergent_barrier)
CUEMU_KERNEL(mistake_missing_barrier)
CUEMU_KERNEL(mistake_exited_lane)
CUEMU_KERNEL(mistake_overrun)
CUEMU_KERNEL(mistake_outside_the_mask)

// No mistake: sums over warps as devices make them, then as warp_sum does here.
extern "C" __global__ void emulated_sums(const float *x, float *y) {
    float v = x[threadIdx.x];
    y[blockDim.x + threadIdx.x] = cuemu::butterfly_sum(v);
    for (int o = 16; o > 0; o >>= 1)
        v += __shfl_xor_sync(0xffffffffu, v, o);
    y[threadIdx.x] = v;
}
CUEMU_KERNEL(emulated_sums)

// No mistake: c = a · b of a warp, with a: [16, 16], b: [8, 16] (columns are rows here), c: [16, 8], from and to where PTX says that lanes
// have them.
extern "C" __global__ void emulated_mma(const float *a, const float *b, float *c) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    auto pair = [](const float *p) { return __float2half_rn(p[0]).bits | (uint32_t)__float2half_rn(p[1]).bits << 16; };
    uint32_t fa[4], fb[2];
    for (int i = 0; i < 4; ++i)
        fa[i] = pair(a + 16 * (g + 8 * (i % 2)) + 2 * t + 8 * (i / 2));
    for (int i = 0; i < 2; ++i)
        fb[i] = pair(b + 16 * g + 2 * t + 8 * i);
    float sum[4] = {1, 1, 1, 1};
    cuemu::mma_m16n8k16(sum, fa, fb);
    for (int i = 0; i < 4; ++i)
        c[8 * (g + 8 * (i / 2)) + 2 * t + i % 2] = sum[i];
}
CUEMU_KERNEL(emulated_mma)
