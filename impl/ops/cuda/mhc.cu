// mHC seams, PRE and the fused heads for Hopper: a cluster of 8 blocks holds a tile of 16 tokens in registers.
//
// Each block owns H/8 columns of all streams. It reads them once, makes the new streams (POST), writes them, and keeps
// them as the A fragments of mma.m16n8k16 until the tile's gates are known: the streams are never read again. fn stays
// in shared memory for the whole launch, split into two bf16 terms (16 significant bits; the streams are bf16 already).
// Partial sums over a block's columns travel through distributed shared memory (st.async), counted by a barrier in the
// receiving block, once a tile: the sum of squares of a tile's layer input rides with the next tile's sums. No fence
// and no cluster barrier stands in the loop: either would wait for the tile's stores and for the loads of the next
// one, which are issued before the products of this one. Every element is read and overwritten by one and the same
// thread, so outputs may alias inputs at any number of tokens. Every row is summed in one fixed order: its bits depend
// on that row alone.

#include "mhc_parts.cuh"

template <int WARPS, Mode MODE, bool MEAN>
struct Block {
    static constexpr int G = GROUPS / WARPS;  // 32-column groups a warp
    static constexpr int N = Shared<MODE>::TILES_N, OUTPUTS = Shared<MODE>::OUTPUTS;
    static constexpr int FIELDS = MODE == HEAD ? 5 : 6;  // of Shared::everyone that are in use
    const Args& a;
    Shared<MODE>& s;
    const int rank, warp, lane, row, column;  // row: token of the first half; column: this lane's first one
    uint4 in_y[2][G], in_r[2][G][STREAMS];
    uint32_t v[2][G][STREAMS][4];  // new streams of two tokens
    uint32_t x[2][G][4];           // layer input of the tile before, not yet normalized
    float squares[2], x_squares[2] = {0, 0};

    __device__ __forceinline__ Block(const Args& a, Shared<MODE>& s, int rank)
        : a(a), s(s), rank(rank), warp(threadIdx.x >> 5), lane(threadIdx.x & 31), row(lane >> 2),
          column(rank * COLUMNS + warp * G * 32 + (lane & 3) * 8) {}

    __device__ __forceinline__ void load(int tile) {
#pragma unroll
        for (int k = 0; k < G; k++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int token = tile * TILE + row + 8 * h;
                const bool live = token < a.tokens;
                const uint4 zero = make_uint4(0, 0, 0, 0);
                const int c = column + 32 * k;
                if (MODE != PRE) in_y[h][k] = live ? load16(a.y + (size_t)token * HIDDEN + c) : zero;
#pragma unroll
                for (int i = 0; i < STREAMS; i++)
                    in_r[h][k][i] = live ? load16(a.residual + ((size_t)token * STREAMS + i) * HIDDEN + c) : zero;
            }
    }

    // The gates of the first tile, and what this block expects of every tile: the sums, and the gates of the next.
    __device__ __forceinline__ void first_gates(int tile) {
        for (int i = threadIdx.x; MODE != PRE && i < TILE * GATES; i += WARPS * 32) {
            const int token = tile * TILE + i % TILE, g = i / TILE;
            if (token >= a.tokens) continue;
            if (g < 4) s.post[0][i % TILE][g] = a.post[(size_t)token * 4 + g];
            else s.comb[0][i % TILE][g - 4] = a.comb[(size_t)token * 16 + g - 4];
        }
    }

    __device__ __forceinline__ void expect(int parity, int next_tile) {
        if (threadIdx.x != 0) return;
        const int left = MODE == PRE ? 0 : a.tokens - next_tile * TILE, tokens = left < 0 ? 0 : left < TILE ? left : TILE;
        barrier_expect(&s.ready[parity], CLUSTER * 4 * (TILE * FIELDS + (MODE == HEAD ? 0 : 2 * GATES)) + tokens * 4 * GATES);
        if (tokens == 0) return;
        fetch(s.post[parity ^ 1][0], a.post + (size_t)next_tile * TILE * 4, tokens * 16, &s.ready[parity]);
        fetch(s.comb[parity ^ 1][0], a.comb + (size_t)next_tile * TILE * 16, tokens * 64, &s.ready[parity]);
    }

