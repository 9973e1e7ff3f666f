// y = W x + b for many tokens, on tensor cores: of compute capability 7.5 and newer ones.
//
// They multiply F16, so that nothing is lost: weights are codes, which are exact in F16, and scaled afterwards; each number
// of x is the sum of two of F16, after all have been brought near one size. That leaves 22 bits of 24. Sixteen products
// are added up by a tensor core, which does not round as floats are; these sums are added up as floats. Weights that are
// not codes, of F32 and BF16, are sums of two as well.
#include "tensor.cuh"

// The arguments of `tile_linear`, and its blocks. Warps have 32 rows of 16 tokens each.
template <class T>
__device__ __forceinline__ void tensor_linear(const u8 *w, const float *x, const float *bias, int rows, int cols,
                                              int tokens, int add, const u32 *wanted, float *y) {
    PI_SHARED(uint4, weights, TILE *PAIRS / 4);
    PI_SHARED(uint4, high, TILE *PAIRS / 4);
    PI_SHARED(uint4, low, TILE *PAIRS / 4);
    PI_SHARED(float, scale, 2 * TILE); // of sixteen weights of a row
    PI_SHARED(float, shift, 2 * TILE);
    PI_SHARED(float, total, 2 * TILE); // of sixteen numbers of a token
    PI_SHARED(float, unit, TILE);      // of a token's numbers
    if (wanted && !*wanted)
        return;
    u32 *a = reinterpret_cast<u32 *>(weights), *b = reinterpret_cast<u32 *>(high), *c = reinterpret_cast<u32 *>(low);
    const int row = TILE * blockIdx.x, token = TILE * blockIdx.y;
    const int mine = threadIdx.x / 4, part = threadIdx.x % 4; // whose numbers this thread brings, eight of them
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const int first_row = 32 * (warp % 2), first_token = 16 * (warp / 2);
    const u8 *r = w + min(row + mine, rows - 1) * row_bytes<T>(cols);
    const u8 *in = reinterpret_cast<const u8 *>(x + (i64)min(token + mine, tokens - 1) * cols);
    float sum[2][2][4] = {};
    for (int from = 0; from < cols; from += TILE_STEP) {
        Codes codes;
        CodesOf<T>::get(r, row + mine < rows, from + 8 * part, cols, &codes);
        float v[8];
        part_of_row<F32>(in, token + mine < tokens, from + 8 * part, cols, v);
        split_row(v, b, c, unit);
        float all = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            all += v[i];
        if (Coded<T>::CENTER)
            all += __shfl_xor_sync(ALL_LANES, all, 1);
        const int at = mine * PAIRS + 4 * part;
        put_pairs(a + at, codes.pairs);
        if (part % 2 == 0) {
            const int i = part / 2 * TILE + mine;
            scale[i] = codes.d;
            if (Coded<T>::CENTER) {
                shift[i] = codes.m;
                total[i] = all;
            }
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 fa[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                rows_of(a + (first_row + 16 * i + g) * PAIRS + 8 * half + t, fa[i]);
            }
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int p = (first_token + 8 * j + g) * PAIRS + 8 * half + t;
                const u32 fh[2] = {b[p], b[p + 4]}, fl[2] = {c[p], c[p + 4]};
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float d[4] = {};
                    mma(d, fa[i], fl);
                    mma(d, fa[i], fh);
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        const int m = half * TILE + first_row + 16 * i + g + 8 * (k / 2);
                        const int n = first_token + 8 * j + 2 * t + k % 2;
                        sum[i][j][k] = fmaf(d[k] * scale[m], unit[n], sum[i][j][k]);
                        if (Coded<T>::CENTER)
                            sum[i][j][k] = fmaf(shift[m], total[half * TILE + n], sum[i][j][k]);
                    }
                }
            }
        }
        __syncthreads(); // the next ones are written there
    }
    tensor_out(sum, row, rows, token, tokens, bias, add, y);
}

// The same for weights that are no codes. Those of BF16 have eight bits, so that nothing is left for LOW.
template <class T, bool LOW>
__device__ __forceinline__ void split_linear(const u8 *w, const float *x, const float *bias, int rows, int cols,
                                             int tokens, int add, const u32 *wanted, float *y) {
    PI_SHARED(uint4, high, TILE *PAIRS / 4);
    PI_SHARED(uint4, low, LOW ? TILE *PAIRS / 4 : 1);
    PI_SHARED(uint4, x_high, TILE *PAIRS / 4);
    PI_SHARED(uint4, x_low, TILE *PAIRS / 4);
    PI_SHARED(float, unit, TILE);
    PI_SHARED(float, x_unit, TILE);
    if (wanted && !*wanted)
        return;
    u32 *a = reinterpret_cast<u32 *>(high), *b = reinterpret_cast<u32 *>(low);
    u32 *c = reinterpret_cast<u32 *>(x_high), *d = reinterpret_cast<u32 *>(x_low);
    const int row = TILE * blockIdx.x, token = TILE * blockIdx.y;
    const int mine = threadIdx.x / 4, part = threadIdx.x % 4;
    const u8 *r = w + min(row + mine, rows - 1) * row_bytes<T>(cols);
    const u8 *in = reinterpret_cast<const u8 *>(x + (i64)min(token + mine, tokens - 1) * cols);
    float sum[2][2][4] = {};
    for (int from = 0; from < cols; from += TILE_STEP) {
        float v[8];
        part_of_row<T>(r, row + mine < rows, from + 8 * part, cols, v);
        split_row(v, a, LOW ? b : nullptr, unit);
        part_of_row<F32>(in, token + mine < tokens, from + 8 * part, cols, v);
        split_row(v, c, d, x_unit);
        __syncthreads();
        split_step<0, LOW>(a, b, unit, c, d, x_unit, sum);
        __syncthreads(); // the next ones are written there
    }
    tensor_out(sum, row, rows, token, tokens, bias, add, y);
}

// All types but F32 and BF16, which are split.
#define FOR_CODED(M)                                                                                                   \
    M(F16)                                                                                                             \
    M(Q4_0) M(Q4_1) M(Q5_0) M(Q5_1) M(Q8_0) M(Q8_1) M(Q2_K) M(Q3_K) M(Q4_K) M(Q5_K) M(Q6_K) M(Q8_K) M(IQ4_NL) M(IQ4_XS)

#define TENSOR_LINEAR(T)                                                                                               \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 3)                                                      \
        pi_tensor_linear_##T(const u8 *w, const float *x, const float *bias, int rows, int cols, int tokens, int add,  \
                             const u32 *wanted, float *y) {                                                            \
        tensor_linear<T>(w, x, bias, rows, cols, tokens, add, wanted, y);                                              \
    }
FOR_CODED(TENSOR_LINEAR)

#define SPLIT_LINEAR(T, LOW)                                                                                           \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 2)                                                      \
        pi_tensor_linear_##T(const u8 *w, const float *x, const float *bias, int rows, int cols, int tokens, int add,  \
                             const u32 *wanted, float *y) {                                                            \
        split_linear<T, LOW>(w, x, bias, rows, cols, tokens, add, wanted, y);                                          \
    }
SPLIT_LINEAR(F32, true)
SPLIT_LINEAR(BF16, false)
