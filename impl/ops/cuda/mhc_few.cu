// mHC seam, PRE and heads for few tokens on Hopper: two kernels that use the whole card for a handful of rows.
//
// In the first, a block owns 32 columns a group for one or some tiles of 16 tokens, a warp makes one new stream of a group, writes
// it and sums its share of fn z by mma; fn comes straight from the L2 cache into fragments, in two bf16 terms that are kept for
// all tiles of the block: of a tile of its own each, fn is as much to read as the streams are. In the second, launched
// before the first ends, a block finishes one token: sums, gates, mix and norm, while one more warp does its Sinkhorn.
// Nothing that a block reads is written by another one of the same kernel, so outputs may alias inputs.

#include "mhc_parts.cuh"

constexpr int SUMS = 32, MIXERS = HIDDEN / 8;  // a token's sums of one split, padded; threads that mix 8 columns each

// What a lane needs of a tile to make its columns of new stream j: of tokens row and row + 8.
template <Mode MODE>
struct Old {
    uint4 r[2][STREAMS] = {}, y[2] = {};
    float c[2][STREAMS] = {}, post[2] = {};

    __device__ __forceinline__ Old(const Args& a, int first_token, int row, int j, int column) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t token = first_token + row + 8 * h;
            if (token >= a.tokens) continue;
            if (MODE == PRE) {
                r[h][0] = load16_cached(a.residual + (token * STREAMS + j) * HIDDEN + column);
                continue;
            }
            y[h] = load16_cached(a.y + token * HIDDEN + column);
#pragma unroll
            for (int i = 0; i < STREAMS; i++) {
                r[h][i] = load16_cached(a.residual + (token * STREAMS + i) * HIDDEN + column);
                c[h][i] = a.comb[token * 16 + i * 4 + j];
            }
            post[h] = a.post[token * 4 + j];
        }
    }
};

template <Mode MODE, bool MEAN, int GROUPS, bool MANY>  // MANY: tiles of a block
__global__ void __launch_bounds__(GROUPS * 128) sums_kernel(const Args a, int tiles, float* sums) {
    constexpr int OUTPUTS = outputs(MODE), N = OUTPUTS / 8, WARPS = GROUPS * STREAMS;
    __shared__ float products[WARPS][TILE * OUTPUTS];
    __shared__ float squares[WARPS][TILE];
    __shared__ uint32_t made[MEAN ? WARPS : 1][2][4][32];
    launch_dependents();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = lane >> 2, j = warp % STREAMS, group = warp / STREAMS;
    const int column = (blockIdx.x * GROUPS + group) * 32 + (lane & 3) * 8;
    float f[N][8] = {};
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (MODE == HEAD && row >= STREAMS) continue;
        const float* p = a.fn + ((size_t)(n * 8 + row) * STREAMS + j) * HIDDEN + column;
        *(float4*)f[n] = *(const float4*)p;
        *(float4*)(f[n] + 4) = *(const float4*)(p + 4);
    }
    int first_token = blockIdx.y * TILE * (MANY ? tiles : 1);
    const int last = first_token + TILE * (MANY ? tiles : 1), end = last < a.tokens ? last : a.tokens;
    Old<MODE> old(a, first_token, row, j, column);
    uint32_t hi[N][4], lo[N][4];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            hi[n][k] = pack(f[n][2 * k], f[n][2 * k + 1]);
            lo[n][k] = pack(f[n][2 * k] - low(hi[n][k]), f[n][2 * k + 1] - high(hi[n][k]));
        }
    do {
        uint32_t out[2][4];
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int p = 0; p < 4; p++) {
                const uint32_t r[4] = {word(old.r[h][0], p), word(old.r[h][1], p), word(old.r[h][2], p), word(old.r[h][3], p)};
                out[h][p] = MODE == PRE ? r[0] : new_pair(old.post[h], old.c[h], word(old.y[h], p), r);
                if (MEAN) made[MEAN ? warp : 0][h][p][lane] = out[h][p];
            }
        if (MANY && first_token + TILE < end) old = Old<MODE>(a, first_token + TILE, row, j, column);
        float d[N][4] = {}, e[2][4] = {};
        const uint32_t first[4] = {out[0][0], out[1][0], out[0][1], out[1][1]};
        const uint32_t second[4] = {out[0][2], out[1][2], out[0][3], out[1][3]};
