// The second kernel of mhc_many.cu: rows of tokens whose new streams and sums come from the first, while that is running.

#pragma once

#include "mhc_parts.cuh"

constexpr int SLICES = 16;             // of the columns, in the first kernel
constexpr int SUMS = 32;               // a token's sums of one slice, padded: 24 products, then squares
constexpr int MIXERS = 256;            // threads of a block
constexpr int UNIT = 4;                // tokens of a block

struct RowsShared {
    uint4 streams[STREAMS][HIDDEN / 8];
    float sums[SLICES][SUMS];
    float gates[STREAMS], squares[2][MIXERS / 32];
    float kept[UNIT][KEPT_ROW];
};

// A block finishes UNIT tokens of one tile, one after the other. A thread asks for its own columns of the next token as soon as
// it has those of the last in registers.
template <Mode M>
struct Finisher {
    static_assert(TILE % UNIT == 0 && UNIT <= 32, "a block waits for one tile, and a warp has a lane for each of its tokens");
    static constexpr int PIECES = HIDDEN / 8 / MIXERS;  // of 8 columns, of a thread
    const Args& a;
    RowsShared& s;
    const float* sums;
    const int first, end, thread, warp, lane;

    __device__ __forceinline__ Finisher(const Args& a, RowsShared& s, const float* sums)
        : a(a), s(s), sums(sums), first(blockIdx.x * UNIT), end(first + UNIT < a.tokens ? first + UNIT : a.tokens),
          thread(threadIdx.x), warp(thread >> 5), lane(thread & 31) {}

    __device__ __forceinline__ void ask(int token) {
        const __nv_bfloat16* streams = (M == SEAM ? a.residual_out : a.residual) + (size_t)token * STREAMS * HIDDEN + thread * 8;
#pragma unroll
        for (int i = 0; i < STREAMS; i++)
#pragma unroll
            for (int k = 0; k < PIECES; k++)
                copy16(shared_address(&s.streams[i][k * MIXERS + thread]), streams + i * HIDDEN + k * MIXERS * 8);
        if (thread < SLICES * SUMS / 4) copy16(shared_address((float4*)s.sums + thread), sums + (size_t)token * SLICES * SUMS + thread * 4);
    }

    __device__ __forceinline__ void run() {
        ask(first);
        for (int token = first; token < end; token++) {
            wait_copies();
            uint4 v[PIECES][STREAMS];
#pragma unroll
            for (int k = 0; k < PIECES; k++)
#pragma unroll
                for (int i = 0; i < STREAMS; i++) v[k][i] = s.streams[i][k * MIXERS + thread];
            __syncthreads();  // all sums of the token have come
            if (warp == 0) find_gates(token);
            __syncthreads();  // and have been read
            if (token + 1 < end) ask(token + 1);
            finish_row(v, token);
        }
        __syncthreads();
        if (warp == 0 && first + lane < end && lane < UNIT) finish_gates(a, s.kept[lane], first + lane);
    }

    // Sums over slices in one fixed order, a lane each: PRE gates, and the logits of POST.
    __device__ __forceinline__ void find_gates(int token) {
        float total = 0;
#pragma unroll
        for (int q = 0; q < SLICES; q++) total += s.sums[q][lane];
        const float z = total * rsqrtf(__shfl_sync(0xffffffffu, total, 24) / (STREAMS * HIDDEN) + a.rms_eps);
        if (lane < STREAMS) s.gates[lane] = sigmoid(z * a.scale[0] + a.base[lane]) + a.hc_eps;
        else if (lane < STREAMS + GATES) s.kept[token - first][lane - STREAMS] = z;
    }

    // The mix of a token's streams, and its norm.
    __device__ __forceinline__ void finish_row(const uint4 (&v)[PIECES][STREAMS], int token) {
        float g[STREAMS], square = 0;
        *(float4*)g = *(const float4*)s.gates;
        uint32_t out[PIECES][4];
#pragma unroll
        for (int k = 0; k < PIECES; k++)
#pragma unroll
            for (int p = 0; p < 4; p++) {
                float lo = 0, hi = 0;
#pragma unroll
                for (int i = 0; i < STREAMS; i++) lo = fmaf(g[i], low(word(v[k][i], p)), lo), hi = fmaf(g[i], high(word(v[k][i], p)), hi);
                out[k][p] = pack(lo, hi);
                square = fmaf(low(out[k][p]), low(out[k][p]), square), square = fmaf(high(out[k][p]), high(out[k][p]), square);
            }
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) square += __shfl_xor_sync(0xffffffffu, square, step);
        float* squares = s.squares[token & 1];  // those of the token before may still be read
        if (lane == 0) squares[warp] = square;
        __syncthreads();
        square = 0;
#pragma unroll
        for (int q = 0; q < MIXERS / 32; q++) square += squares[q];
        const float n = rsqrtf(square / HIDDEN + a.rms_eps);
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            const int column = (k * MIXERS + thread) * 8;
            float w[8];
            *(float4*)w = *(const float4*)(a.norm + column), *(float4*)(w + 4) = *(const float4*)(a.norm + column + 4);
#pragma unroll
            for (int p = 0; p < 4; p++) out[k][p] = pack(low(out[k][p]) * n * w[2 * p], high(out[k][p]) * n * w[2 * p + 1]);
            *(uint4*)(a.input_out + (size_t)token * HIDDEN + column) = make_uint4(out[k][0], out[k][1], out[k][2], out[k][3]);
        }
    }
};

template <Mode M>
__global__ void __launch_bounds__(MIXERS, 4) rows_kernel(const Args a, const float* sums, const int* finished, bool early) {
    if (early) launch_dependents();  // for the next call's first kernels
    if (threadIdx.x == 0) wait_count(finished + blockIdx.x * UNIT / TILE, SLICES);
    __syncthreads();
    Finisher<M>(a, *reinterpret_cast<RowsShared*>(dynamic_shared()), sums).run();
    if (blockIdx.x == gridDim.x - 1) wait_for_prerequisites();  // this kernel ends after the other
}