    // POST in vLLM's rounding order, then bf16: what anyone reads from here on is the rounded stream.
    __device__ __forceinline__ void make_streams(int tile, int parity) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            squares[h] = 0;
            const int token = tile * TILE + row + 8 * h;
            const bool live = token < a.tokens;
            float g[GATES];
            if (MODE != PRE) {
                *(float4*)g = *(const float4*)s.post[parity][row + 8 * h];
#pragma unroll
                for (int q = 0; q < 4; q++) *(float4*)(g + 4 + 4 * q) = *(const float4*)&s.comb[parity][row + 8 * h][4 * q];
            }
#pragma unroll
            for (int k = 0; k < G; k++) {
                uint32_t mean[4];
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    float sum[2] = {0, 0};
                    const uint32_t r0 = word(in_r[h][k][0], p), r1 = word(in_r[h][k][1], p);
                    const uint32_t r2 = word(in_r[h][k][2], p), r3 = word(in_r[h][k][3], p);
                    const uint32_t yy = MODE == PRE ? 0 : word(in_y[h][k], p);
#pragma unroll
                    for (int j = 0; j < STREAMS; j++) {
                        uint32_t out;
                        if (MODE == PRE) {
                            out = j == 0 ? r0 : j == 1 ? r1 : j == 2 ? r2 : r3;
                        } else {
                            float lo = __fmul_rn(g[4 + j], low(r0)), hi = __fmul_rn(g[4 + j], high(r0));
                            lo = __fmaf_rn(g[j], low(yy), lo), hi = __fmaf_rn(g[j], high(yy), hi);
                            lo = __fmaf_rn(g[8 + j], low(r1), lo), hi = __fmaf_rn(g[8 + j], high(r1), hi);
                            lo = __fmaf_rn(g[12 + j], low(r2), lo), hi = __fmaf_rn(g[12 + j], high(r2), hi);
                            lo = __fmaf_rn(g[16 + j], low(r3), lo), hi = __fmaf_rn(g[16 + j], high(r3), hi);
                            out = pack(lo, hi);
                        }
                        v[h][k][j][p] = out;
                        squares[h] = __fmaf_rn(low(out), low(out), squares[h]);
                        squares[h] = __fmaf_rn(high(out), high(out), squares[h]);
                        if (MEAN) sum[0] = __fadd_rn(sum[0], low(out)), sum[1] = __fadd_rn(sum[1], high(out));
                    }
                    if (MEAN) mean[p] = pack(sum[0] * 0.25f, sum[1] * 0.25f);
                }
                if (!live) continue;
                const int c = column + 32 * k;
                if (MODE == SEAM) {
#pragma unroll
                    for (int j = 0; j < STREAMS; j++)
                        store16(a.residual_out + ((size_t)token * STREAMS + j) * HIDDEN + c, v[h][k][j][0], v[h][k][j][1],
                                v[h][k][j][2], v[h][k][j][3]);
                }
                if (MEAN) store16(a.mean + (size_t)token * HIDDEN + c, mean[0], mean[1], mean[2], mean[3]);
            }
            squares[h] = quad_sum(squares[h]);
        }
    }

    // This warp's share of fn z, then the block's, then out to the blocks that need it.
    __device__ __forceinline__ void send_sums(int parity, bool only_inputs, int next_tile) {
        float d[N][4] = {};
        if (!only_inputs) {
#pragma unroll
            for (int k = 0; k < G; k++)
#pragma unroll
                for (int i = 0; i < STREAMS; i++) {
                    const uint32_t first[4] = {v[0][k][i][0], v[1][k][i][0], v[0][k][i][1], v[1][k][i][1]};
                    const uint32_t second[4] = {v[0][k][i][2], v[1][k][i][2], v[0][k][i][3], v[1][k][i][3]};
#pragma unroll
                    for (int n = 0; n < N; n++) {
                        const int patch = ((warp * G + k) * STREAMS + i) * N + n;
                        const uint4 hi = s.fn[patch][0][lane], lo = s.fn[patch][1][lane];
                        mma(d[n], first, hi.x, hi.y);
                        mma(d[n], second, hi.z, hi.w);
                        mma(d[n], first, lo.x, lo.y);
                        mma(d[n], second, lo.z, lo.w);
                    }
                }
        }
        __syncthreads();  // the last tile's sums have been read
        if ((lane & 3) == 0) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s.squares[0][warp][row + 8 * h] = squares[h];
                s.squares[1][warp][row + 8 * h] = x_squares[h];
            }
        }
        if (WARPS > SLOTS) {
            if (warp >= SLOTS) put_products(d, warp - SLOTS, false);
            __syncthreads();
            if (warp < SLOTS) put_products(d, warp, true);
        } else {
            put_products(d, warp, false);
        }
        __syncthreads();
        expect(parity, next_tile);
        for (int i = threadIdx.x; i < TILE * (OUTPUTS + FIELDS - 4); i += WARPS * 32) {
            float sum = 0;
            int token, output;
            if (i < TILE * OUTPUTS) {
                token = i / OUTPUTS, output = i % OUTPUTS;
                if (MODE == HEAD && output >= STREAMS) continue;
#pragma unroll
                for (int q = 0; q < SLOTS; q++) sum += s.products[q][i];
            } else {
                const int which = (i - TILE * OUTPUTS) / TILE;
                token = i % TILE, output = which;
#pragma unroll
                for (int q = 0; q < WARPS; q++) sum += s.squares[which][q][token];
                output = -1 - which;
            }
            if (output < STREAMS) {
                const int field = output < 0 ? STREAMS - 1 - output : output;
#pragma unroll
                for (int r = 0; r < CLUSTER; r++) send(&s.everyone[parity][rank][field][token], &s.ready[parity], r, sum);
            } else {
                send(&s.owner[parity][rank][token & 1][output - STREAMS], &s.ready[parity], token >> 1, sum);
            }
        }
    }

    __device__ __forceinline__ void put_products(const float (&d)[N][4], int slot, bool add) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float2* p = (float2*)&s.products[slot][(row + 8 * h) * OUTPUTS + n * 8 + (lane & 3) * 2];
                float2 value = make_float2(d[n][2 * h], d[n][2 * h + 1]);
                if (add) value.x += p->x, value.y += p->y;
                *p = value;
            }
    }

    __device__ __forceinline__ float from_everyone(int parity, int field, int token) {
        const int q = (lane & 3) * 2;
        return quad_sum(s.everyone[parity][q][field][token] + s.everyone[parity][q + 1][field][token]);
    }

    // RMSNorm of the layer input whose squares have just come together.
    __device__ __forceinline__ void write_inputs(int tile, int parity) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int token = tile * TILE + row + 8 * h;
            const float r = rsqrtf(from_everyone(parity, 5, row + 8 * h) / HIDDEN + a.rms_eps);
