// Stands in for impl/ops/cuda/hopper.cuh: what its instructions mean, in C++.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

inline uint4 load16_cached(const __nv_bfloat16* p) { return *(const uint4*)p; }
inline uint4 load16_fresh(const __nv_bfloat16* p) { return *(const uint4*)p; }
inline float load_fresh(const float* p) { return *p; }
inline void store16(__nv_bfloat16* p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) { *(uint4*)p = make_uint4(a, b, c, d); }

enum Hint { STREAMING = 0, PLAIN = 1, NO_ALLOCATE = 2 };
template <int HINT>
uint4 load(const __nv_bfloat16* p) { return *(const uint4*)p; }
template <int HINT>
void store(__nv_bfloat16* p, const uint32_t (&v)[4]) { *(uint4*)p = make_uint4(v[0], v[1], v[2], v[3]); }

inline float low(uint32_t pair) { return __uint_as_float(pair << 16); }
inline float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

inline uint32_t rounded(float v) {  // to bf16, to nearest even
    const uint32_t bits = __float_as_uint(v);
    if (v != v) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline uint32_t pack(float lo, float hi) { return rounded(lo) | rounded(hi) << 16; }
inline uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// A [16 x 16]: lane (g, t) brings rows g and g + 8, columns 2t, 2t + 1 and those + 8. B [16 x 8]: rows likewise, column g.
inline void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    auto* words = emulator::exchange(mine, 6);
    const int lane = emulator::now->index % 32, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        for (int k = 0; k < 16; k++) {
            const uint32_t x = words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            const uint32_t y = words[column * 4 + k % 8 / 2][4 + k / 8];
            d[i] += (k % 2 ? high(x) : low(x)) * (k % 2 ? high(y) : low(y));
        }
    }
}

inline int cluster_rank() { return emulator::now->block->rank; }
inline char* dynamic_shared() { return emulator::now->block->base(); }
inline void cluster_barrier() {
    emulator::meet(emulator::cluster->meeting, (int)emulator::cluster->threads.size(), "its cluster");
}
inline void barrier_of(int number, int threads) { emulator::meet(emulator::now->block->barriers[number], threads, "a named barrier"); }
inline void launch_dependents() {}
inline void wait_for_prerequisites() {}

// A barrier of bytes in 64 bits: those still to come, whether its one arrival has been, its phase.
struct Count {
    int32_t bytes;
    int16_t arrived, phase;
};
inline Count& count(uint64_t* barrier) { return *(Count*)barrier; }
inline void settle(Count& c) {
    if (c.arrived && c.bytes == 0) c.arrived = 0, c.phase ^= 1;
}
inline void barrier_init(uint64_t* barrier) { count(barrier) = {0, 0, 0}; }
inline void barrier_init_seen() {}
inline void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    Count& c = count(barrier);
    if (c.arrived) fprintf(stderr, "emulator: two arrivals in one phase\n"), abort();
    c.arrived = 1, c.bytes += (int32_t)bytes;
    settle(c);
}
inline bool sometimes() {
    static std::mt19937_64 random(11);
    return random() & 1;
}
// Boxes of a barrier come, one after the other, while somebody looks.
inline void barrier_wait(uint64_t* barrier, uint32_t phase) {
    emulator::wait_for("bytes of its barrier", [&] {
        auto& boxes = emulator::now->block->boxes;
        for (size_t i = 0; i < boxes.size(); i++)
            if (boxes[i].first == barrier && sometimes()) {
                auto come = boxes[i].second;
                boxes.erase(boxes.begin() + i);
                come();
                break;
            }
        return (uint32_t)count(barrier).phase != phase;
    });
}

template <class T>
void send(T* place, uint64_t* barrier, int rank, T value) {
    auto& blocks = emulator::cluster->blocks;
    char* there = blocks[rank]->base();
    char* here = emulator::now->block->base();
    *(T*)(there + ((char*)place - here)) = value;
    Count& c = count((uint64_t*)(there + ((char*)barrier - here)));
    c.bytes -= (int32_t)sizeof(T);
    settle(c);
}

inline void fetch(void* place, const void* from, uint32_t bytes, uint64_t* barrier) {
    if ((uintptr_t)place % 16 || (uintptr_t)from % 16 || bytes % 16) fprintf(stderr, "emulator: a fetch off 16 bytes\n"), abort();
    memcpy(place, from, bytes);
    count(barrier).bytes -= (int32_t)bytes;
    settle(count(barrier));
}

inline uint32_t shared_address(const void* p) { return (uint32_t)((const char*)p - emulator::now->block->base()); }
// At once, or as late as it may be.
inline void copy16(uint32_t address, const void* from, bool wanted = true) {
    if (!wanted) return;
    char* place = emulator::now->block->base() + address;
    if ((uintptr_t)place % 16 || (uintptr_t)from % 16) fprintf(stderr, "emulator: a copy off 16 bytes\n"), abort();
    static std::mt19937_64 random(7);
    if (random() & 1) memcpy(place, from, 16);
    else emulator::now->copies.push_back({place, (const char*)from});
}
inline void store16_kept(__nv_bfloat16* p, const uint4& v) {
    if ((uintptr_t)p % 16) fprintf(stderr, "emulator: a store off 16 bytes\n"), abort();
    memcpy(p, &v, 16);
}
inline void wait_copies() {
    for (auto& copy : emulator::now->copies) memcpy(copy.place, copy.from, 16);
    emulator::now->copies.clear();
}

constexpr int COLUMNS_OF_BOX = 64;
struct BoxMap {
    char* base;
    int tokens, streams, hidden;
    // Memory and place in a box of every piece of 16 bytes; no memory for tokens beyond.
    template <class Visit>
    void pieces(int column, int token, Visit visit) const {
        for (int i = 0; i < streams; i++)
            for (int t = 0; t < 16; t++)
                for (int piece = 0; piece < 8; piece++) {
                    const int row = i * 16 + t;
                    char* memory = base + (((size_t)(token + t) * streams + i) * hidden + column + piece * 8) * 2;
                    visit(token + t < tokens ? memory : nullptr, row * 128 + (piece ^ (row & 7)) * 16);
                }
    }
};
inline cudaError_t make_box_map(BoxMap* map, const void* from, int tokens, int streams, int hidden) {
    *map = {(char*)from, tokens, streams, hidden};
    return cudaSuccess;
}
inline void check_box(const void* place, int column) {
    if (((const char*)place - emulator::now->block->base()) % 1024 || column % 8) fprintf(stderr, "emulator: a box off its places\n"), abort();
}
inline void fetch_box(void* place, const BoxMap& map, int column, int token, uint64_t* barrier) {
    check_box(place, column);
    const BoxMap kept = map;
    emulator::now->block->boxes.push_back({barrier, [=] {
        kept.pieces(column, token, [&](char* memory, int at) {
            memory ? memcpy((char*)place + at, memory, 16) : memset((char*)place + at, 0, 16);
            count(barrier).bytes -= 16;
        });
        settle(count(barrier));
    }});
}
inline void count_up(int* count) { ++*count; }
inline void wait_count(const int* count, int wanted) {
    emulator::wait_for("a count", [&] { return *count >= wanted; });
    if (*count > wanted) fprintf(stderr, "emulator: a count of %d where %d end it\n", *count, wanted), abort();
}

inline float reciprocal(float v) { return 1.0f / v; }
inline float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}
