// mHC seam and PRE for many tokens on Hopper: two kernels of which neither waits for another block.
//
// In the first, a block owns HIDDEN / SLICES columns of all streams and keeps their fn in shared memory for the whole
// launch. Each of its warps takes tiles of 16 tokens of its own, 32 columns at a time: it makes the new streams, writes
// them, and sums their products with fn in registers over all columns of the block. Nothing is exchanged between warps,
// so nothing stands between a warp's loads and the next but its own arithmetic; a half's next columns are asked for as
// soon as its registers are free. In the second, launched as blocks of the first leave, a block finishes one token: sums
// of the slices, PRE gates, mix and norm over the whole row, so that no sum of squares crosses a block. Other blocks of
// it, first in line, do the POST gates and Sinkhorn of 32 tokens each, a lane a token.
// The streams are read twice, but once by each kernel at the speed of a copy. Every element is read and overwritten by
// the same thread, and y is dead when layer inputs are written, so outputs may alias inputs.

#include "mhc_parts.cuh"

constexpr int SUMS = 32;                      // a token's sums of one slice, padded: 24 products, then squares
constexpr int MIXERS = 256, PIECES = HIDDEN / 8 / MIXERS;  // threads of the second kernel; pieces of 8 columns of each
constexpr int GATED = 32;                     // tokens of one block of gates

template <Mode M, int SLICES_>
struct Sliced {
    static constexpr Mode MODE = M;
    static constexpr int SLICES = SLICES_, COLUMNS = HIDDEN / SLICES, GROUPS = COLUMNS / 32, OUTPUTS = outputs(M);
    static constexpr int RESIDENT = SLICES / 8, CHAINS = 1, WARPS = 16 / RESIDENT;  // 16 warps an SM
    static constexpr int THREADS = WARPS * 32;
};

template <class CUT>
struct SlicedShared {
    uint4 fn[CUT::GROUPS * STREAMS * CUT::OUTPUTS / 8][2][32];
    float gates[CUT::MODE == PRE ? 1 : CUT::WARPS][TILE][GATES];  // post, comb of the tile at hand
};

template <class CUT>
struct Streaming {
    static constexpr Mode MODE = CUT::MODE;
    static constexpr int N = CUT::OUTPUTS / 8;
    const Args& a;
    SlicedShared<CUT>& s;
    float* sums;
    const int slice, warp, lane, row, column;
    uint4 y[2], r[2][STREAMS];
    uint32_t v[2][STREAMS][4];

    __device__ __forceinline__ Streaming(const Args& a, SlicedShared<CUT>& s, float* sums)
        : a(a), s(s), sums(sums), slice(blockIdx.x % CUT::SLICES), warp(threadIdx.x >> 5), lane(threadIdx.x & 31),
          row(lane >> 2), column(slice * CUT::COLUMNS + (lane & 3) * 8) {}

    // 64 bytes a row; the other half of the line is asked for with it and found in the L2 cache by the next group.
    __device__ __forceinline__ void load(int h, int tile, int group) {
        const int token = tile * TILE + row + 8 * h;
        const bool live = token < a.tokens;
        const uint4 zero = make_uint4(0, 0, 0, 0);
        const size_t at = (size_t)token * HIDDEN + column + group * 32, from = at + (size_t)token * (STREAMS - 1) * HIDDEN;
        if (MODE != PRE) y[h] = live ? load16_line(a.y + at) : zero;
#pragma unroll
        for (int i = 0; i < STREAMS; i++) r[h][i] = live ? load16_line(a.residual + from + i * HIDDEN) : zero;
    }

    __device__ __forceinline__ void load_gates(int tile) {
        __syncwarp();  // all lanes have read the last tile's
        for (int i = lane; i < TILE * GATES / 4; i += 32) {
            const int t = i / 5, q = i % 5;
            const size_t token = tile * TILE + t;
            if (token >= a.tokens) continue;
            *(float4*)&s.gates[warp][t][4 * q] = *(const float4*)(q == 0 ? a.post + token * 4 : a.comb + token * 16 + 4 * (q - 1));
        }
        __syncwarp();
    }

