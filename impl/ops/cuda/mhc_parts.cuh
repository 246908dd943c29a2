// What the mHC kernels share: arguments, the layout of shared memory, fn in fragment order, POST gates and Sinkhorn.

#pragma once

#include "hopper.cuh"

#ifndef HIDDEN
#define HIDDEN 4096
#endif

constexpr int STREAMS = 4, TILE = 16, GATES = 20;  // GATES: post and comb of one token
constexpr int DEVICES = 64;                        // of a process, whose limits are remembered
constexpr int KEPT_ROW = 21;                       // logits of a token that waits for its Sinkhorn, padded

enum Mode { SEAM = 0, PRE = 1, HEAD = 2 };

struct Args {
    const __nv_bfloat16 *residual, *y;
    const float *post, *comb, *fn, *scale, *base, *norm;
    __nv_bfloat16 *residual_out, *input_out, *mean;
    float *post_out, *comb_out;
    float hc_eps, rms_eps, post_mult;
    int iters, tokens, mean_row;  // mean_row: numbers from one token's mean to the next
};

// What the caller's own layout of Args is held against.
extern "C" int mhc_args_bytes() { return sizeof(Args); }

__host__ __device__ constexpr int outputs(Mode mode) { return mode == HEAD ? 8 : 24; }  // rows of fn, in tiles of 8

// Where a row's piece of 16 bytes lies. Lanes that read at once have rows t and t + 4, which lie half of the banks apart.
__device__ __forceinline__ int piece_at(int row, int piece) { return piece ^ (row & 7); }

__device__ __forceinline__ float sigmoid(float v) { return 1.0f / (1.0f + __expf(-v)); }

// Two columns of new stream j in vLLM's rounding order; c: comb[0..3][j].
__device__ __forceinline__ uint32_t new_pair(float post, const float (&c)[4], uint32_t y, const uint32_t (&r)[4]) {
    float lo = __fmul_rn(c[0], low(r[0])), hi = __fmul_rn(c[0], high(r[0]));
    lo = __fmaf_rn(post, low(y), lo), hi = __fmaf_rn(post, high(y), hi);
#pragma unroll
    for (int i = 1; i < STREAMS; i++) lo = __fmaf_rn(c[i], low(r[i]), lo), hi = __fmaf_rn(c[i], high(r[i]), hi);
    return pack(lo, hi);
}

// fn's columns of this block in the order in which lanes need them: lane (n, t) of an 8x32 patch holds row n,
// columns 8t..8t+7, which serve two k-steps. Any order of k will do so long as the streams use the same one. AT_ONCE: how
// many of its pieces a thread asks for before it waits for one.
template <class CUT, int THREADS, int AT_ONCE, class SHARED>
__device__ void keep_fn(SHARED& s, const float* fn, int first_column) {
    constexpr int N = CUT::OUTPUTS / 8;
#pragma unroll AT_ONCE
    for (int i = threadIdx.x; i < CUT::GROUPS * STREAMS * N * 32; i += THREADS) {
        const int lane = i & 31, patch = i >> 5;
        const int row = (patch % N) * 8 + (lane >> 2), stream = patch / N % STREAMS, group = patch / N / STREAMS;
        const float* p = fn + (size_t)row * STREAMS * HIDDEN + stream * HIDDEN + first_column + group * 32 + (lane & 3) * 8;
        float f[8];
        *(float4*)f = *(const float4*)p;
        *(float4*)(f + 4) = *(const float4*)(p + 4);
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

// POST gates of one token from its logits (fn z over the root mean square), and its mixing matrix. Sinkhorn's scalings
// are kept as two vectors, c_ij = u_i k_ij v_j: four chains of fma a step instead of sixteen products.
__device__ __forceinline__ void finish_gates(const Args& a, const float* logits, size_t token) {
    float4 post;
    post.x = a.post_mult * sigmoid(logits[0] * a.scale[1] + a.base[4]);
    post.y = a.post_mult * sigmoid(logits[1] * a.scale[1] + a.base[5]);
    post.z = a.post_mult * sigmoid(logits[2] * a.scale[1] + a.base[6]);
    post.w = a.post_mult * sigmoid(logits[3] * a.scale[1] + a.base[7]);
    *(float4*)(a.post_out + token * 4) = post;
    float k[4][4], u[4], v[4] = {1, 1, 1, 1};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float top = -INFINITY, sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            k[i][j] = logits[4 + 4 * i + j] * a.scale[2] + a.base[8 + 4 * i + j];
            top = fmaxf(top, k[i][j]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) sum += k[i][j] = __expf(k[i][j] - top);
        const float r = reciprocal(sum);
#pragma unroll
        for (int j = 0; j < 4; j++) k[i][j] = fmaf(k[i][j], r, a.hc_eps);
        u[i] = 1;
    }
    for (int step = 0; step < a.iters; step++) {
        if (step > 0) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float sum = fmaf(k[i][0], v[0], k[i][1] * v[1]) + fmaf(k[i][2], v[2], k[i][3] * v[3]);
                u[i] *= reciprocal(fmaf(u[i], sum, a.hc_eps));
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float sum = fmaf(k[0][j], u[0], k[1][j] * u[1]) + fmaf(k[2][j], u[2], k[3][j] * u[3]);
            v[j] *= reciprocal(fmaf(v[j], sum, a.hc_eps));
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(float4*)(a.comb_out + token * 16 + 4 * i) =
            make_float4(u[i] * k[i][0] * v[0], u[i] * k[i][1] * v[1], u[i] * k[i][2] * v[2], u[i] * k[i][3] * v[3]);
}
