// y = W x + b for many tokens, on tensor cores: of compute capability 7.5 and newer ones.
//
// They multiply F16, so that nothing is lost: weights are codes, which are exact in F16, and scaled afterwards; each number
// of x is the sum of two of F16, after all have been brought near one size. That leaves 22 bits of 24. Sixteen products
// are added up by a tensor core, which does not round as floats are; these sums are added up as floats.
#include "codes.cuh"
#include "tile.cuh"

// Words of a row of pairs in shared memory: four more than there are pairs, so that the lanes of a warp read from
// different banks.
#define PAIRS 20

// c += a · b: 16 rows of a, 8 columns of b, 16 numbers each.
__device__ __forceinline__ void mma(float *c, const u32 *a, const u32 *b) {
#if defined(PI_CUDA_EMU)
    cuemu::mma_m16n8k16(c, a, b);
#elif __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else // eight numbers at a time
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2]), "r"(a[3]), "r"(b[1]));
#endif
}

__device__ __forceinline__ void put_pairs(u32 *to, const u32 *pairs) {
    uint4 four_pairs;
    four_pairs.x = pairs[0], four_pairs.y = pairs[1], four_pairs.z = pairs[2], four_pairs.w = pairs[3];
    *reinterpret_cast<uint4 *>(to) = four_pairs;
}

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
        float v[8], up, all = 0.0f;
        part_of_row<F32>(in, token + mine < tokens, from + 8 * part, cols, v);
        float most = largest_of(v);
        most = larger(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = larger(most, __shfl_xor_sync(ALL_LANES, most, 2));
        float back;
        up = unit_of(most, &back);
        u32 h[4], l[4];
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            const float p = v[i] * up, q = v[i + 1] * up;
            h[i / 2] = half_pair(p, q);
            l[i / 2] = half_pair(p - half_bits((u16)h[i / 2]), q - half_bits((u16)(h[i / 2] >> 16)));
            all += v[i] + v[i + 1];
        }
        if (Coded<T>::CENTER)
            all += __shfl_xor_sync(ALL_LANES, all, 1);
        const int at = mine * PAIRS + 4 * part;
        put_pairs(a + at, codes.pairs);
        put_pairs(b + at, h);
        put_pairs(c + at, l);
        if (part % 2 == 0) {
            const int i = part / 2 * TILE + mine;
            scale[i] = codes.d;
            if (Coded<T>::CENTER) {
                shift[i] = codes.m;
                total[i] = all;
            }
        }
        if (part == 0)
            unit[mine] = back;
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            u32 fa[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const u32 *p = a + (first_row + 16 * i + g) * PAIRS + 8 * half + t;
                fa[i][0] = p[0];
                fa[i][1] = p[8 * PAIRS];
                fa[i][2] = p[4];
                fa[i][3] = p[8 * PAIRS + 4];
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
                        sum[i][j][k] = fmaf(d[k], scale[m] * unit[n], sum[i][j][k]);
                        if (Coded<T>::CENTER)
                            sum[i][j][k] = fmaf(shift[m], total[half * TILE + n], sum[i][j][k]);
                    }
                }
            }
        }
        __syncthreads(); // the next ones are written there
    }
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int m = row + first_row + 16 * i + g + 8 * (k / 2), n = token + first_token + 8 * j + 2 * t + k % 2;
                if (m < rows && n < tokens) {
                    float *out = y + (i64)n * rows + m;
                    const float v = sum[i][j][k] + (bias ? bias[m] : 0.0f);
                    *out = add ? *out + v : v;
                }
            }
}

// All types but those of more bits than F16 has: F32, and BF16 for its range.
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