#pragma unroll
            for (int k = 0; k < G; k++) {
                const float* w = s.norm + (column - rank * COLUMNS) + 32 * k;
                uint32_t out[4];
#pragma unroll
                for (int p = 0; p < 4; p++)
                    out[p] = pack(low(x[h][k][p]) * r * w[2 * p], high(x[h][k][p]) * r * w[2 * p + 1]);
                if (token < a.tokens) store16(a.input_out + (size_t)token * HIDDEN + column + 32 * k, out[0], out[1], out[2], out[3]);
            }
        }
    }

    // The gated sum over streams: the head's output, or the layer input before its norm.
    __device__ __forceinline__ void mix(int tile, int parity) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int t = row + 8 * h, token = tile * TILE + t, mine = lane & 3;
            const float r = rsqrtf(from_everyone(parity, 4, t) / (STREAMS * HIDDEN) + a.rms_eps);
            float sum = 0;
#pragma unroll
            for (int q = 0; q < CLUSTER; q++) sum += s.everyone[parity][q][mine][t];
            const float gate = sigmoid(sum * r * a.scale[0] + a.base[mine]) + a.hc_eps;
            float g[STREAMS];
#pragma unroll
            for (int i = 0; i < STREAMS; i++) g[i] = __shfl_sync(0xffffffffu, gate, (lane & ~3) + i);
            float total = 0;
#pragma unroll
            for (int k = 0; k < G; k++) {
                uint32_t out[4];
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    float lo = g[0] * low(v[h][k][0][p]), hi = g[0] * high(v[h][k][0][p]);
#pragma unroll
                    for (int i = 1; i < STREAMS; i++) {
                        lo = fmaf(g[i], low(v[h][k][i][p]), lo);
                        hi = fmaf(g[i], high(v[h][k][i][p]), hi);
                    }
                    out[p] = pack(lo, hi);
                    if (MODE != HEAD) {
                        total = fmaf(low(out[p]), low(out[p]), total);
                        total = fmaf(high(out[p]), high(out[p]), total);
                        x[h][k][p] = out[p];
                    }
                }
                if (MODE == HEAD && token < a.tokens)
                    store16(a.input_out + (size_t)token * HIDDEN + column + 32 * k, out[0], out[1], out[2], out[3]);
            }
            if (MODE != HEAD) x_squares[h] = quad_sum(total);
        }
    }

    __device__ __forceinline__ void keep_logits(int slot, int parity) {
        const int i = threadIdx.x;
        if (i >= 2 * GATES) return;
        const int which = i / GATES, output = i % GATES;
        float sum = 0, total = 0;
#pragma unroll
        for (int q = 0; q < CLUSTER; q++) {
            sum += s.owner[parity][q][which][output];
            total += s.everyone[parity][q][4][rank * 2 + which];
        }
        s.kept[slot * 2 + which][output] = sum * rsqrtf(total / (STREAMS * HIDDEN) + a.rms_eps);
    }
};

