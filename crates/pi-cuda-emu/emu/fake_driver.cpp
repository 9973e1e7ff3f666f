// A fake libcuda.so.1: the part of the CUDA driver API that cudarc 0.19 reaches, on the CPU emulator.
// Streams are LAZY queues: nothing runs until somebody synchronises (stream / event / context / pageable D2H), so a
// host read without a wait, or a pinned staging buffer reused too early, gives wrong data every time instead of
// sometimes. Device memory: own mapping per allocation, filled with 0xff (NaN), in pieces of 512, slack checked on
// free, unmapped on free. Env:
//      CUEMU_MEM_MB (default 1024; allocations beyond it -> CUDA_ERROR_OUT_OF_MEMORY)
//      CUEMU_FAIL_AFTER=n (call n that touches a stream or memory fails, as do all that follow)
//      CUEMU_FAIL_CODE (with what: default 719, CUDA_ERROR_LAUNCH_FAILED)
//      CUEMU_NO_DEVICE=1 (cuInit -> CUDA_ERROR_NO_DEVICE), CUEMU_DRIVER=13000 (its version), CUEMU_CC=90 (compute
//      capability), CUEMU_EAGER=1 (run at once), CUEMU_THREADS, CUEMU_ORDER=fwd|rev|rand (default: in turns), CUEMU_NO_GRAPHS=1|2|3 (what fails
//      of a graph: the capture, making it, launching it)
#include "cuda_emu.hpp"
#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#define API extern "C" __attribute__((visibility("default"))) int
typedef unsigned long long dptr;
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    INVALID_IMAGE = 200,
    NO_BINARY = 209,
    INVALID_PTX = 218,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_FAILED = 719,
    ILLEGAL_STATE = 401,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900
};

typedef std::function<int()> Op;
struct Stream {
    std::deque<Op> q;
    uint64_t submitted = 0, done = 0;
    bool capturing = false;
    std::vector<Op> cap;
};
struct Event {
    Stream *s = nullptr;
    uint64_t seq = 0;
    std::shared_ptr<double> t = std::make_shared<double>(0);
};
struct Graph {
    std::vector<Op> ops;
};
struct Func {
    std::string name;
    const cuemu::Kernel *k;
    int max_dyn = 48 << 10;
};
struct Module {
    std::string ptx;
    std::map<std::string, std::vector<size_t>> entries;
    bool text = false;
    std::map<std::string, std::unique_ptr<Func>> funcs;
};
struct Alloc {
    size_t size, mapped;
    char *base;
};
static std::recursive_mutex mu;
#define LOCK std::lock_guard<std::recursive_mutex> lock(mu)
static std::map<dptr, Alloc> dev_mem;
static std::map<const char *, size_t> pinned;
static size_t dev_used = 0;
static Stream null_stream;
static std::set<Stream *> streams{&null_stream};
static int sticky = OK;
static std::string last_msg;
static thread_local void *cur_ctx = nullptr;
static int the_ctx;
static size_t env(const char *n, size_t d) {
    const char *e = getenv(n);
    return e && *e ? strtoull(e, nullptr, 10) : d;
}
static size_t memory = env("CUEMU_MEM_MB", 1024) << 20;
static size_t total_mem() { return memory; }
// A device that is lost: a call fails, and so does every one after it.
static size_t fail_after = env("CUEMU_FAIL_AFTER", 0); // calls until then; 0: never
static int fail_code = (int)env("CUEMU_FAIL_CODE", LAUNCH_FAILED);
static uint64_t calls = 0;
static int lost() {
    ++calls;
    if (!sticky && fail_after && --fail_after == 0)
        sticky = fail_code;
    return sticky;
}
// begins a call that a lost device fails
#define ALIVE                                                                                                          \
    LOCK;                                                                                                              \
    if (int gone = lost())                                                                                             \
        return gone;
