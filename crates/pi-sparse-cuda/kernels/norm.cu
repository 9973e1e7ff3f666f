// Norms over rows: a block has a row; and the sum of two arrays. `add`: y += instead of y =.
#include "pi.cuh"

__device__ __forceinline__ void put(float *y, float v, int add) { *y = add ? *y + v : v; }

// y = x / sqrt(mean(x²) + eps) · weight
extern "C" __global__ void pi_rms_norm(const float *x, const float *weight, int dim, float eps, int add, float *y) {
    const float *row = x + (i64)blockIdx.x * dim;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < dim; i += blockDim.x)
        sum = fmaf(row[i], row[i], sum);
    const float scale = 1.0f / sqrtf(block_sum(sum) / (float)dim + eps);
    for (int i = threadIdx.x; i < dim; i += blockDim.x)
        put(y + (i64)blockIdx.x * dim + i, row[i] * scale * weight[i], add);
}

// y = (x − mean) / sqrt(var + eps) · weight + bias; bias may be null
extern "C" __global__ void pi_layer_norm(const float *x, const float *weight, const float *bias, int dim, float eps,
                                         int add, float *y) {
    const float *row = x + (i64)blockIdx.x * dim;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < dim; i += blockDim.x)
        sum += row[i];
    const float mean = block_sum(sum) / (float)dim;
    float square = 0.0f;
    for (int i = threadIdx.x; i < dim; i += blockDim.x)
        square = fmaf(row[i] - mean, row[i] - mean, square);
    const float scale = 1.0f / sqrtf(block_sum(square) / (float)dim + eps);
    for (int i = threadIdx.x; i < dim; i += blockDim.x)
        put(y + (i64)blockIdx.x * dim + i, (row[i] - mean) * scale * weight[i] + (bias ? bias[i] : 0.0f), add);
}

// y += x: what another device computed, added here.
extern "C" __global__ void pi_add(const float *x, i64 n, float *y) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += x[i];
}
