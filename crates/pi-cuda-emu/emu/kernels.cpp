// All kernels of pi-sparse-cuda, on the CPU.
#include "cuda_emu.hpp"
#include "linear.cu"
#include "norm.cu"
#include "ffn.cu"
#include "predictor.cu"
#include "tensor.cu"
#include "tensor_down.cu"
#include "attention.cu"

#define REGISTER(T)                                                                                                    \
    CUEMU_KERNEL(pi_linear_##T)                                                                                         \
    CUEMU_KERNEL(pi_decode_##T)                                                                                         \
    CUEMU_KERNEL(pi_ffn_hidden_##T)                                                                                     \
    CUEMU_KERNEL(pi_ffn_down_##T)                                                                                       \
    CUEMU_KERNEL(pi_tile_linear_##T)                                                                                    \
    CUEMU_KERNEL(pi_tile_down_##T)                                                                                      \
    CUEMU_KERNEL(pi_tensor_linear_##T)                                                                                  \
    CUEMU_KERNEL(pi_tensor_down_##T)                                                                                    \
    CUEMU_KERNEL(pi_marks_##T)
FOR_TYPES(REGISTER)
CUEMU_KERNEL(pi_rms_norm)
CUEMU_KERNEL(pi_layer_norm)
CUEMU_KERNEL(pi_add)
CUEMU_KERNEL(pi_ffn_choose)
CUEMU_KERNEL(pi_ffn_fire)
CUEMU_KERNEL(pi_ffn_join)
CUEMU_KERNEL(pi_ffn_sum)
CUEMU_KERNEL(pi_round)
CUEMU_KERNEL(pi_relu)
CUEMU_KERNEL(pi_rope)
#define REGISTER_KEEP(T) CUEMU_KERNEL(pi_keep_##T)
#define REGISTER_ATTEND(K, V)                                                                                          \
    CUEMU_KERNEL(pi_attend_1_##K##_##V)                                                                                \
    CUEMU_KERNEL(pi_attend_4_##K##_##V)                                                                                \
    CUEMU_KERNEL(pi_attend_8_##K##_##V)
CUEMU_KERNEL(pi_attend_join)
KV_TYPES(REGISTER_KEEP)
ATTEND_ALL(REGISTER_ATTEND)

// Runs a kernel's grid. `size`: x, y, z of the grid, then of a block. Returns 0, or 1 with a text in `error`.
extern "C" int pi_cuda_emu_launch(const char *name, const unsigned *size, unsigned shared, void **args, int threads,
                                  int order, uint64_t seed, char *error, size_t room) {
    auto it = cuemu::registry().find(name);
    std::string text;
    if (it == cuemu::registry().end()) {
        text = std::string("no such kernel: ") + name;
    } else {
        cuemu::Options options{threads, (cuemu::Order)order, seed};
        text = cuemu::launch(it->second, {size[0], size[1], size[2]}, {size[3], size[4], size[5]}, shared, args, options).error;
    }
    if (room)
        snprintf(error, room, "%s", text.c_str());
    return text.empty() ? 0 : 1;
}

// Bytes of a kernel's arguments, in order; returns how many there are, or -1 if there is no such kernel.
extern "C" int pi_cuda_emu_arguments(const char *name, size_t *bytes, int room) {
    auto it = cuemu::registry().find(name);
    if (it == cuemu::registry().end())
        return -1;
    for (int i = 0; i < room && i < (int)it->second.sizes.size(); ++i)
        bytes[i] = it->second.sizes[i];
    return (int)it->second.sizes.size();
}