static Stream *S(void *s) { return s == nullptr || s == (void *)1 || s == (void *)2 ? &null_stream : (Stream *)s; }
static double now() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
static int run_until(Stream *s, uint64_t seq) {
    while (s->done < seq && !s->q.empty()) {
        Op op = std::move(s->q.front());
        s->q.pop_front();
        ++s->done;
        if (sticky == OK) {
            int r = op();
            if (r)
                sticky = r;
        }
    }
    return sticky;
}
static int push(Stream *s, Op op) {
    if (s->capturing) {
        s->cap.push_back(std::move(op));
        return OK;
    }
    if (sticky)
        return sticky;
    s->q.push_back(std::move(op));
    ++s->submitted;
    static bool eager = env("CUEMU_EAGER", 0);
    return eager ? run_until(s, s->submitted) : OK;
}
static int fault(int code, const std::string &m) {
    last_msg = m;
    fprintf(stderr, "[cuemu] %s\n", m.c_str());
    return code;
}
// [p, p+n) must lie inside one live device allocation
static bool dev_ok(dptr p, size_t n) {
    auto it = dev_mem.upper_bound(p);
    if (it == dev_mem.begin())
        return false;
    --it;
    return p >= it->first && p + n <= it->first + it->second.size;
}
static bool is_pinned(const void *p) {
    auto it = pinned.upper_bound((const char *)p);
    if (it == pinned.begin())
        return false;
    --it;
    return (const char *)p < it->first + it->second;
}

// How often a function was called, and what tests count besides: `pageable`, copies from or to memory that is not pinned,
// for which a driver makes the host wait; `warp sums`, products of a row and a token.
static std::map<std::string, uint64_t> counted;
#define COUNT ++counted[__func__]
extern "C" __attribute__((visibility("default"))) uint64_t cuemu_called(const char *name) {
    LOCK;
    if (!strcmp(name, "warp sums"))
        return cuemu::warp_sums;
    auto it = counted.find(name);
    return it == counted.end() ? 0 : it->second;
}

extern "C" __attribute__((visibility("default"))) const char *cuemu_last_message() { return last_msg.c_str(); }
// For tests in the same process: a failure after so many calls (0: none), and none that was before.
extern "C" __attribute__((visibility("default"))) void cuemu_fail_after(size_t n, int code) {
    LOCK;
    sticky = OK;
    fail_after = n;
    fail_code = code;
}
extern "C" __attribute__((visibility("default"))) uint64_t cuemu_calls() {
    LOCK;
    return calls;
}
extern "C" __attribute__((visibility("default"))) void cuemu_set_memory(size_t bytes) {
    LOCK;
    memory = bytes;
}
// Which step of making and launching graphs fails (0: none): 1 capture, 2 instantiation, 3 launch.
static int no_graphs = (int)env("CUEMU_NO_GRAPHS", 0);
extern "C" __attribute__((visibility("default"))) void cuemu_refuse_graphs(int step) {
    LOCK;
    no_graphs = step;
}
// A stream that this thread captures: what would wait or allocate is refused meanwhile, as in CU_STREAM_CAPTURE_MODE_THREAD_LOCAL.
static thread_local Stream *captured = nullptr;
#define NOT_IN_CAPTURE                                                                                                 \
    if (captured)                                                                                                      \
        return CAPTURE_UNSUPPORTED;
