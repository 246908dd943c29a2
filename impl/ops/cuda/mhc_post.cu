// mHC POST and POST to the mean for Hopper: 8 columns of one token a thread, 16 bytes an access, no shared memory.

#include "mhc_parts.cuh"

template <int THREADS, int HINT, bool MEAN>
__global__ void __launch_bounds__(THREADS) post_kernel(const Args a) {
    constexpr int PARTS = HIDDEN / 8 / THREADS;
    const size_t token = blockIdx.x / PARTS, column = (blockIdx.x % PARTS * THREADS + threadIdx.x) * 8;
    const __nv_bfloat16* residual = a.residual + token * STREAMS * HIDDEN + column;
    const uint4 r0 = load<HINT>(residual), r1 = load<HINT>(residual + HIDDEN);
    const uint4 r2 = load<HINT>(residual + 2 * HIDDEN), r3 = load<HINT>(residual + 3 * HIDDEN);
    const uint4 y = load<HINT>(a.y + token * HIDDEN + column);
    float g[GATES];
    *(float4*)g = __ldg((const float4*)(a.post + token * 4));
#pragma unroll
    for (int i = 0; i < STREAMS; i++) *(float4*)(g + 4 + 4 * i) = __ldg((const float4*)(a.comb + token * 16) + i);
    uint32_t out[STREAMS][4], mean[4];
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const uint32_t old[4] = {word(r0, p), word(r1, p), word(r2, p), word(r3, p)};
        float total[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < STREAMS; j++) {
            const float c[4] = {g[4 + j], g[8 + j], g[12 + j], g[16 + j]};
            out[j][p] = new_pair(g[j], c, word(y, p), old);
            if (MEAN) total[0] = __fadd_rn(total[0], low(out[j][p])), total[1] = __fadd_rn(total[1], high(out[j][p]));
        }
        mean[p] = MEAN ? pack(total[0] * 0.25f, total[1] * 0.25f) : 0;
    }
    if constexpr (MEAN) {
        store<HINT>(a.mean + token * a.mean_row + column, mean);
    } else {
#pragma unroll
        for (int j = 0; j < STREAMS; j++) store<HINT>(a.residual_out + (token * STREAMS + j) * HIDDEN + column, out[j]);
    }
}

template <int THREADS, int HINT>
int launch(const Args& a, cudaStream_t stream) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(a.tokens * (HIDDEN / 8 / THREADS));
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    if (a.mean != nullptr) return cudaLaunchKernelEx(&config, post_kernel<THREADS, HINT, true>, a);
    return cudaLaunchKernelEx(&config, post_kernel<THREADS, HINT, false>, a);
}

// The mean where `mean` is given, else the streams. Returns a cudaError_t; -1 for what was not compiled.
extern "C" int mhc_post_launch(int threads, int hint, const Args* a, void* stream) {
    cudaStream_t on = (cudaStream_t)stream;
#define PICK(T, H) if (threads == T && hint == H) return launch<T, H>(*a, on);
    PICK(128, STREAMING) PICK(256, STREAMING) PICK(512, STREAMING)
    PICK(128, PLAIN) PICK(256, PLAIN) PICK(512, PLAIN)
    PICK(128, NO_ALLOCATE) PICK(256, NO_ALLOCATE) PICK(512, NO_ALLOCATE)
    return -1;
}

extern "C" const char* mhc_post_error(int code) { return cudaGetErrorString((cudaError_t)code); }
