// Products for many tokens: a block has TILE outputs of TILE tokens, and goes over what is summed in steps. Each weight
// is decoded once for all tokens of the tile, into shared memory; a thread has four outputs of four tokens, so that a
// number that it reads there meets four others. Every sum goes up through its summands, in one thread: its bits depend
// neither on the number of tokens nor on the run.
#pragma once
#include "types.cuh"

#define TILE 64
#define TILE_STEP 32
#define TILE_THREADS 256
// A row of a tile in shared memory: four more than it needs, so that neighbouring rows lie in other banks.
#define TILE_ROW (TILE + 4)
#define TILE_FLOATS (TILE_STEP * TILE_ROW)

// Where number `k` of output or token `i` is. Every eight rows of numbers are turned by eight, so that threads that
// write columns of eight numbers side by side do not wait for each other; groups of four stay together.
__device__ __forceinline__ int tile_at(int k, int i) { return k * TILE_ROW + ((i + 8 * (k / 8)) & (TILE - 1)); }

// Numbers k … k + 7 of a row of `cols`; 0 from its end on, and if it is not there.
template <class T>
__device__ __forceinline__ void part_of_row(const u8 *row, bool there, int k, int cols, float *v) {
    if (there && k + 8 <= cols) {
        const int e = k / 8;
        T::eight(row + (i64)(e / (T::LEN / 8)) * T::BYTES, e % (T::LEN / 8), v);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            v[i] = there && k + i < cols ? T::one(row, k + i) : 0.0f;
    }
}

// Numbers from `from` on of TILE rows of x, from `token` on.
__device__ __forceinline__ void tile_inputs(const float *x, int cols, int from, int token, int tokens, float *b) {
    const int k = 8 * (threadIdx.x % 4), t = threadIdx.x / 4;
    float v[8];
    part_of_row<F32>(reinterpret_cast<const u8 *>(x + (i64)min(token + t, tokens - 1) * cols), token + t < tokens,
                     from + k, cols, v);
#pragma unroll
    for (int i = 0; i < 8; ++i)
        b[tile_at(k + i, t)] = v[i];
}

// Adds the products of a step.
__device__ __forceinline__ void tile_step(const float *a, const float *b, float (*sum)[4]) {
    const int rows = 4 * (threadIdx.x / 16), tokens = 4 * (threadIdx.x % 16);
#pragma unroll 8
    for (int k = 0; k < TILE_STEP; ++k) {
        const float4 w = *reinterpret_cast<const float4 *>(a + tile_at(k, rows));
        const float4 x = *reinterpret_cast<const float4 *>(b + tile_at(k, tokens));
        const float u[4] = {w.x, w.y, w.z, w.w}, v[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                sum[i][j] = fmaf(u[i], v[j], sum[i][j]);
    }
}

// y: [tokens, rows]; `add`: y += instead of y =.
__device__ __forceinline__ void tile_out(float (*sum)[4], int row, int rows, int token, int tokens, const float *bias,
                                         int add, float *y) {
    row += 4 * (threadIdx.x / 16);
    token += 4 * (threadIdx.x % 16);
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (row + i < rows && token + j < tokens) {
                float *out = y + (i64)(token + j) * rows + row + i;
                const float v = sum[i][j] + (bias ? bias[row + i] : 0.0f);
                *out = add ? *out + v : v;
            }
}