API cuInit(unsigned) { return env("CUEMU_NO_DEVICE", 0) ? NO_DEVICE : OK; }
API cuDriverGetVersion(int *v) {
    *v = (int)env("CUEMU_DRIVER", 13000);
    return OK;
}
API cuGetErrorName(int e, const char **s) {
    static thread_local char b[32];
    snprintf(b, sizeof b, "CUEMU_ERROR_%d", e);
    *s = b;
    return OK;
}
API cuGetErrorString(int e, const char **s) {
    static thread_local char b[256];
    snprintf(b, sizeof b, "emulated CUDA error %d: %s", e, last_msg.c_str());
    *s = b;
    return OK;
}
API cuDeviceGetCount(int *n) {
    *n = 1;
    return OK;
}
API cuDeviceGet(int *d, int i) {
    if (i)
        return 101;
    *d = 0;
    return OK;
}
API cuDeviceGetName(char *n, int l, int) {
    snprintf(n, l, "cuemu CPU device");
    return OK;
}
API cuDeviceTotalMem_v2(size_t *b, int) {
    *b = total_mem();
    return OK;
}
API cuDeviceGetUuid_v2(char *u, int) {
    memset(u, 0xcb, 16);
    return OK;
}
API cuDeviceGetAttribute(int *v, int a, int) {
    switch (a) {
    case 1:
        *v = 1024;
        break;
    case 2:
    case 3:
        *v = 1024;
        break;
    case 4:
        *v = 64;
        break;
    case 5:
        *v = 0x7fffffff;
        break;
    case 6:
    case 7:
        *v = 65535;
        break;
    case 8:
        *v = 48 << 10;
        break;
    case 10:
        *v = 32;
        break;
    case 12:
        *v = 65536;
        break;
    case 16:
        *v = 1;
        break;
    case 38:
        *v = 1 << 20;
        break;
    case 75:
        *v = (int)env("CUEMU_CC", 90) / 10;
        break;
    case 76:
        *v = (int)env("CUEMU_CC", 90) % 10;
        break;
    case 97:
        *v = 227 << 10;
        break;
    case 115:
        *v = 1;
        break; // opt-in shared memory, memory pools
    default:
        *v = 0;
    }
    return OK;
}
API cuDevicePrimaryCtxRetain(void **c, int) {
    *c = &the_ctx;
    return OK;
}
API cuDevicePrimaryCtxRelease_v2(int) { return OK; }
API cuCtxGetCurrent(void **c) {
    *c = cur_ctx;
    return OK;
}
API cuCtxSetCurrent(void *c) {
    cur_ctx = c;
    return OK;
}
API cuCtxSetFlags(unsigned) { return OK; }
API cuCtxGetStreamPriorityRange(int *lo, int *hi) {
    *lo = 0;
    *hi = -5;
    return OK;
}
API cuCtxSynchronize() {
    ALIVE;
    NOT_IN_CAPTURE;
    COUNT;
    int r = sticky;
    for (auto s : std::vector<Stream *>(streams.begin(), streams.end()))
        r = run_until(s, s->submitted);
    return r;
}
API cuMemGetInfo_v2(size_t *f, size_t *t) {
    ALIVE;
    *t = total_mem();
    *f = total_mem() - dev_used;
    return OK;
}

API cuMemAlloc_v2(dptr *p, size_t n) {
    ALIVE;
    NOT_IN_CAPTURE;
    COUNT;
    if (n == 0)
        return INVALID_VALUE;
    size_t r = (n + 511) & ~size_t(511);
    if (dev_used + r > total_mem()) // what is freed in the order of a queue is free by then
        for (auto s : std::vector<Stream *>(streams.begin(), streams.end()))
            run_until(s, s->submitted);
    if (dev_used + r > total_mem())
        return OUT_OF_MEMORY;
    size_t m = (r + 4095) & ~size_t(4095);
    char *b = (char *)mmap(nullptr, m + 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b == MAP_FAILED)
        return OUT_OF_MEMORY;
    mprotect(b + 4096, m, PROT_READ | PROT_WRITE);
    memset(b + 4096, 0xff, m);
    dptr d = (dptr)(b + 4096 + m - r);
    dev_mem[d] = {n, m + 8192, b};
    dev_used += r;
    *p = d;
    return OK;
}
static int free_now(dptr p) {
    auto it = dev_mem.find(p);
    if (it == dev_mem.end())
        return fault(INVALID_VALUE, "free of an unknown device pointer");
    auto a = it->second;
    size_t r = (a.size + 511) & ~size_t(511);
    int rc = OK;
    for (size_t i = a.size; i < r; ++i)
        if (((unsigned char *)p)[i] != 0xff) {
            rc = fault(ILLEGAL_ADDRESS, "a kernel or copy wrote past the end of a device allocation");
            break;
        }
    dev_used -= r;
    munmap(a.base, a.mapped);
    dev_mem.erase(it);
    return rc;
}
API cuMemFree_v2(dptr p) {
    ALIVE;
    COUNT;
    for (auto s : std::vector<Stream *>(streams.begin(), streams.end()))
        run_until(s, s->submitted);
    return free_now(p);
}
API cuMemAllocAsync(dptr *p, size_t n, void *) { return n == 0 ? (*p = 0, OK) : cuMemAlloc_v2(p, n); }
API cuMemFreeAsync(dptr p, void *s) {
    ALIVE;
    COUNT;
    if (!p)
        return OK;
    return push(S(s), [p] { return free_now(p); });
}
API cuMemHostAlloc(void **p, size_t n, unsigned) {
    ALIVE;
    NOT_IN_CAPTURE;
    COUNT;
    *p = aligned_alloc(4096, (n + 4095) & ~size_t(4095));
    if (!*p)
        return OUT_OF_MEMORY;
    memset(*p, 0xff, n);
    pinned[(char *)*p] = n;
    return OK;
}
API cuMemFreeHost(void *p) {
    LOCK;
    pinned.erase((char *)p);
    free(p);
    return OK;
}
API cuMemHostRegister_v2(void *p, size_t n, unsigned) {
    LOCK;
    pinned[(char *)p] = n;
    return OK;
}
API cuMemHostUnregister(void *p) {
    LOCK;
    pinned.erase((char *)p);
    return OK;
}
API cuMemHostGetDevicePointer_v2(dptr *d, void *p, unsigned) {
    *d = (dptr)p;
    return OK;
}

