// The sum of down rows for many tokens, on tensor cores: what `tile_down` of ffn.cu makes, with its arguments and blocks.
//
// A row's scale is that of one number of what is summed, so that codes cannot be scaled afterwards: weights are decoded,
// and split in two numbers of F16, as inputs are. Eight columns of sixteen neurons are brought near one size: what is below
// a hundred-thousandth of the largest of them loses bits.
#include "tensor.cuh"

template <class T>
__device__ __forceinline__ void tensor_down(const u8 *w, const float *h, const float *bias, int owned, int dim,
                                            int tokens, int add, float *y) {
    PI_SHARED(uint4, high, TILE *PAIRS / 4);
    PI_SHARED(uint4, low, TILE *PAIRS / 4);
    PI_SHARED(uint4, h_high, TILE *PAIRS / 4);
    PI_SHARED(uint4, h_low, TILE *PAIRS / 4);
    PI_SHARED(float, unit, 2 * TILE);
    PI_SHARED(float, h_unit, TILE);
    u32 *a = reinterpret_cast<u32 *>(high), *b = reinterpret_cast<u32 *>(low);
    u32 *c = reinterpret_cast<u32 *>(h_high), *d = reinterpret_cast<u32 *>(h_low);
    const int column = TILE * blockIdx.x, token = TILE * blockIdx.y;
    // a lane has a neuron, and a warp eight columns: pairs are of neurons, and lanes write neighbours
    const int lane = threadIdx.x % WARP, eight = 8 * (threadIdx.x / WARP);
    const int mine = threadIdx.x / 4, part = threadIdx.x % 4;
    const u8 *in = reinterpret_cast<const u8 *>(h + (i64)min(token + mine, tokens - 1) * owned);
    float sum[2][2][4] = {};
    for (int from = 0; from < owned; from += TILE_STEP) {
        const int i = from + lane;
        float v[8], back;
        part_of_row<T>(w + min(i, owned - 1) * row_bytes<T>(dim), i < owned, column + eight, dim, v);
        float most = largest_of(v); // of these columns and sixteen neurons
#pragma unroll
        for (int o = 1; o < WARP / 2; o <<= 1)
            most = larger(most, __shfl_xor_sync(ALL_LANES, most, o));
        const float up = unit_of(most, &back);
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            const float p = v[k] * up;
            const u16 rounded = half_of(p);
            const int at = (eight + k) * 2 * PAIRS + lane;
            reinterpret_cast<u16 *>(a)[at] = rounded;
            reinterpret_cast<u16 *>(b)[at] = half_of(p - half_bits(rounded));
        }
        if (lane % 16 < 8)
            unit[lane / 16 * TILE + eight + lane % 16] = back;
        part_of_row<F32>(in, token + mine < tokens, from + 8 * part, owned, v);
        split_row(v, c, d, h_unit);
        __syncthreads();
        split_step<TILE, true>(a, b, unit, c, d, h_unit, sum);
        __syncthreads(); // the next ones are written there
    }
    tensor_out(sum, column, dim, token, tokens, bias, add, y);
}

#define TENSOR_DOWN(T)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 2)                                                      \
        pi_tensor_down_##T(const u8 *w, const float *h, const float *bias, int owned, int dim, int tokens, int add,    \
                           float *y) {                                                                                 \
        tensor_down<T>(w, h, bias, owned, dim, tokens, add, y);                                                        \
    }
FOR_TYPES(TENSOR_DOWN)