    // POST in vLLM's rounding order for one half of the tile's tokens; PRE's streams are what was loaded.
    __device__ __forceinline__ void make(int h, int tile, int group) {
        const int token = tile * TILE + row + 8 * h;
        float g[GATES];
        if (MODE != PRE) {
#pragma unroll
            for (int q = 0; q < GATES / 4; q++) *(float4*)(g + 4 * q) = *(const float4*)&s.gates[warp][row + 8 * h][4 * q];
        }
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint32_t old[4] = {word(r[h][0], p), word(r[h][1], p), word(r[h][2], p), word(r[h][3], p)};
#pragma unroll
            for (int j = 0; j < STREAMS; j++) {
                if (MODE == PRE) {
                    v[h][j][p] = old[j];
                    continue;
                }
                const float c[4] = {g[4 + j], g[8 + j], g[12 + j], g[16 + j]};
                v[h][j][p] = new_pair(g[j], c, word(y[h], p), old);
            }
        }
        if (MODE == PRE || token >= a.tokens) return;
        __nv_bfloat16* out = a.residual_out + (size_t)token * STREAMS * HIDDEN + column + group * 32;
#pragma unroll
        for (int j = 0; j < STREAMS; j++)
            *(uint4*)(out + j * HIDDEN) = make_uint4(v[h][j][0], v[h][j][1], v[h][j][2], v[h][j][3]);
    }

    __device__ __forceinline__ void add_products(float (&d)[N][4], float (&e)[2][4], int group) {
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            const uint32_t first[4] = {v[0][i][0], v[1][i][0], v[0][i][1], v[1][i][1]};
            const uint32_t second[4] = {v[0][i][2], v[1][i][2], v[0][i][3], v[1][i][3]};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mma(e[h], first, v[h][i][0], v[h][i][1]);
                mma(e[h], second, v[h][i][2], v[h][i][3]);
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                const uint4 hi = s.fn[(group * STREAMS + i) * N + n][0][lane], lo = s.fn[(group * STREAMS + i) * N + n][1][lane];
                mma(d[n], first, hi.x, hi.y);
                mma(d[n], second, hi.z, hi.w);
                mma(d[n], first, lo.x, lo.y);
                mma(d[n], second, lo.z, lo.w);
            }
        }
    }

    // next: the warp's tile after this one, whose first columns are asked for at the end of this one.
    __device__ __forceinline__ void run(int tile, int next) {
        float d[N][4] = {}, e[2][4] = {};  // e: tokens with tokens, of which the diagonal is their sums of squares
        if (MODE != PRE) load_gates(tile);
#pragma unroll 1
        for (int group = 0; group < CUT::GROUPS; group++) {
            const bool last = group == CUT::GROUPS - 1;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                make(h, tile, group);
                load(h, last ? next : tile, last ? 0 : group + 1);
            }
            add_products(d, e, group);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const size_t token = tile * TILE + row + 8 * h;
            if (token >= a.tokens) continue;
            float* out = sums + (token * CUT::SLICES + slice) * SUMS;
#pragma unroll
            for (int n = 0; n < N; n++) *(float2*)(out + n * 8 + (lane & 3) * 2) = make_float2(d[n][2 * h], d[n][2 * h + 1]);
            if ((lane & 3) == row >> 1) out[24] = row & 1 ? e[h][2 * h + 1] : e[h][2 * h];
        }
    }
};