API cuMemcpyHtoDAsync_v2(dptr d, const void *h, size_t n, void *s) {
    ALIVE;
    COUNT;
    if (!dev_ok(d, n))
        return fault(INVALID_VALUE, "H2D copy outside a device allocation");
    if (is_pinned(h))
        return push(S(s), [=] {
            memcpy((void *)d, h, n);
            return OK;
        }); // reads the host later, as a real DMA may
    ++counted["pageable"];
    auto v =
        std::make_shared<std::vector<char>>((const char *)h, (const char *)h + n); // pageable: staged before return
    return push(S(s), [=] {
        memcpy((void *)d, v->data(), n);
        return OK;
    });
}
API cuMemcpyDtoHAsync_v2(void *h, dptr d, size_t n, void *s) {
    ALIVE;
    COUNT;
    if (!dev_ok(d, n))
        return fault(INVALID_VALUE, "D2H copy outside a device allocation");
    Stream *st = S(s);
    if (st->capturing && !is_pinned(h))
        return CAPTURE_UNSUPPORTED;
    int r = push(st, [=] {
        memcpy(h, (void *)d, n);
        return OK;
    });
    if (r || is_pinned(h))
        return r;
    ++counted["pageable"];
    return run_until(st, st->submitted); // pageable: returns when done
}
API cuMemcpyDtoDAsync_v2(dptr a, dptr b, size_t n, void *s) {
    ALIVE;
    if (!dev_ok(a, n) || !dev_ok(b, n))
        return fault(INVALID_VALUE, "D2D copy outside a device allocation");
    return push(S(s), [=] {
        memmove((void *)a, (void *)b, n);
        return OK;
    });
}
API cuMemcpyHtoD_v2(dptr d, const void *h, size_t n) {
    LOCK;
    COUNT;
    cuCtxSynchronize();
    if (!dev_ok(d, n))
        return INVALID_VALUE;
    memcpy((void *)d, h, n);
    return OK;
}
API cuMemcpyDtoH_v2(void *h, dptr d, size_t n) {
    LOCK;
    COUNT;
    cuCtxSynchronize();
    if (!dev_ok(d, n))
        return INVALID_VALUE;
    memcpy(h, (void *)d, n);
    return OK;
}
API cuMemsetD8Async(dptr d, unsigned char c, size_t n, void *s) {
    ALIVE;
    if (!dev_ok(d, n))
        return INVALID_VALUE;
    return push(S(s), [=] {
        memset((void *)d, c, n);
        return OK;
    });
}

