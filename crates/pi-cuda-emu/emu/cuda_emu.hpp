// cuda_emu.hpp - run hand-written CUDA C kernels on the CPU, for tests. C++20, no dependencies.
//   * one fiber per CUDA thread of a block, one OS thread per running block (so __shared__ = static thread_local)
//   * __syncthreads*, __shfl*_sync, __ballot_sync, __any/all_sync, __syncwarp are real barriers between fibers
//   * divergent barriers, masks without the caller, reads from lanes outside the mask, exited lanes -> error text
//   * lane order forward / reverse / random: a missing __syncthreads shows up as an order-dependent result
//   * mma.m16n8k16 of F16 on all lanes of a warp, with sums in one order
// Not modelled: grid-wide sync, what tensor cores round, inline PTX, memory-order weakness, true interleaving inside a warp.
#pragma once
#define PI_CUDA_EMU 1
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>
#include <sys/mman.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif
#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(CUEMU_UCONTEXT)
#define CUEMU_UCONTEXT 1
#endif
#ifdef CUEMU_UCONTEXT
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __shared__ static thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

// ---- vector types ---------------------------------------------------------------------------------------------------
struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
#define CUEMU_VEC(T, N)                                                                                                \
    struct alignas(2 * sizeof(T)) N##2 { T x, y; };                                                                    \
    struct alignas(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) N##4 { T x, y, z, w; };                                    \
    static inline N##2 make_##N##2(T x, T y) { return {x, y}; }                                                        \
    static inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUEMU_VEC(float, float)
