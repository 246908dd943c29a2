// Stands in for CUDA's header of this name, so that kernels compile as C++ and run on a CPU: a CUDA thread is a fiber, the
// blocks of a cluster run side by side, clusters one after the other. A fiber gives way where it waits for others; whose
// turn is next is drawn at random, so that an order that the kernels do not ask for is not there either. Everything
// that waits for what never comes ends the process with a message.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <memory>
#include <random>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __shared__ static  // of kernels that run a block at a time
#define INFINITY __builtin_inff()

struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

namespace emulator {

struct Meeting {  // of some threads, again and again
    int here = 0, turn = 0;
};

struct Warp {
    Meeting meeting;
    uint32_t words[2][32][8];  // what each lane has brought, by the turn's parity
};

struct Block {
    int rank;
    dim3 index;
    std::vector<char> shared;
    Meeting barriers[16];
    std::vector<Warp> warps;
    std::vector<std::pair<void*, std::function<void()>>> boxes;  // on their way, with their barrier
    char* base() { return (char*)(((uintptr_t)shared.data() + 1023) & ~(uintptr_t)1023); }
};

struct Copy {  // on its way
    char* place;
    const char* from;
};

struct Thread {
    std::vector<Copy> copies;
    ucontext_t context;
    std::vector<char> stack;
    Block* block;
    unsigned index;
    bool done = false;
};

struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Thread>> threads;
    Meeting meeting;
    dim3 grid, block_size;
    ucontext_t scheduler;
    std::function<void()> kernel;
    long idle = 0;  // turns in which nothing happened
};

inline Cluster* cluster;
inline Thread* now;
inline uint64_t seed = 1;

inline void give_way() { swapcontext(&now->context, &cluster->scheduler); }

template <class Done>
void wait_for(const char* what, Done done) {
    while (!done()) {
        if (++cluster->idle > 400L * (long)cluster->threads.size() + 100000) {
            fprintf(stderr, "emulator: block %d thread %u waits for ever: %s\n", now->block->rank, now->index, what);
            abort();
        }
        give_way();
    }
    cluster->idle = 0;
}

inline void meet(Meeting& m, int count, const char* what) {
    const int turn = m.turn;
    if (++m.here == count) {
        m.here = 0;
        m.turn++;
        return;
    }
    wait_for(what, [&] { return m.turn != turn; });
}

// Brings words to the warp; returns all lanes' words.
inline uint32_t (*exchange(const uint32_t* mine, int count))[8] {
    Warp& warp = now->block->warps[now->index / 32];
    auto* words = warp.words[warp.meeting.turn & 1];
    memcpy(words[now->index % 32], mine, 4 * count);
    meet(warp.meeting, 32, "its warp");
    return words;
}

inline void enter() {
    cluster->kernel();
    now->done = true;
    give_way();
}

inline void run_cluster(Cluster& c) {
    cluster = &c;
    std::mt19937_64 random(seed++);
    std::vector<Thread*> left;
    for (auto& t : c.threads) left.push_back(t.get());
    // Warps in random order, over and over; a thread runs until it has to wait.
    while (!left.empty()) {
        std::vector<size_t> starts;
        for (size_t i = 0; i < left.size(); i += 32) starts.push_back(i);
        for (size_t i = starts.size(); i > 1; i--) std::swap(starts[i - 1], starts[random() % i]);
        for (size_t start : starts) {
            const int times = 1 + random() % 3;  // some get further ahead than others
            for (int time = 0; time < times; time++)
                for (size_t i = start; i < start + 32 && i < left.size(); i++) {
                    if (left[i]->done) continue;
                    now = left[i];
                    swapcontext(&c.scheduler, &now->context);
                }
        }
        std::vector<Thread*> still;
        for (Thread* t : left)
            if (!t->done) still.push_back(t);
        left.swap(still);
    }
}