API cuStreamCreate(void **s, unsigned) {
    ALIVE;
    auto p = new Stream;
    streams.insert(p);
    *s = p;
    return OK;
}
API cuStreamCreateWithPriority(void **s, unsigned f, int) { return cuStreamCreate(s, f); }
API cuStreamSynchronize(void *s) {
    ALIVE;
    NOT_IN_CAPTURE;
    COUNT;
    return run_until(S(s), S(s)->submitted);
}
API cuStreamQuery(void *s) {
    LOCK;
    return S(s)->q.empty() ? sticky : NOT_READY;
}
API cuStreamDestroy_v2(void *s) {
    LOCK;
    run_until(S(s), S(s)->submitted);
    streams.erase(S(s)); /* leaked on purpose: events may point at it */
    return OK;
}
API cuEventCreate(void **e, unsigned) {
    *e = new Event;
    return OK;
}
API cuEventDestroy_v2(void *e) {
    LOCK;
    delete (Event *)e;
    return OK;
}
API cuEventRecord(void *ev, void *s) {
    ALIVE;
    COUNT;
    auto e = (Event *)ev;
    auto t = e->t;
    int r = push(S(s), [t] {
        *t = now();
        return OK;
    });
    if (!S(s)->capturing) {
        e->s = S(s);
        e->seq = S(s)->submitted;
    }
    return r;
}
API cuStreamWaitEvent(void *s, void *ev, unsigned) {
    ALIVE;
    COUNT;
    auto e = (Event *)ev;
    if (!e->s)
        return OK;
    if (S(s)->capturing)
        return CAPTURE_UNSUPPORTED;
    Stream *from = e->s;
    uint64_t q = e->seq;
    if (from == S(s))
        return OK;
    return push(S(s), [=] { return run_until(from, q); });
}
API cuEventSynchronize(void *ev) {
    ALIVE;
    COUNT;
    auto e = (Event *)ev;
    return e->s ? run_until(e->s, e->seq) : OK;
}
API cuEventQuery(void *ev) {
    LOCK;
    COUNT;
    auto e = (Event *)ev;
    return !e->s || e->s->done >= e->seq ? sticky : NOT_READY;
}
API cuEventElapsedTime_v2(float *ms, void *a, void *b) {
    LOCK;
    COUNT;
    *ms = (float)(*((Event *)b)->t - *((Event *)a)->t);
    return OK;
}
API cuEventElapsedTime(float *ms, void *a, void *b) { return cuEventElapsedTime_v2(ms, a, b); }
API cuLaunchHostFunc(void *s, void (*f)(void *), void *u) {
    LOCK;
    return push(S(s), [=] {
        f(u);
        return OK;
    });
}

