// Hopper's instructions as functions: 16-byte accesses, mma, clusters, barriers that count bytes. Nothing else here has
// assembly, so that the kernels also run where these functions are written in C++ (tests/impl/ops/cuda/emulator).

#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

__device__ __forceinline__ void store16(__nv_bfloat16* p, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

__device__ __forceinline__ uint4 load16_cached(const __nv_bfloat16* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// Past the first-level cache, which may hold what was there before the first kernel wrote.
__device__ __forceinline__ uint4 load16_fresh(const __nv_bfloat16* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ float load_fresh(const float* p) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p));
    return v;
}

// How a stream of bytes that is read or written once goes past the caches.
enum Hint { STREAMING = 0, PLAIN = 1, NO_ALLOCATE = 2 };

template <int HINT>
__device__ __forceinline__ uint4 load(const __nv_bfloat16* p) {
    uint4 v;
    if (HINT == STREAMING)
        asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    else if (HINT == PLAIN)
        asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    else
        asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

template <int HINT>
__device__ __forceinline__ void store(__nv_bfloat16* p, const uint32_t (&v)[4]) {
    if (HINT == STREAMING) store16(p, v[0], v[1], v[2], v[3]);
    else *(uint4*)p = make_uint4(v[0], v[1], v[2], v[3]);
}

__device__ __forceinline__ float low(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ uint32_t pack(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

__device__ __forceinline__ uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void cluster_barrier() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(uint64_t* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void barrier_init_seen() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// The barrier's one arrival of this phase, which ends once so many bytes have come.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t phase) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
        ::"r"(shared_address(barrier)), "r"(phase) : "memory");
}

__device__ __forceinline__ uint32_t address_in(const void* p, int rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(p)), "r"(rank));
    return there;
}

// Write to the same place in the shared memory of another block, and tell its barrier.
__device__ __forceinline__ void send(float* place, uint64_t* barrier, int rank, float value) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 ::"r"(address_in(place, rank)), "r"(__float_as_uint(value)), "r"(address_in(barrier, rank)) : "memory");
}

__device__ __forceinline__ void send(float4* place, uint64_t* barrier, int rank, float4 value) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];"
                 ::"r"(address_in(place, rank)), "r"(__float_as_uint(value.x)), "r"(__float_as_uint(value.y)),
                 "r"(__float_as_uint(value.z)), "r"(__float_as_uint(value.w)), "r"(address_in(barrier, rank)) : "memory");
}

// A barrier of some warps of the block, by its number; 0 is __syncthreads's.
__device__ __forceinline__ void barrier_of(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Bytes from global to this block's shared memory by the copy engine; both ends and the count are multiples of 16.
__device__ __forceinline__ void fetch(void* place, const void* from, uint32_t bytes, uint64_t* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address(place)), "l"(from), "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

// 16 bytes from global to an address of shared memory past registers, where wanted; the rest of the line comes to the
// second-level cache. Seen by this thread after wait_copies, by others after a barrier behind that. The predicate is the
// instruction's own: of a branch around each copy the compiler made a fifth more instructions.
__device__ __forceinline__ void copy16(uint32_t place, const void* from, bool wanted = true) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p cp.async.cg.shared.global.L2::128B [%0], [%1], 16; }"
                 ::"r"(place), "l"(from), "r"((int)wanted) : "memory");
}

__device__ __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

constexpr uint64_t GIVEN_UP_LAST = 0x14F0000000000000;  // what createpolicy.fractional.L2::evict_last makes of 1.0

// 16 bytes that another kernel reads soon: the second-level cache gives up what was only read before these.
__device__ __forceinline__ void store16_kept(__nv_bfloat16* p, const uint4& v) {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1,%2,%3,%4}, %5;"
                 ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "l"(GIVEN_UP_LAST) : "memory");
}

// A box of COLUMNS_OF_BOX columns, 16 tokens and all streams from memory to shared memory, one instruction a box. In shared
// memory a row of a box has 128 bytes, rows of one stream lie together, and a row's pieces of 16 bytes are swapped by the
// row's number (`piece_at`), so that boxes begin at multiples of 1,024 bytes.
constexpr int COLUMNS_OF_BOX = 64;
using BoxMap = CUtensorMap;

// The map of bf16 [tokens, streams, hidden]: tokens beyond are read as 0.
inline cudaError_t make_box_map(BoxMap* map, const void* from, int tokens, int streams, int hidden) {
    static decltype(&cuTensorMapEncodeTiled) encode = nullptr;
    if (encode == nullptr) {
        cudaDriverEntryPointQueryResult found;
        const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void**)&encode, 12000, cudaEnableDefault, &found);
        if (error != cudaSuccess) return error;
        if (found != cudaDriverEntryPointSuccess) return encode = nullptr, cudaErrorNotSupported;
    }
    const cuuint64_t sizes[3] = {(cuuint64_t)hidden, (cuuint64_t)tokens, (cuuint64_t)streams};
    const cuuint64_t strides[2] = {(cuuint64_t)streams * hidden * 2, (cuuint64_t)hidden * 2};
    const cuuint32_t box[3] = {COLUMNS_OF_BOX, 16, (cuuint32_t)streams}, steps[3] = {1, 1, 1};
    const CUresult done = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(from), sizes, strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return done == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

__device__ __forceinline__ void fetch_box(void* place, const BoxMap& map, int column, int token, uint64_t* barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, 0}], [%4];"
                 ::"r"(shared_address(place)), "l"(&map), "r"(column), "r"(token), "r"(shared_address(barrier)) : "memory");
}

// A count in global memory between blocks: who has seen it sees all that was written before it was raised.
__device__ __forceinline__ void count_up(int* count) { asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(count) : "memory"); }

// Looks, gives way, and looks again; what makes the writes before the count visible comes once, at the end.
__device__ __forceinline__ void wait_count(const int* count, int wanted) {
    int found;
    while (true) {
        asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(count) : "memory");
        if (found >= wanted) break;
        __nanosleep(128);
    }
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

__device__ __forceinline__ float reciprocal(float v) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

// Dependents of this grid may be launched now; they wait for its end. Both do nothing where there are none.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void wait_for_prerequisites() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ char* dynamic_shared() {
    extern __shared__ __align__(1024) char raw[];
    return raw;
}

__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

__device__ __forceinline__ int cluster_rank() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
