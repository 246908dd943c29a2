// What the mHC kernels share: arguments, the layout of shared memory, fn in fragment order, POST gates and Sinkhorn.

#pragma once

#include "hopper.cuh"

#ifndef HIDDEN
#define HIDDEN 4096
#endif

constexpr int STREAMS = 4, CLUSTER = 8, TILE = 16, GATES = 20;  // GATES: post and comb of one token
constexpr int COLUMNS = HIDDEN / CLUSTER, GROUPS = COLUMNS / 32;
constexpr int SLOTS = 8;                // partial products kept side by side in a block
constexpr int KEPT = 64, KEPT_ROW = 21;  // tokens whose logits wait for their Sinkhorn, padded rows

enum Mode { SEAM = 0, PRE = 1, HEAD = 2 };

struct Args {
    const __nv_bfloat16 *residual, *y;
    const float *post, *comb, *fn, *scale, *base, *norm;
    __nv_bfloat16 *residual_out, *input_out, *mean;
    float *post_out, *comb_out;
    float hc_eps, rms_eps, post_mult;
    int iters, tokens;
};

template <Mode MODE>
struct Shared {
    static constexpr int TILES_N = MODE == HEAD ? 1 : 3;  // of 8 outputs
    static constexpr int OUTPUTS = TILES_N * 8;
    uint4 fn[GROUPS * STREAMS * TILES_N][2][32];  // high and low terms in fragment order
    float products[SLOTS][TILE * OUTPUTS];
    float squares[2][16][TILE];           // of streams, of the layer input; by warp
    float everyone[2][CLUSTER][6][TILE];  // 4 PRE gates, squares of streams, squares of the layer input
    float owner[2][CLUSTER][2][GATES];    // POST gates and mixing logits of the two tokens this block owns
    float post[2][TILE][4], comb[2][TILE][16];  // of this tile and the next
    uint64_t ready[2];                          // sums of the tile and gates of the next have come
    float kept[MODE == HEAD ? 1 : KEPT][KEPT_ROW];
    float norm[MODE == HEAD ? 4 : COLUMNS];
};

__device__ __forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + __expf(-v)); }

// fn's columns of this block in the order in which lanes need them: lane (n, t) of an 8x32 patch holds row n,
// columns 8t..8t+7, which serve two k-steps. Any order of k will do so long as the streams use the same one.
template <Mode MODE, int THREADS>
__device__ void keep_fn(Shared<MODE>& s, const float* fn, int first_column) {
    constexpr int N = Shared<MODE>::TILES_N;
#pragma unroll 4
    for (int i = threadIdx.x; i < GROUPS * STREAMS * N * 32; i += THREADS) {
        const int lane = i & 31, patch = i >> 5;
        const int row = (patch % N) * 8 + (lane >> 2), stream = patch / N % STREAMS, group = patch / N / STREAMS;
        float f[8] = {};
        if (MODE != HEAD || row < STREAMS) {
            const float* p = fn + (size_t)row * STREAMS * HIDDEN + stream * HIDDEN + first_column + group * 32 + (lane & 3) * 8;
            *(float4*)f = *(const float4*)p;
            *(float4*)(f + 4) = *(const float4*)(p + 4);
        }
        uint32_t hi[4], lo[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            hi[k] = pack(f[2 * k], f[2 * k + 1]);
            lo[k] = pack(f[2 * k] - low(hi[k]), f[2 * k + 1] - high(hi[k]));
        }
        s.fn[patch][0][lane] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
        s.fn[patch][1][lane] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
    }
}

// POST gates and mixing matrices of the kept logits, one token a thread.
__device__ void finish_gates(const Args& a, const float (*kept)[KEPT_ROW], int count, int first_tile, int tile_step, int rank) {
    if (threadIdx.x >= count) return;
    const float* m = kept[threadIdx.x];
    const int token = (first_tile + (threadIdx.x >> 1) * tile_step) * TILE + rank * 2 + (threadIdx.x & 1);
    if (token >= a.tokens) return;
    float4 post;
    post.x = a.post_mult * sigmoid(m[0] * a.scale[1] + a.base[4]);
    post.y = a.post_mult * sigmoid(m[1] * a.scale[1] + a.base[5]);
    post.z = a.post_mult * sigmoid(m[2] * a.scale[1] + a.base[6]);
    post.w = a.post_mult * sigmoid(m[3] * a.scale[1] + a.base[7]);
    *(float4*)(a.post_out + (size_t)token * 4) = post;
    float c[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            c[i][j] = m[4 + 4 * i + j] * a.scale[2] + a.base[8 + 4 * i + j];
            top = fmaxf(top, c[i][j]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) sum += c[i][j] = __expf(c[i][j] - top);
#pragma unroll
        for (int j = 0; j < 4; j++) c[i][j] = c[i][j] / sum + a.hc_eps;
    }
    for (int step = 0; step < a.iters; step++) {
        if (step > 0) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float r = __frcp_rn(c[i][0] + c[i][1] + c[i][2] + c[i][3] + a.hc_eps);
#pragma unroll
                for (int j = 0; j < 4; j++) c[i][j] *= r;
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float r = __frcp_rn(c[0][j] + c[1][j] + c[2][j] + c[3][j] + a.hc_eps);
#pragma unroll
            for (int i = 0; i < 4; i++) c[i][j] *= r;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) *(float4*)(a.comb_out + (size_t)token * 16 + 4 * i) = make_float4(c[i][0], c[i][1], c[i][2], c[i][3]);
}