CUEMU_VEC(int, int) CUEMU_VEC(unsigned, uint) CUEMU_VEC(unsigned char, uchar) CUEMU_VEC(signed char, char)

    // ---- half / bfloat16: storage types with exact conversions (round to nearest even)
    // ------------------------------------
    struct __half {
    uint16_t bits;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
static inline float __half2float(__half h) {
#if defined(__F16C__)
    return _cvtsh_ss(h.bits);
#else
    uint32_t s = (h.bits & 0x8000u) << 16, e = (h.bits >> 10) & 31, m = h.bits & 0x3ff;
    if (e == 31)
        return std::bit_cast<float>(s | 0x7f800000u | (m << 13));
    if (e == 0) {
        float f = std::ldexp((float)m, -24);
        return std::bit_cast<float>(s | std::bit_cast<uint32_t>(f));
    }
    return std::bit_cast<float>(s | ((e + 112) << 23) | (m << 13));
#endif
}
static inline __half __float2half_rn(float f) {
    uint32_t x = std::bit_cast<uint32_t>(f), s = (x >> 16) & 0x8000u;
    x &= 0x7fffffffu;
    if (x >= 0x7f800000u)
        return {(uint16_t)(s | 0x7c00u | (x > 0x7f800000u ? 0x200u | ((x >> 13) & 0x3ff) : 0))};
    if (x >= 0x477ff000u)
        return {(uint16_t)(s | 0x7c00u)};
    if (x < 0x38800000u) {
        float m = std::nearbyint(std::bit_cast<float>(x) * 16777216.0f);
        return {(uint16_t)(s | (uint32_t)m)};
    }
    uint32_t r = x + 0xfffu + ((x >> 13) & 1u) - 0x38000000u;
    return {(uint16_t)(s | (r >> 13))};
}
static inline __half __float2half(float f) { return __float2half_rn(f); }
static inline float __bfloat162float(__nv_bfloat16 b) { return std::bit_cast<float>((uint32_t)b.bits << 16); }
static inline __nv_bfloat16 __float2bfloat16(float f) {
    uint32_t x = std::bit_cast<uint32_t>(f);
    if ((x & 0x7fffffffu) > 0x7f800000u)
        return {(uint16_t)((x >> 16) | 0x40)};
    return {(uint16_t)((x + 0x7fffu + ((x >> 16) & 1u)) >> 16)};
}
static inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
static inline float __low2float(__half2 h) { return __half2float(h.x); }
static inline float __high2float(__half2 h) { return __half2float(h.y); }

// ---- scalar intrinsics
// ------------------------------------------------------------------------------------------------
template <class T>
static inline T __ldg(const T *p) {
    return *p;
}
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
#define __expf(x) std::exp((float)(x)) // glibc declares __expf etc. itself
static inline float __fdividef(float a, float b) { return a / b; }
static inline int __popc(unsigned x) { return std::popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline unsigned __float_as_uint(float f) { return std::bit_cast<unsigned>(f); }
static inline float __uint_as_float(unsigned u) { return std::bit_cast<float>(u); }
static inline int __float_as_int(float f) { return std::bit_cast<int>(f); }
static inline float __int_as_float(int u) { return std::bit_cast<float>(u); }
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i)
        c += (int)(int8_t)(a >> (8 * i)) * (int)(int8_t)(b >> (8 * i));
    return c;
}
template <class T>
static inline T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
static inline T max(T a, T b) {
    return a < b ? b : a;
}
static inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
static inline void __threadfence_block() {}
template <class T>
static inline T atomicAdd(T *p, T v) {
    if constexpr (std::is_integral_v<T>)
        return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
    else
        return std::atomic_ref<T>(*p).fetch_add(v, std::memory_order_relaxed);
}
template <class T>
static inline T atomicMax(T *p, T v) {
    T o = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (o < v && !__atomic_compare_exchange_n(p, &o, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return o;
}
template <class T>
static inline T atomicMin(T *p, T v) {
    T o = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (v < o && !__atomic_compare_exchange_n(p, &o, v, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
    return o;
}
template <class T>
static inline T atomicExch(T *p, T v) {
    return __atomic_exchange_n(p, v, __ATOMIC_RELAXED);
}
template <class T>
static inline T atomicCAS(T *p, T c, T v) {
    __atomic_compare_exchange_n(p, &c, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return c;
}
template <class T>
static inline T atomicOr(T *p, T v) {
    return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}

namespace cuemu {
// ---- fibers
// -------------------------------------------------------------------------------------------------------------
#ifdef CUEMU_UCONTEXT
typedef ucontext_t *Ctx;
static inline void ctx_switch(Ctx *save, Ctx load) { swapcontext(*save, load); }
#else
typedef void *Ctx;
extern "C" void cuemu_switch(void **save, void *load);
#if defined(__x86_64__)
asm(".text\n.weak cuemu_switch\n.hidden cuemu_switch\n.type cuemu_switch,@function\ncuemu_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\npop %rcx\njmp *%rcx\n.size "
    "cuemu_switch,.-cuemu_switch\n");
#else // aarch64 (not run here)
asm(".text\n.weak cuemu_switch\n.hidden cuemu_switch\n.type cuemu_switch,@function\ncuemu_switch:\n"
    "sub sp,sp,#176\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\nstp "
    "x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
    "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
    "mov x2,sp\nstr x2,[x0]\nmov sp,x1\n"
    "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\nldp "
    "x29,x30,[sp,#80]\n"
    "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\nadd "
    "sp,sp,#176\nret\n.size cuemu_switch,.-cuemu_switch\n");
#endif
static inline void ctx_switch(Ctx *save, Ctx load) { cuemu_switch(save, load); }
#endif

enum class St : uint8_t { Run, Block, Warp, Done };
struct Coll {
    unsigned mask, arrived = 0;
    int op = 0;
    uint64_t gen = 0;
    uint64_t slot[2][32];
};
struct Warp {
    std::vector<Coll *> colls;
    ~Warp() {
        for (auto c : colls)
            delete c;
    }
};
struct Lane {
    uint3 tid;
    unsigned lane;
    Warp *warp;
    St st;
    uint64_t wait_gen;
    Coll *wait_coll;
    Ctx ctx;
    char *stack;
#ifdef CUEMU_UCONTEXT
    ucontext_t uc;
#endif
};
enum class Order { Forward, Reverse, Random };
struct Options {
    int threads = 1;
    Order order = Order::Forward;
    uint64_t seed = 1;
};
typedef void (*Thunk)(void **);

struct Worker {
    static constexpr size_t STACK = 128 << 10, GUARD = 4096;
    std::vector<Lane> lanes;
    std::vector<unsigned> order;
    std::vector<Warp> warps;
    std::vector<uint64_t> dyn; // dynamic shared memory + 16 canary bytes

    dim3 grid, block;
    uint3 bid;
    Lane *cur = nullptr;
    Ctx main;
    unsigned alive = 0, at_barrier = 0;
    uint64_t bar_gen = 0;
    int bar_acc[2][3] = {};
    Thunk fn = nullptr;
    void **args = nullptr;
    std::string error;
    uint64_t rng = 1;
    uint64_t switches = 0;
#ifdef CUEMU_UCONTEXT
    ucontext_t main_uc;
#endif
    ~Worker() {
        for (auto &l : lanes)
            munmap(l.stack, STACK + GUARD);
    }
    std::vector<std::pair<const void *, std::vector<uint64_t>>> stat;
    void *static_shared(size_t n, const void *key) {
        for (auto &e : stat)
            if (e.first == key)
                return e.second.data();
        stat.emplace_back(key, std::vector<uint64_t>((n + 7) / 8, 0xffffffffffffffffull));
        return stat.back().second.data();
    }
    void yield() {
        ++switches;
        ctx_switch(&cur->ctx, main);
    }
    [[noreturn]] void fail(const std::string &m) {
        char b[160];
        snprintf(b, sizeof b, " [block (%u,%u,%u) thread (%u,%u,%u)]", bid.x, bid.y, bid.z, cur->tid.x, cur->tid.y,
                 cur->tid.z);
        error = m + b;
        cur->st = St::Done;
        yield();
        std::abort();
    }
    void release_barrier() {
        at_barrier = 0;
        ++bar_gen;
        auto &n = bar_acc[(bar_gen + 1) & 1];
        (void)n;
    }
    int barrier(int pred) {
        auto &a = bar_acc[bar_gen & 1];
        if (at_barrier == 0) {
            a[0] = 0;
            a[1] = 1;
            a[2] = 0;
        }
        a[0] += pred != 0;
        a[1] &= pred != 0;
        a[2] |= pred != 0;
        if (++at_barrier == alive) {
            release_barrier();
        } else {
            cur->st = St::Block;
            cur->wait_gen = bar_gen;
            yield();
            cur->st = St::Run;
        }
        return 0;
    }
    // What five __shfl_xor_sync by 16, 8, 4, 2 and 1 leave in every lane when sums are added up in turns: both lanes of
    // a pair add the same two numbers, so one of them is enough here.
    static constexpr int BUTTERFLY = 8;
    static void butterfly(uint64_t *slots) {
        float v[32];
        for (int i = 0; i < 32; ++i)
            memcpy(&v[i], &slots[i], sizeof(float));
        for (int o = 16; o > 0; o /= 2)
            for (int i = 0; i < o; ++i)
                v[i] += v[i + o];
        memcpy(&slots[0], &v[0], sizeof(float));
    }
    // mma.m16n8k16 of F16 with sums of floats, over all lanes: each brings its fragments, laid out as PTX says: with
    // g = lane / 4 and t = lane % 4, pairs of a are (row g, columns 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8), pairs of
    // b (rows 2t, column g), (2t + 8, g), and c is (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
    static constexpr int MMA = 9;
    struct Fragments {
        const uint32_t *a, *b;
        float *c;
    };
    static void mma(const uint64_t *slots) {
        float a[16][16], b[16][8];
        auto half = [](uint32_t bits) { return __half2float(__half{(uint16_t)bits}); };
        auto of = [slots](int lane) { return *(const Fragments *)slots[lane]; };
        for (int lane = 0; lane < 32; ++lane) {
            const Fragments f = of(lane);
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 4; ++i)
                for (int k = 0; k < 2; ++k)
                    a[g + 8 * (i % 2)][2 * t + 8 * (i / 2) + k] = half(f.a[i] >> (16 * k));
            for (int i = 0; i < 2; ++i)
                for (int k = 0; k < 2; ++k)
                    b[2 * t + 8 * i + k][g] = half(f.b[i] >> (16 * k));
        }
        for (int lane = 0; lane < 32; ++lane) {
            const Fragments f = of(lane);
            for (int i = 0; i < 4; ++i) {
                const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
                for (int k = 0; k < 16; ++k)
                    f.c[i] = std::fmaf(a[row][k], b[k][column], f.c[i]);
            }
        }
    }
    // all lanes of `mask` meet; each deposits `v`; returns the slots
    const uint64_t *collective(unsigned mask, int op, uint64_t v) {
        if (!(mask >> cur->lane & 1))
            fail("warp collective: caller is not in its own mask");
        Coll *c = nullptr;
        for (auto p : cur->warp->colls)
            if (p->mask == mask) {
                c = p;
                break;
            }
        if (!c) {
            c = new Coll;
            c->mask = mask;
            cur->warp->colls.push_back(c);
        }
        if (!c->arrived)
            c->op = op;
        else if (c->op != op)
            fail("warp collective: lanes of one mask met in different operations");
        uint64_t *s = c->slot[c->gen & 1];
        s[cur->lane] = v;
        c->arrived |= 1u << cur->lane;
        if (c->arrived == c->mask) {
            if (op == BUTTERFLY)
                butterfly(s);
            else if (op == MMA)
                mma(s);
            c->arrived = 0;
            ++c->gen;
        } else {
            cur->st = St::Warp;
            cur->wait_gen = c->gen;
            cur->wait_coll = c;
            yield();
            cur->st = St::Run;
        }
        return s;
    }
    static Worker *&tls() {
        static thread_local Worker *w = nullptr;
        return w;
    }
    static void entry() {
        Worker *w = tls();
        w->fn(w->args);
        w->cur->st = St::Done;
        if (--w->alive && w->at_barrier == w->alive)
            w->release_barrier(); // exited threads no longer count
        w->yield();
        std::abort();
    }
    void prepare(dim3 b) {
        size_t n = (size_t)b.x * b.y * b.z;
        while (lanes.size() < n) {
            Lane l{};
            l.stack = (char *)mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (l.stack == MAP_FAILED) {
                error = "emulator: out of fiber stacks";
                return;
            }
            mprotect(l.stack, GUARD, PROT_NONE);
            lanes.push_back(l);
        }
        warps = std::vector<Warp>((n + 31) / 32);
        order.resize(n);
        block = b;
        for (size_t i = 0; i < n; ++i) {
            lanes[i].tid = {(unsigned)(i % b.x), (unsigned)(i / b.x % b.y), (unsigned)(i / b.x / b.y)};
            lanes[i].lane = i & 31;
            lanes[i].warp = &warps[i >> 5];
            order[i] = (unsigned)i;
        }
    }
    void start(Lane &l) {
        l.st = St::Run;
#ifdef CUEMU_UCONTEXT
        getcontext(&l.uc);
        l.uc.uc_stack.ss_sp = l.stack + GUARD;
        l.uc.uc_stack.ss_size = STACK;
        l.uc.uc_link = nullptr;
        makecontext(&l.uc, (void (*)())entry, 0);
        l.ctx = &l.uc;
        main = &main_uc;
#elif defined(__x86_64__)
        void **sp = (void **)(l.stack + GUARD + STACK -
                              (size_t)((&l - lanes.data()) & 63) * 64); // colour: not all stacks in one cache set
        *--sp = nullptr;
        *--sp = (void *)entry;
        for (int i = 0; i < 6; ++i)
            *--sp = nullptr;
        l.ctx = sp;
#else
        char *sp = l.stack + GUARD + STACK - 176 - (size_t)((&l - lanes.data()) & 63) * 64;
        memset(sp, 0, 176);
        *(void **)(sp + 88) = (void *)entry;
        l.ctx = sp;
#endif
    }
    bool runnable(const Lane &l) const {
        switch (l.st) {
        case St::Run:
            return true;
        case St::Block:
            return bar_gen != l.wait_gen;
        case St::Warp:
            return l.wait_coll->gen != l.wait_gen;
        default:
            return false;
        }
    }
    void run_block(uint3 b, const Options &o) {
        bid = b;
        size_t n = order.size();
        stat.clear();
        alive = (unsigned)n;
        at_barrier = 0;
        tls() = this;
        for (auto &w : warps)
            for (auto c : w.colls)
                c->arrived = 0;
        for (size_t i = 0; i < n; ++i)
            start(lanes[i]);
        if (o.order == Order::Reverse)
            for (size_t i = 0; i < n; ++i)
                order[i] = (unsigned)(n - 1 - i);
        while (alive) {
            if (o.order == Order::Random)
                for (size_t i = n - 1; i > 0; --i) {
                    rng = rng * 6364136223846793005ull + 1442695040888963407ull;
                    std::swap(order[i], order[(rng >> 33) % (i + 1)]);
                }
            bool progress = false;
            for (unsigned i : order) {
                Lane &l = lanes[i];
                if (!runnable(l))
                    continue;
                progress = true;
                cur = &l;
                ++switches;
                ctx_switch(&main, l.ctx);
                if (!error.empty())
                    return;
            }
            if (!progress) {
                deadlock();
                return;
            }
        }
    }
    void deadlock() {
        unsigned b = 0, w = 0, d = 0;
        const Lane *first = nullptr;
        for (unsigned i : order) {
            auto &l = lanes[i];
            b += l.st == St::Block;
            w += l.st == St::Warp;
            d += l.st == St::Done;
            if (l.st == St::Warp && !first)
                first = &l;
        }
        char t[256];
        snprintf(t, sizeof t,
                 "deadlock in block (%u,%u,%u): %u threads at __syncthreads, %u in a warp collective, %u exited", bid.x,
                 bid.y, bid.z, b, w, d);
        error = t;
        if (first) {
            snprintf(t, sizeof t, "; e.g. thread %u waits for lanes %08x of mask %08x", first->tid.x,
                     first->wait_coll->mask & ~first->wait_coll->arrived, first->wait_coll->mask);
            error += t;
        }
    }
};
static inline Worker &W() { return *Worker::tls(); }
static inline void *dyn_shared() { return W().dyn.data(); }

// ---- launching
// ------------------------------------------------------------------------------------------------------------
struct Kernel {
    Thunk thunk;
    std::vector<size_t> sizes;
};
inline std::unordered_map<std::string, Kernel> &registry() {
    static std::unordered_map<std::string, Kernel> r;
    return r;
}
template <auto F>
struct Make;
template <class... A, void (*F)(A...)>
struct Make<F> {
    template <size_t... I>
    static void call(void **p, std::index_sequence<I...>) {
        F(*reinterpret_cast<A *>(p[I])...);
    }
    static void thunk(void **p) { call(p, std::index_sequence_for<A...>{}); }
    static bool reg(const char *n) {
        registry()[n] = Kernel{thunk, {sizeof(A)...}};
        return true;
    }
};
#define CUEMU_KERNEL(k) static const bool cuemu_reg_##k = ::cuemu::Make<&k>::reg(#k);

struct Result {
    std::string error;
    uint64_t switches = 0;
};
inline Result launch(const Kernel &k, dim3 g, dim3 b, size_t smem, void **args, const Options &o = {}) {
    uint64_t nb = (uint64_t)g.x * g.y * g.z;
    Result r;
    uint64_t bt = (uint64_t)b.x * b.y * b.z;
    if (nb == 0 || bt == 0 || bt > 1024) {
        r.error = "invalid launch configuration";
        return r;
    }
    std::atomic<uint64_t> next{0};
    std::atomic<bool> stop{false};
    int nt = (int)std::min<uint64_t>(o.threads < 1 ? 1 : o.threads, nb);
    std::vector<std::string> err(nt);
    std::vector<uint64_t> sw(nt);
    auto body = [&](int t) {
        static thread_local Worker w; // keeps its stacks between launches
        w.error.clear();
        w.switches = 0;
        w.fn = k.thunk;
        w.args = args;
        w.grid = g;
        w.rng = o.seed * 2 + 1 + t;
        w.prepare(b);
        for (;;) {
            uint64_t i = next++;
            if (i >= nb || stop || !w.error.empty())
                break;
            w.dyn.assign((smem + 16 + 7) / 8, 0xffffffffffffffffull); // NaN pattern: reads of unset shared memory show
            w.run_block({(unsigned)(i % g.x), (unsigned)(i / g.x % g.y), (unsigned)(i / g.x / g.y)}, o);
            for (size_t c = 0; c < 16; ++c)
                if (((unsigned char *)w.dyn.data())[smem + c] != 0xff && w.error.empty())
                    w.error = "write past the end of dynamic shared memory";
        }
        err[t] = w.error;
        sw[t] = w.switches;
        if (!w.error.empty())
            stop = true;
    };
    std::vector<std::thread> ts;
    for (int t = 1; t < nt; ++t)
        ts.emplace_back(body, t);
    body(0);
    for (auto &t : ts)
        t.join();
    for (int t = 0; t < nt; ++t) {
        r.switches += sw[t];
        if (r.error.empty())
            r.error = err[t];
    }
    return r;
}
} // namespace cuemu

#define threadIdx (::cuemu::W().cur->tid)
#define blockIdx (::cuemu::W().bid)
#define blockDim (::cuemu::W().block)
#define gridDim (::cuemu::W().grid)
#define warpSize 32
// Static shared arrays: on the device `__shared__ T name[N]`; here a per-block arena filled with NaN bytes before each
// block.
#define PI_SHARED(T, name, N)                                                                                          \
    auto &name = *static_cast<T(*)[N]>(::cuemu::W().static_shared(sizeof(T[N]), [] {                                   \
        static char k;                                                                                                 \
        return (const void *)&k;                                                                                       \
    }()))
#define PI_DYN_SHARED(T, name) T *name = reinterpret_cast<T *>(::cuemu::dyn_shared())

// ---- barriers and warp collectives
// ------------------------------------------------------------------------------------------
static inline void __syncthreads() { cuemu::W().barrier(0); }
static inline int __syncthreads_count(int p) {
    auto &w = cuemu::W();
    auto g = w.bar_gen;
    w.barrier(p);
    return w.bar_acc[g & 1][0];
}
static inline int __syncthreads_and(int p) {
    auto &w = cuemu::W();
    auto g = w.bar_gen;
    w.barrier(p);
    return w.bar_acc[g & 1][1];
}
static inline int __syncthreads_or(int p) {
    auto &w = cuemu::W();
    auto g = w.bar_gen;
    w.barrier(p);
    return w.bar_acc[g & 1][2];
}
static inline void __syncwarp(unsigned m = 0xffffffffu) { cuemu::W().collective(m, 1, 0); }
namespace cuemu {
template <class T>
static inline T shfl(unsigned mask, T v, int src, bool valid, int op) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    auto &w = W();
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    const uint64_t *s = w.collective(mask, op, u);
    int from = valid ? src : (int)w.cur->lane;
    if (!(mask >> from & 1))
        w.fail("shuffle reads a lane outside the mask");
    memcpy(&v, &s[from], sizeof v);
    return v;
}
} // namespace cuemu
template <class T>
static inline T __shfl_xor_sync(unsigned m, T v, int b, int width = 32) {
    int l = cuemu::W().cur->lane, j = l ^ b;
    return cuemu::shfl(m, v, j, j <= (l | (width - 1)), 2);
}
template <class T>
static inline T __shfl_down_sync(unsigned m, T v, unsigned d, int width = 32) {
    int l = cuemu::W().cur->lane, j = l + (int)d;
    return cuemu::shfl(m, v, j, j <= (l | (width - 1)), 3);
}
template <class T>
static inline T __shfl_up_sync(unsigned m, T v, unsigned d, int width = 32) {
    int l = cuemu::W().cur->lane, j = l - (int)d;
    return cuemu::shfl(m, v, j, j >= (l & ~(width - 1)), 4);
}
template <class T>
static inline T __shfl_sync(unsigned m, T v, int src, int width = 32) {
    int l = cuemu::W().cur->lane;
    return cuemu::shfl(m, v, (l & ~(width - 1)) | (src & (width - 1)), true, 5);
}
namespace cuemu {
// Sums over warps so far: products of a row and a token have one each, so they say how many rows were read.
inline std::atomic<uint64_t> warp_sums{0};
// The sum over all 32 lanes in one meeting, with the bits of a loop of __shfl_xor_sync (Worker::butterfly).
static inline float butterfly_sum(float v) {
    if (W().cur->lane == 0)
        warp_sums.fetch_add(1, std::memory_order_relaxed);
    uint64_t u = 0;
    memcpy(&u, &v, sizeof v);
    const uint64_t *s = W().collective(0xffffffffu, Worker::BUTTERFLY, u);
    memcpy(&v, &s[0], sizeof v);
    return v;
}
// c += a · b, of a whole warp (Worker::mma).
static inline void mma_m16n8k16(float *c, const uint32_t *a, const uint32_t *b) {
    const Worker::Fragments f{a, b, c};
    W().collective(0xffffffffu, Worker::MMA, (uint64_t)&f);
}
} // namespace cuemu
static inline unsigned __ballot_sync(unsigned m, int p) {
    const uint64_t *s = cuemu::W().collective(m, 6, p != 0);
    unsigned r = 0;
    for (int i = 0; i < 32; ++i)
        if (m >> i & 1 && s[i])
            r |= 1u << i;
    return r;
}
static inline int __any_sync(unsigned m, int p) { return __ballot_sync(m, p) != 0; }
static inline int __all_sync(unsigned m, int p) { return __ballot_sync(m, p) == m; }
static inline unsigned __reduce_add_sync(unsigned m, unsigned v) {
    const uint64_t *s = cuemu::W().collective(m, 7, v);
    unsigned r = 0;
    for (int i = 0; i < 32; ++i)
        if (m >> i & 1)
            r += (unsigned)s[i];
    return r;
}