#pragma unroll
        for (int n = 0; n < N; n++) {
            mma(d[n], first, hi[n][0], hi[n][1]);
            mma(d[n], second, hi[n][2], hi[n][3]);
            mma(d[n], first, lo[n][0], lo[n][1]);
            mma(d[n], second, lo[n][2], lo[n][3]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            mma(e[h], first, out[h][0], out[h][1]);
            mma(e[h], second, out[h][2], out[h][3]);
        }
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                *(float2*)&products[warp][(row + 8 * h) * OUTPUTS + n * 8 + (lane & 3) * 2] = make_float2(d[n][2 * h], d[n][2 * h + 1]);
        if ((lane & 3) == row >> 1) {
            squares[warp][row] = row & 1 ? e[0][1] : e[0][0];
            squares[warp][row + 8] = row & 1 ? e[1][3] : e[1][2];
        }
        __syncthreads();  // and all warps have read what the stores below may overwrite
        if (MODE == SEAM) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const size_t token = first_token + row + 8 * h;
                if (token < a.tokens)
                    *(uint4*)(a.residual_out + (token * STREAMS + j) * HIDDEN + column) =
                        make_uint4(out[h][0], out[h][1], out[h][2], out[h][3]);
            }
        }
        if (MEAN) {  // a warp of a group takes half the columns of half the tokens
            const int h = j >> 1, p = (j & 1) * 2, of_group = group * STREAMS;
            const size_t token = first_token + row + 8 * h;
            uint32_t mean[2];
#pragma unroll
            for (int q = 0; q < 2; q++) {
                float left = 0, right = 0;
#pragma unroll
                for (int i = 0; i < STREAMS; i++) {
                    const uint32_t pair = made[MEAN ? of_group + i : 0][h][p + q][lane];
                    left = __fadd_rn(left, low(pair)), right = __fadd_rn(right, high(pair));
                }
                mean[q] = pack(left * 0.25f, right * 0.25f);
            }
            if (token < a.tokens) *(uint2*)(a.mean + token * a.mean_row + column + 2 * p) = make_uint2(mean[0], mean[1]);
        }
        for (int i = threadIdx.x; i < TILE * SUMS; i += WARPS * 32) {
            const int t = i / SUMS, o = i % SUMS;
            const size_t token = first_token + t;
            if (token >= a.tokens || (o >= OUTPUTS && o != 24)) continue;
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += o == 24 ? squares[w][t] : products[w][t * OUTPUTS + o];
            sums[(token * gridDim.x + blockIdx.x) * SUMS + o] = sum;
        }
        first_token += TILE;
        if (MANY) __syncthreads();  // what the next tile's products overwrite has been read
    } while (MANY && first_token < end);
}