template <class CUT>
__global__ void __launch_bounds__(CUT::THREADS, CUT::RESIDENT) slices_kernel(const Args a, float* sums) {
    SlicedShared<CUT>& s = *reinterpret_cast<SlicedShared<CUT>*>(dynamic_shared());
    Streaming<CUT> w(a, s, sums);
    const int tiles = (a.tokens + TILE - 1) / TILE, step = gridDim.x / CUT::SLICES * CUT::WARPS;
    int tile = blockIdx.x / CUT::SLICES * CUT::WARPS + w.warp;
    launch_dependents();
    w.load(0, tile, 0);
    w.load(1, tile, 0);
    keep_fn<CUT>(s, a.fn, w.slice * CUT::COLUMNS);
    __syncthreads();
    for (; tile < tiles; tile += step) w.run(tile, tile + step);
    wait_for_prerequisites();  // the rows of the chunk before, which nothing here needs, end before this kernel does
}

// Sums over slices in one fixed order, every lane of the warp with the number at `lane` of a slice.
template <int SLICES>
__device__ __forceinline__ float over_slices(const float* sums, size_t token, int lane) {
    float part[SLICES], sum = 0;
#pragma unroll
    for (int q = 0; q < SLICES; q++) part[q] = lane <= 24 ? load_fresh(sums + (token * SLICES + q) * SUMS + lane) : 0;
#pragma unroll
    for (int q = 0; q < SLICES; q++) sum += part[q];
    return sum;
}

template <class CUT>
__global__ void __launch_bounds__(MIXERS, 4) rows_kernel(const Args a, const float* sums) {
    constexpr int WARPS = MIXERS / 32;
    __shared__ float logits[GATED][KEPT_ROW], gates[STREAMS], squares[WARPS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, of_gates = (a.tokens + GATED - 1) / GATED;
    launch_dependents();
    wait_for_prerequisites();
    if (blockIdx.x < of_gates) {
        const size_t first = (size_t)blockIdx.x * GATED;
        for (int t = warp; t < GATED; t += WARPS) {
            const float total = first + t < a.tokens ? over_slices<CUT::SLICES>(sums, first + t, lane) : 0;
            const float r = rsqrtf(__shfl_sync(0xffffffffu, total, 24) / (STREAMS * HIDDEN) + a.rms_eps);
            if (lane >= STREAMS && lane < STREAMS + GATES) logits[t][lane - STREAMS] = total * r;
        }
        __syncthreads();
        if (warp == 0 && first + lane < a.tokens) finish_gates(a, logits[lane], first + lane);
        return;
    }
    const size_t token = a.tokens - 1 - (blockIdx.x - of_gates);  // the last written first: they are still in the L2 cache
    const __nv_bfloat16* streams = (CUT::MODE == SEAM ? a.residual_out : a.residual) + token * STREAMS * HIDDEN + threadIdx.x * 8;
    uint4 v[PIECES][STREAMS];
#pragma unroll
    for (int k = 0; k < PIECES; k++)
#pragma unroll
        for (int i = 0; i < STREAMS; i++) v[k][i] = load16_fresh(streams + i * HIDDEN + k * MIXERS * 8);
    if (warp == 0) {
        const float total = over_slices<CUT::SLICES>(sums, token, lane);
        const float r = rsqrtf(__shfl_sync(0xffffffffu, total, 24) / (STREAMS * HIDDEN) + a.rms_eps);
        if (lane < STREAMS) gates[lane] = sigmoid(total * r * a.scale[0] + a.base[lane]) + a.hc_eps;
    }
    __syncthreads();
    float g[STREAMS], square = 0;
    *(float4*)g = make_float4(gates[0], gates[1], gates[2], gates[3]);
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
    if (lane == 0) squares[warp] = square;
    __syncthreads();
    square = 0;
#pragma unroll
    for (int q = 0; q < WARPS; q++) square += squares[q];
    const float n = rsqrtf(square / HIDDEN + a.rms_eps);
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        const int column = threadIdx.x * 8 + k * MIXERS * 8;
        float w[8];
        *(float4*)w = *(const float4*)(a.norm + column), *(float4*)(w + 4) = *(const float4*)(a.norm + column + 4);
#pragma unroll
        for (int p = 0; p < 4; p++) out[k][p] = pack(low(out[k][p]) * n * w[2 * p], high(out[k][p]) * n * w[2 * p + 1]);
        *(uint4*)(a.input_out + token * HIDDEN + column) = make_uint4(out[k][0], out[k][1], out[k][2], out[k][3]);
    }
}