inline Cluster make_cluster(int size, dim3 first, dim3 grid, dim3 block_size, size_t shared) {
    Cluster c;
    c.grid = grid, c.block_size = block_size;
    for (int rank = 0; rank < size; rank++) {
        auto block = std::make_unique<Block>();
        block->rank = rank;
        block->index = first, block->index.x += rank;
        block->shared.assign(shared + 1024, (char)0xff);  // NaN until written
        block->warps.resize((block_size.x + 31) / 32);
        for (unsigned i = 0; i < block_size.x; i++) {
            auto thread = std::make_unique<Thread>();
            thread->block = block.get(), thread->index = i;
            thread->stack.resize(48 << 10);
            c.threads.push_back(std::move(thread));
        }
        c.blocks.push_back(std::move(block));
    }
    return c;
}

}  // namespace emulator

struct ThreadIdx {
    struct { operator unsigned() const { return emulator::now->index; } } x;
} inline threadIdx;
struct BlockIdx {
    struct { operator unsigned() const { return emulator::now->block->index.x; } } x;
    struct { operator unsigned() const { return emulator::now->block->index.y; } } y;
} inline blockIdx;
struct GridDim {
    struct { operator unsigned() const { return emulator::cluster->grid.x; } } x;
} inline gridDim;

inline void __syncthreads() { emulator::meet(emulator::now->block->barriers[0], emulator::cluster->block_size.x, "__syncthreads"); }
inline void __syncwarp() { emulator::exchange(nullptr, 0); }

template <class T>
T __shfl_sync(uint32_t, T value, int lane) {
    uint32_t mine[1];
    memcpy(mine, &value, 4);
    memcpy(&value, emulator::exchange(mine, 1)[lane & 31], 4);
    return value;
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int other) { return __shfl_sync(mask, value, (int)(emulator::now->index % 32) ^ other); }
template <class T>
T __ldg(const T* p) { return *p; }

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __expf(float v) { return expf(v); }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline float __uint_as_float(uint32_t v) { float f; memcpy(&f, &v, 4); return f; }
inline uint32_t __float_as_uint(float v) { uint32_t u; memcpy(&u, &v, 4); return u; }

typedef int cudaError_t;
typedef void* cudaStream_t;
enum { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9, cudaErrorInvalidDevice = 101, cudaErrorLaunchOutOfResources = 701 };
enum { cudaLaunchAttributeClusterDimension = 4, cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributeNonPortableClusterSizeAllowed };
struct cudaLaunchAttribute {
    int id;
    struct {
        struct { unsigned x, y, z; } clusterDim;
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    unsigned numAttrs;
};
template <class K>
cudaError_t cudaFuncSetAttribute(K, int, size_t) { return cudaSuccess; }
extern "C" {
__attribute__((used)) inline int emulator_resident = 1;  // clusters that fit at once
__attribute__((used)) inline int emulator_clusters = 0;  // of the last launch
}
template <class K>
cudaError_t cudaOccupancyMaxActiveClusters(int* found, K, const cudaLaunchConfig_t*) {
    *found = emulator_resident;
    return cudaSuccess;
}
enum { cudaDevAttrMultiProcessorCount = 16 };
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, int, int) { return *value = 16 * emulator_resident, cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "an error of the emulator"; }

inline cudaError_t cudaMemsetAsync(void* place, int value, size_t bytes, cudaStream_t) { return memset(place, value, bytes), cudaSuccess; }

template <class... Parameters, class... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...), Given... given) {
    unsigned size = 1;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) size = config->attrs[i].val.clusterDim.x;
    emulator_clusters = (int)(config->gridDim.x / size);
    for (unsigned y = 0; y < config->gridDim.y; y++)
        for (unsigned x = 0; x < config->gridDim.x; x += size) {
            auto c = emulator::make_cluster(size, dim3(x, y, 0), config->gridDim, config->blockDim, config->dynamicSmemBytes);
            c.kernel = [&] { kernel(given...); };
            for (auto& t : c.threads) {
                getcontext(&t->context);
                t->context.uc_stack.ss_sp = t->stack.data();
                t->context.uc_stack.ss_size = t->stack.size();
                t->context.uc_link = nullptr;
                makecontext(&t->context, emulator::enter, 0);
            }
            emulator::run_cluster(c);
        }
    return cudaSuccess;
}