template <Mode MODE, int SPLITS>
__global__ void __launch_bounds__(MIXERS + (MODE == HEAD ? 0 : 32)) inputs_kernel(const Args a, const float* sums) {
    constexpr int OUTPUTS = outputs(MODE), WARPS = MIXERS / 32, EACH = SPLITS / WARPS;
    __shared__ float parts[WARPS][32], logits[GATES], squares[WARPS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, column = threadIdx.x * 8;
    const size_t token = blockIdx.x;
    const bool mixes = warp < WARPS;
    float w[8] = {};
    if (MODE != HEAD && mixes) *(float4*)w = *(const float4*)(a.norm + column), *(float4*)(w + 4) = *(const float4*)(a.norm + column + 4);
    wait_for_prerequisites();
    uint4 v[STREAMS] = {}, y = {};
    if (mixes) {
        float sum = 0;
        if (lane < OUTPUTS || lane == 24) {
            const float* p = sums + (token * SPLITS + warp * EACH) * SUMS + lane;
#pragma unroll
            for (int q = 0; q < EACH; q++) sum += load_fresh(p + q * SUMS);
        }
        parts[warp][lane] = sum;
        const __nv_bfloat16* streams = (MODE == SEAM ? a.residual_out : a.residual) + token * STREAMS * HIDDEN + column;
#pragma unroll
        for (int i = 0; i < STREAMS; i++) v[i] = load16_fresh(streams + i * HIDDEN);
        if (MODE == HEAD) y = load16_fresh(a.y + token * HIDDEN + column);
    }
    __syncthreads();
    float total = 0;
#pragma unroll
    for (int q = 0; q < WARPS; q++) total += parts[q][lane];
    const float r = rsqrtf(__shfl_sync(0xffffffffu, total, 24) / (STREAMS * HIDDEN) + a.rms_eps);
    if (MODE != HEAD && !mixes) {
        if (lane >= STREAMS && lane < STREAMS + GATES) logits[lane - STREAMS] = total * r;
        __syncwarp();
        if (lane == 0) finish_gates(a, logits, token);
        return;
    }
    const float gate = lane < STREAMS ? sigmoid(total * r * a.scale[0] + a.base[lane]) + a.hc_eps : 0;
    float g[STREAMS];
#pragma unroll
    for (int i = 0; i < STREAMS; i++) g[i] = __shfl_sync(0xffffffffu, gate, i);
    float post[STREAMS], comb[STREAMS][STREAMS];
    if (MODE == HEAD) {
        *(float4*)post = *(const float4*)(a.post + token * 4);
#pragma unroll
        for (int i = 0; i < STREAMS; i++) *(float4*)comb[i] = *(const float4*)(a.comb + token * 16 + 4 * i);
    }
    uint32_t out[4];
    float square = 0;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const uint32_t old[4] = {word(v[0], p), word(v[1], p), word(v[2], p), word(v[3], p)};
        float lo = 0, hi = 0;
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            uint32_t pair = old[i];
            if (MODE == HEAD) {
                const float c[4] = {comb[0][i], comb[1][i], comb[2][i], comb[3][i]};
                pair = new_pair(post[i], c, word(y, p), old);
            }
            lo = fmaf(g[i], low(pair), lo), hi = fmaf(g[i], high(pair), hi);
        }
        out[p] = pack(lo, hi);
        square = fmaf(low(out[p]), low(out[p]), square), square = fmaf(high(out[p]), high(out[p]), square);
    }
    if constexpr (MODE != HEAD) {
#pragma unroll
        for (int step = 16; step > 0; step >>= 1) square += __shfl_xor_sync(0xffffffffu, square, step);
        if (lane == 0) squares[warp] = square;
        barrier_of(1, MIXERS);
        square = 0;
#pragma unroll
        for (int q = 0; q < WARPS; q++) square += squares[q];
        const float n = rsqrtf(square / HIDDEN + a.rms_eps);
#pragma unroll
        for (int p = 0; p < 4; p++) out[p] = pack(low(out[p]) * n * w[2 * p], high(out[p]) * n * w[2 * p + 1]);
    }
    *(uint4*)(a.input_out + token * HIDDEN + column) = make_uint4(out[0], out[1], out[2], out[3]);
}

template <Mode MODE, bool MEAN, int GROUPS>
int launch(const Args& a, int tiles, float* sums, cudaStream_t stream) {
    constexpr int SPLITS = HIDDEN / 32 / GROUPS;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(SPLITS, (a.tokens + TILE * tiles - 1) / (TILE * tiles));
    config.blockDim = dim3(GROUPS * 128);
    config.stream = stream;
    auto kernel = tiles == 1 ? sums_kernel<MODE, MEAN, GROUPS, false> : sums_kernel<MODE, MEAN, GROUPS, true>;
    cudaError_t error = cudaLaunchKernelEx(&config, kernel, a, tiles, sums);
    if (error != cudaSuccess) return error;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(a.tokens);
    config.blockDim = dim3(MIXERS + (MODE == HEAD ? 0 : 32));
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, inputs_kernel<MODE, SPLITS>, a, (const float*)sums);
}

// tiles: of 16 tokens, that a block of the first kernel goes through. sums: fp32 [tokens, splits, 32]. Returns a cudaError_t; -1 for
// a number of splits that was not compiled, or of tiles that is none.
extern "C" int mhc_few_launch(int mode, int splits, int tiles, const Args* a, float* sums, void* stream) {
    cudaStream_t on = (cudaStream_t)stream;
    const bool mean = a->mean != nullptr;
    if (tiles < 1) return -1;
#define PICK(GROUPS)                                                                   \
    if (splits == HIDDEN / 32 / GROUPS) {                                              \
        if (mode == SEAM) return launch<SEAM, false, GROUPS>(*a, tiles, sums, on);     \
        if (mode == PRE) return launch<PRE, false, GROUPS>(*a, tiles, sums, on);       \
        return mean ? launch<HEAD, true, GROUPS>(*a, tiles, sums, on) : launch<HEAD, false, GROUPS>(*a, tiles, sums, on); \
    }
    PICK(1)
    PICK(2)
    return -1;
}

extern "C" const char* mhc_few_error(int code) { return cudaGetErrorString((cudaError_t)code); }