// At most `count` tokens from `first` on.
Args from_token(const Args& a, size_t first, int count) {
    Args part = a;
    part.residual += first * STREAMS * HIDDEN, part.input_out += first * HIDDEN;
    part.post_out += first * STREAMS, part.comb_out += first * STREAMS * STREAMS;
    if (a.y != nullptr) {
        part.y += first * HIDDEN, part.residual_out += first * STREAMS * HIDDEN;
        part.post += first * STREAMS, part.comb += first * STREAMS * STREAMS;
    }
    part.tokens = a.tokens - (int)first < count ? a.tokens - (int)first : count;
    return part;
}

// Both kernels of some tokens. early: the first may begin while the rows of the tokens before are still being finished.
template <class CUT>
cudaError_t launch_part(const Args& a, float* sums, int processors, bool early, cudaStream_t stream) {
    const int tiles = (a.tokens + TILE - 1) / TILE, wanted = (tiles + CUT::WARPS - 1) / CUT::WARPS;
    const int fit = processors * CUT::RESIDENT / CUT::SLICES, most = fit > 0 ? fit : 1;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CUT::SLICES * (wanted < most ? wanted : most));
    config.blockDim = dim3(CUT::THREADS);
    config.dynamicSmemBytes = sizeof(SlicedShared<CUT>);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = early ? 1 : 0;
    const cudaError_t error = cudaLaunchKernelEx(&config, slices_kernel<CUT>, a, sums);
    if (error != cudaSuccess) return error;
    config.gridDim = dim3(a.tokens + (a.tokens + GATED - 1) / GATED);
    config.blockDim = dim3(MIXERS);
    config.dynamicSmemBytes = 0;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, rows_kernel<CUT>, a, (const float*)sums);
}

template <class CUT>
int launch(const Args& a, int chunk, float* sums, cudaStream_t stream) {
    static int processors = 0;
    auto kernel = slices_kernel<CUT>;
    if (processors == 0) {
        static_assert(sizeof(SlicedShared<CUT>) <= 232448 / CUT::RESIDENT - (CUT::RESIDENT > 1 ? 1024 : 0), "shared memory of an SM");
        int device = 0;
        cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SlicedShared<CUT>));
        if (error == cudaSuccess) error = cudaGetDevice(&device);
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return error;
    }
    for (int first = 0; first < a.tokens; first += chunk) {
        const Args part = from_token(a, first, chunk);
        const cudaError_t error = launch_part<CUT>(part, sums + (size_t)first * CUT::SLICES * SUMS, processors, first > 0, stream);
        if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
}

// chunk: tokens from one kernel to the next, so that new streams are read again from the L2 cache; 0: all. sums: fp32
// [tokens, slices, 32]. Returns a cudaError_t; -1 for a mode or a number of slices that was not compiled.
extern "C" int mhc_many_launch(int mode, int slices, int chunk, const Args* a, float* sums, void* stream) {
    cudaStream_t on = (cudaStream_t)stream;
    if (chunk <= 0) chunk = a->tokens;
    if (slices == 16 && mode == SEAM) return launch<Sliced<SEAM, 16>>(*a, chunk, sums, on);
    if (slices == 8 && mode == SEAM) return launch<Sliced<SEAM, 8>>(*a, chunk, sums, on);
    if (slices == 16 && mode == PRE) return launch<Sliced<PRE, 16>>(*a, chunk, sums, on);
    if (slices == 8 && mode == PRE) return launch<Sliced<PRE, 8>>(*a, chunk, sums, on);
    return -1;
}

extern "C" const char* mhc_many_error(int code) { return cudaGetErrorString((cudaError_t)code); }