API cuModuleLoadData(void **m, const void *image) {
    ALIVE;
    COUNT;
    auto p = (const char *)image;
    auto mod = std::make_unique<Module>();
    if (!memcmp(p,
                "\x7f"
                "ELF",
                4) ||
        !memcmp(p, "\x50\xed\x55\xba", 4)) {
        *m = mod.release();
        return OK;
    } // cubin / fatbin: taken on trust
    mod->text = true;
    mod->ptx = p;
    if (mod->ptx.find(".version") == std::string::npos)
        return fault(INVALID_PTX, "not PTX");
    static const std::map<std::string, size_t> sz{{"u8", 1},  {"s8", 1},  {"b8", 1},  {"u16", 2}, {"b16", 2},
                                                  {"u32", 4}, {"s32", 4}, {"f32", 4}, {"b32", 4}, {"u64", 8},
                                                  {"s64", 8}, {"f64", 8}, {"b64", 8}};
    for (size_t at = 0; (at = mod->ptx.find(".entry ", at)) != std::string::npos;) {
        size_t o = mod->ptx.find('(', at), c = mod->ptx.find(')', o);
        std::string name = mod->ptx.substr(at + 7, o - at - 7), ps = mod->ptx.substr(o, c - o);
        while (!name.empty() && isspace((unsigned char)name.back()))
            name.pop_back();
        auto &v = mod->entries[name];
        for (size_t q = 0; (q = ps.find(".param ", q)) != std::string::npos; q += 7) {
            size_t d = ps.find('.', q + 7);
            if (d == std::string::npos)
                break;
            size_t e = ps.find_first_of(" \t", d);
            auto f = sz.find(ps.substr(d + 1, e - d - 1));
            v.push_back(f == sz.end() ? 0 : f->second);
        }
        at = c;
    }
    *m = mod.release();
    return OK;
}
API cuModuleUnload(void *m) {
    LOCK;
    for (auto s : std::vector<Stream *>(streams.begin(), streams.end()))
        run_until(s, s->submitted);
    delete (Module *)m;
    return OK;
}
API cuModuleGetFunction(void **f, void *m, const char *name) {
    ALIVE;
    auto mod = (Module *)m;
    auto it = cuemu::registry().find(name);
    if (mod->text) {
        auto e = mod->entries.find(name);
        if (e == mod->entries.end())
            return NOT_FOUND;
        if (it == cuemu::registry().end())
            return fault(NOT_FOUND, std::string("kernel is in the PTX but not emulated: ") + name);
        if (e->second != it->second.sizes)
            return fault(INVALID_IMAGE, std::string("PTX and emulated source disagree on the parameters of ") + name);
    } else if (it == cuemu::registry().end())
        return NOT_FOUND;
    auto &u = mod->funcs[name];
    if (!u)
        u.reset(new Func{name, &it->second});
    *f = u.get();
    return OK;
}
API cuFuncGetAttribute(int *v, int, void *) {
    *v = 0;
    return OK;
}
API cuFuncSetAttribute(void *f, int a, int v) {
    if (a == 8)
        ((Func *)f)->max_dyn = v;
    return v > (227 << 10) ? INVALID_VALUE : OK;
}
API cuLaunchKernel(void *fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned smem, void *s, void **params, void **) {
    ALIVE;
    ++counted[S(s)->capturing ? "captured" : __func__]; // a kernel that is captured does not run
    auto f = (Func *)fn;
    if (!gx || !gy || !gz || !bx || !by || !bz || (uint64_t)bx * by * bz > 1024 || gy > 65535 || gz > 65535 ||
        bz > 64 || (int)smem > f->max_dyn)
        return fault(INVALID_VALUE, "invalid launch configuration of " + f->name);
    auto args = std::make_shared<std::vector<std::vector<char>>>();
    for (size_t i = 0; i < f->k->sizes.size(); ++i)
        args->emplace_back((char *)params[i], (char *)params[i] + f->k->sizes[i]);
    return push(S(s), [=] {
        std::vector<void *> p;
        for (auto &a : *args)
            p.push_back(a.data());
        const char *o = getenv("CUEMU_ORDER");
        cuemu::Options op;
        op.threads = (int)env("CUEMU_THREADS", 1);
        static uint64_t launches = 0;
        op.seed = ++launches;
        const cuemu::Order turns[] = {cuemu::Order::Forward, cuemu::Order::Reverse, cuemu::Order::Random};
        op.order = !o                       ? turns[launches % 3]
                   : !strcmp(o, "rev")  ? cuemu::Order::Reverse
                   : !strcmp(o, "rand") ? cuemu::Order::Random
                                        : cuemu::Order::Forward;
        auto r = cuemu::launch(*f->k, {gx, gy, gz}, {bx, by, bz}, smem, p.data(), op);
        return r.error.empty() ? OK : fault(LAUNCH_FAILED, f->name + ": " + r.error);
    });
}
API cuStreamBeginCapture_v2(void *s, int) {
    ALIVE;
    COUNT;
    if (no_graphs == 1)
        return NOT_SUPPORTED;
    if (captured || S(s)->capturing || S(s) == &null_stream)
        return ILLEGAL_STATE;
    captured = S(s);
    captured->capturing = true;
    captured->cap.clear();
    return OK;
}
API cuStreamEndCapture(void *s, void **g) {
    LOCK;
    int gone = lost();
    *g = nullptr;
    if (!S(s)->capturing || captured != S(s))
        return gone ? gone : ILLEGAL_STATE;
    captured->capturing = false;
    captured = nullptr;
    if (gone)
        return gone;
    *g = new Graph{std::move(S(s)->cap)};
    return OK;
}
API cuStreamIsCapturing(void *s, int *st) {
    LOCK;
    *st = S(s)->capturing;
    return OK;
}
static std::set<void *> executable; // graphs that are there
API cuGraphInstantiateWithFlags(void **e, void *g, unsigned long long) {
    ALIVE;
    COUNT;
    if (no_graphs == 2)
        return NOT_SUPPORTED;
    executable.insert(*e = new Graph(*(Graph *)g));
    return OK;
}
API cuGraphLaunch(void *e, void *s) {
    ALIVE;
    COUNT;
    if (no_graphs == 3)
        return OUT_OF_MEMORY; // a graph that is launched first takes memory
    if (!executable.count(e))
        return fault(INVALID_VALUE, "launch of a graph that is not there");
    for (auto &o : ((Graph *)e)->ops) {
        ++counted["replayed"];
        int r = push(S(s), o);
        if (r)
            return r;
    }
    return OK;
}
API cuGraphUpload(void *, void *) { return OK; }
API cuGraphExecDestroy(void *e) {
    LOCK;
    COUNT;
    if (!executable.erase(e))
        return fault(INVALID_VALUE, "a graph is destroyed that is not there");
    delete (Graph *)e;
    return OK;
}
API cuGraphDestroy(void *g) {
    LOCK;
    COUNT;
    delete (Graph *)g;
    return OK;
}