template <int WARPS, Mode MODE, bool MEAN>
__global__ void __launch_bounds__(WARPS * 32, 1) mhc_kernel(const Args a) {
    extern __shared__ __align__(16) char raw[];
    Shared<MODE>& s = *reinterpret_cast<Shared<MODE>*>(raw);
    const int rank = cluster_rank(), first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
    const int tiles = (a.tokens + TILE - 1) / TILE;
    Block<WARPS, MODE, MEAN> b(a, s, rank);
    b.load(first);
    keep_fn<MODE, WARPS * 32>(s, a.fn, rank * COLUMNS);
    if (MODE != HEAD)
        for (int i = threadIdx.x; i < COLUMNS; i += WARPS * 32) s.norm[i] = a.norm[rank * COLUMNS + i];
    b.first_gates(first);
    if (threadIdx.x == 0) {
        barrier_init(&s.ready[0]);
        barrier_init(&s.ready[1]);
        barrier_init_seen();
    }
    cluster_barrier();  // before any block writes into another one
    int round = 0, kept_first = first;
    for (int tile = first; tile < tiles; tile += step, round++) {
        const int parity = round & 1, slot = round % (KEPT / 2);
        b.make_streams(tile, parity);
        if (tile + step < tiles) b.load(tile + step);
        b.send_sums(parity, false, tile + step);
        barrier_wait(&s.ready[parity], (round >> 1) & 1);
        if (MODE != HEAD && round > 0) b.write_inputs(tile - step, parity);
        b.mix(tile, parity);
        if (MODE == HEAD) continue;
        b.keep_logits(slot, parity);
        if (slot == KEPT / 2 - 1 || tile + step >= tiles) {
            __syncthreads();
            finish_gates(a, s.kept, 2 * (slot + 1), kept_first, step, rank);
            kept_first = tile + step;
        }
    }
    if (MODE == HEAD) return;
    b.send_sums(round & 1, true, tiles);
    barrier_wait(&s.ready[round & 1], (round >> 1) & 1);
    b.write_inputs(first + (round - 1) * step, round & 1);
}

template <int WARPS, Mode MODE, bool MEAN>
int launch(const Args& a, cudaStream_t stream) {
    static int resident = 0;  // clusters that fit at once; the same on every device of one kind
    auto kernel = mhc_kernel<WARPS, MODE, MEAN>;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {CLUSTER, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CLUSTER * 1024);
    config.blockDim = dim3(WARPS * 32);
    config.dynamicSmemBytes = sizeof(Shared<MODE>);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (resident == 0) {
        cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<MODE>));
        if (error == cudaSuccess) error = cudaOccupancyMaxActiveClusters(&resident, kernel, &config);
        if (error != cudaSuccess) return error;
        if (resident == 0) return cudaErrorLaunchOutOfResources;
    }
    const int tiles = (a.tokens + TILE - 1) / TILE;
    config.gridDim = dim3(CLUSTER * (tiles < resident ? tiles : resident));
    return cudaLaunchKernelEx(&config, kernel, a);
}

// Returns a cudaError_t; -1 for a mode or number of warps that was not compiled.
extern "C" int mhc_launch(int mode, int warps, const Args* a, void* stream) {
    cudaStream_t on = (cudaStream_t)stream;
    const bool mean = a->mean != nullptr;
#define PICK(W)                                                                                   \
    if (warps == W && mode == SEAM) return launch<W, SEAM, false>(*a, on);                        \
    if (warps == W && mode == PRE) return launch<W, PRE, false>(*a, on);                          \
    if (warps == W && mode == HEAD) return mean ? launch<W, HEAD, true>(*a, on) : launch<W, HEAD, false>(*a, on);
    PICK(8)
    PICK(16)
    return -1;
}

extern "C" const char* mhc_error(int code) { return cudaGetErrorString((cudaError_t)code); }
