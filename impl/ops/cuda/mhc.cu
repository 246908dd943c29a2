// mHC seams, PRE and the fused heads for Hopper: a cluster of blocks holds tiles of 16 tokens in registers.
//
// Each block owns H/CLUSTER columns of all streams. It reads them once, makes the new streams (POST), writes them, and
// keeps them as the A fragments of mma.m16n8k16 until the tile's gates are known: the streams are never read again. fn
// stays in shared memory for the whole launch, split into two bf16 terms (16 significant bits; the streams are bf16
// already). Partial sums over a block's columns travel through distributed shared memory (st.async), counted by a barrier
// in the receiving block, once a tile: the sum of squares of a tile's layer input rides with the next tile's sums. A tile
// is one long chain of waits (loads, sums of the block, sums of the cluster), so a block runs CHAINS of them side by
// side, each of WARPS warps on tiles of its own; they share nothing but fn. No fence and no cluster barrier stands in the
// loop: either would wait for the tile's stores and for the loads of the next one, which are issued before the products
// of this one. Every element is read and overwritten by one and the same thread, so outputs may alias inputs at any
// number of tokens. Every row is summed in one fixed order: its bits depend on that row alone.

#include "mhc_parts.cuh"

template <class CUT, bool MEAN>
struct Block {
    static constexpr Mode MODE = CUT::MODE;
    static constexpr int G = CUT::G, OUTPUTS = CUT::OUTPUTS, N = OUTPUTS / 8, CLUSTER = CUT::CLUSTER, WARPS = CUT::WARPS;
    static constexpr int THREADS = WARPS * 32;
    const Args& a;
    Shared<CUT>& s;
    Chain<CUT>& c;
    const int rank, number, thread, warp, lane, row, column;  // row: token of the first half; column: this lane's first one
    uint4 in_y[2][G], in_r[2][G][STREAMS];
    uint32_t v[2][G][STREAMS][4];                 // new streams of two tokens
    uint32_t x[2][CUT::X_SHARED ? 1 : G][4];      // layer input of the tile before, where it is not in shared memory
    float x_squares[2] = {0, 0};

    __device__ __forceinline__ Block(const Args& a, Shared<CUT>& s, int rank)
        : a(a), s(s), c(s.chain[threadIdx.x / THREADS]), rank(rank), number(threadIdx.x / THREADS),
          thread(threadIdx.x % THREADS), warp(thread >> 5), lane(thread & 31), row(lane >> 2),
          column(rank * CUT::COLUMNS + warp * G * 32 + (lane & 3) * 8) {}

    __device__ __forceinline__ void sync() { barrier_of(1 + number, THREADS); }

    // Whether this lane holds the diagonal of a product of tokens with tokens, at [row & 1] and [2 + (row & 1)].
    __device__ __forceinline__ bool diagonal() const { return (lane & 3) == row >> 1; }

    __device__ __forceinline__ void load(int tile) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int token = tile * TILE + row + 8 * h;
            const bool live = token < a.tokens;
            const uint4 zero = make_uint4(0, 0, 0, 0);
            const __nv_bfloat16* y = a.y + (size_t)token * HIDDEN + column;
            const __nv_bfloat16* residual = a.residual + (size_t)token * STREAMS * HIDDEN + column;
#pragma unroll
            for (int k = 0; k < G; k++) {
                if (MODE != PRE) in_y[h][k] = live ? ::load<CUT::READ>(y + 32 * k) : zero;
#pragma unroll
                for (int i = 0; i < STREAMS; i++) in_r[h][k][i] = live ? ::load<CUT::READ>(residual + i * HIDDEN + 32 * k) : zero;
            }
        }
    }

    __device__ __forceinline__ void first_gates(int tile) {
        for (int i = thread; MODE != PRE && i < TILE * GATES; i += THREADS) {
            const int token = tile * TILE + i % TILE, g = i / TILE;
            if (token >= a.tokens) continue;
            if (g < 4) c.post[0][i % TILE][g] = a.post[(size_t)token * 4 + g];
            else c.comb[0][i % TILE][g - 4] = a.comb[(size_t)token * 16 + g - 4];
        }
    }

    // What this block waits for at every tile: the sums, and the gates of the next tile.
    __device__ __forceinline__ void expect(int parity, int next_tile) {
        if (thread != 0) return;
        const int left = MODE == PRE ? 0 : a.tokens - next_tile * TILE, tokens = left < 0 ? 0 : left < TILE ? left : TILE;
        const int owned = MODE == HEAD ? 0 : CUT::OWNED * GATES * 4;
        barrier_expect(&c.ready[parity], CLUSTER * (TILE * 24 + owned) + tokens * 4 * GATES);
        if (tokens == 0) return;
        fetch(c.post[parity ^ 1][0], a.post + (size_t)next_tile * TILE * 4, tokens * 16, &c.ready[parity]);
        fetch(c.comb[parity ^ 1][0], a.comb + (size_t)next_tile * TILE * 16, tokens * 64, &c.ready[parity]);
    }

    // POST, rounded to bf16: what anyone reads from here on is the rounded stream.
    __device__ __forceinline__ void make_streams(int tile, int parity) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int token = tile * TILE + row + 8 * h;
            const bool live = token < a.tokens;
            float g[GATES];
            if (MODE != PRE) {
                *(float4*)g = *(const float4*)c.post[parity][row + 8 * h];
#pragma unroll
                for (int q = 0; q < 4; q++) *(float4*)(g + 4 + 4 * q) = *(const float4*)&c.comb[parity][row + 8 * h][4 * q];
            }
            __nv_bfloat16* new_streams = a.residual_out + (size_t)token * STREAMS * HIDDEN + column;
#pragma unroll
            for (int k = 0; k < G; k++) {
                uint32_t mean[4];
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    float sum[2] = {0, 0};
                    const uint32_t old[4] = {word(in_r[h][k][0], p), word(in_r[h][k][1], p), word(in_r[h][k][2], p), word(in_r[h][k][3], p)};
                    const uint32_t yy = MODE == PRE ? 0 : word(in_y[h][k], p);
#pragma unroll
                    for (int j = 0; j < STREAMS; j++) {
                        uint32_t out = old[j];
                        if (MODE != PRE) {
                            const float c[4] = {g[4 + j], g[8 + j], g[12 + j], g[16 + j]};
                            out = new_pair(g[j], c, yy, old);
                        }
                        v[h][k][j][p] = out;
                        if (MEAN) sum[0] = __fadd_rn(sum[0], low(out)), sum[1] = __fadd_rn(sum[1], high(out));
                    }
                    if (MEAN) mean[p] = pack(sum[0] * 0.25f, sum[1] * 0.25f);
                }
                if (!live) continue;
                if (MODE == SEAM) {
#pragma unroll
                    for (int j = 0; j < STREAMS; j++)
                        store16(new_streams + j * HIDDEN + 32 * k, v[h][k][j][0], v[h][k][j][1], v[h][k][j][2], v[h][k][j][3]);
                }
                if (MEAN) store16(a.mean + (size_t)token * a.mean_row + column + 32 * k, mean[0], mean[1], mean[2], mean[3]);
            }
        }
    }

    // This warp's share of fn z, then the block's, then out to the blocks that need it. What is overwritten here has been
    // read: a warp comes here once the tile before was complete everywhere, to which every reader of it has sent a part.
    __device__ __forceinline__ void send_sums(int parity, bool only_inputs, int next_tile) {
        float d[N][4] = {}, e[2][4] = {};  // e: tokens with tokens, of which the diagonal is their sums of squares
        if (!only_inputs) {
#pragma unroll
            for (int k = 0; k < G; k++)
#pragma unroll
                for (int i = 0; i < STREAMS; i++) {
                    const uint32_t first[4] = {v[0][k][i][0], v[1][k][i][0], v[0][k][i][1], v[1][k][i][1]};
                    const uint32_t second[4] = {v[0][k][i][2], v[1][k][i][2], v[0][k][i][3], v[1][k][i][3]};
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        mma(e[h], first, v[h][k][i][0], v[h][k][i][1]);
                        mma(e[h], second, v[h][k][i][2], v[h][k][i][3]);
                    }
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
        if (diagonal()) {
            c.warp_squares[0][warp][row] = row & 1 ? e[0][1] : e[0][0];
            c.warp_squares[0][warp][row + 8] = row & 1 ? e[1][3] : e[1][2];
            c.warp_squares[1][warp][row] = x_squares[0];
            c.warp_squares[1][warp][row + 8] = x_squares[1];
        }
        if (WARPS > SLOTS) {
            if (warp >= SLOTS) put_products(d, warp - SLOTS, false);
            sync();
            if (warp < SLOTS) put_products(d, warp, true);
        } else {
            put_products(d, warp, false);
        }
        sync();
        expect(parity, next_tile);
        if (thread >= TILE * 16) return;
        // 16 lanes a token: sums of outputs, then one lane a block of the cluster.
        const int token = thread >> 4, part = thread & 15;
        float first = 0, second = 0;
        if (part < OUTPUTS) {
#pragma unroll
            for (int q = 0; q < SLOTS; q++) first += c.products[q][token * OUTPUTS + part];
        }
        if (OUTPUTS > 16 && part < 8) {
#pragma unroll
            for (int q = 0; q < SLOTS; q++) second += c.products[q][token * OUTPUTS + part + 16];
        } else if (part >= 8 && part < 10) {
#pragma unroll
            for (int q = 0; q < WARPS; q++) second += c.warp_squares[part - 8][q][token];
        }
        const int base = lane & 16;
        float4 gates;
        gates.x = __shfl_sync(0xffffffffu, first, base), gates.y = __shfl_sync(0xffffffffu, first, base + 1);
        gates.z = __shfl_sync(0xffffffffu, first, base + 2), gates.w = __shfl_sync(0xffffffffu, first, base + 3);
        float2 squares;
        squares.x = __shfl_sync(0xffffffffu, second, base + 8), squares.y = __shfl_sync(0xffffffffu, second, base + 9);
        if (part < CLUSTER) {
            send(&c.gates[parity][rank][token], &c.ready[parity], part, gates);
            send(&c.squares[parity][rank][token], &c.ready[parity], part, squares);
        }
        if (MODE == HEAD) return;
        float* mine = c.owner[parity][rank][token % CUT::OWNED];
        const int owner = token / CUT::OWNED;
        if (part >= STREAMS) send(mine + part - STREAMS, &c.ready[parity], owner, first);
        if (part < 8) send(mine + part + 12, &c.ready[parity], owner, second);
    }

    __device__ __forceinline__ void put_products(const float (&d)[N][4], int slot, bool add) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float2* p = (float2*)&c.products[slot][(row + 8 * h) * OUTPUTS + n * 8 + (lane & 3) * 2];
                float2 value = make_float2(d[n][2 * h], d[n][2 * h + 1]);
                if (add) value.x += p->x, value.y += p->y;
                *p = value;
            }
    }

    // Sums of squares of a token over all columns: of its streams, of its layer input one tile before.
    __device__ __forceinline__ float2 squares_of(int parity, int token) {
        float2 sum = make_float2(0, 0);
#pragma unroll
        for (int q = 0; q < CLUSTER / 4; q++) {
            const float2 part = c.squares[parity][q * 4 + (lane & 3)][token];
            sum.x += part.x, sum.y += part.y;
        }
        return make_float2(quad_sum(sum.x), quad_sum(sum.y));
    }

    __device__ __forceinline__ uint4& kept_x(int h, int k) { return c.x[(h * G + k) * THREADS + thread]; }

    // RMSNorm of the layer input whose squares have just come together.
    __device__ __forceinline__ void write_inputs(int tile, int h, float squares) {
        const int token = tile * TILE + row + 8 * h;
        const float r = rsqrtf(squares / HIDDEN + a.rms_eps);
        if (token >= a.tokens) return;
#pragma unroll
        for (int k = 0; k < G; k++) {
            float w[8];
            const float4* from = (const float4*)(s.norm + (column - rank * CUT::COLUMNS) + 32 * k);
            *(float4*)w = from[0], *(float4*)(w + 4) = from[1];
            const uint32_t(&last)[4] = x[h][CUT::X_SHARED ? 0 : k];
            const uint4 old = CUT::X_SHARED ? kept_x(h, k) : make_uint4(last[0], last[1], last[2], last[3]);
            uint32_t out[4];
#pragma unroll
            for (int p = 0; p < 4; p++)
                out[p] = pack(low(word(old, p)) * r * w[2 * p], high(word(old, p)) * r * w[2 * p + 1]);
            store16(a.input_out + (size_t)token * HIDDEN + column + 32 * k, out[0], out[1], out[2], out[3]);
        }
    }

    // The gated sum over streams, the head's output or the layer input before its norm; and the layer inputs before.
    __device__ __forceinline__ void mix(int tile, int last_tile, int parity) {
        uint32_t out[2][G][4];
        const int mine = lane & 3;
        const float scale = a.scale[0], base = a.base[mine];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int t = row + 8 * h, token = tile * TILE + t;
            const float2 squares = squares_of(parity, t);
            if (MODE != HEAD && last_tile >= 0) write_inputs(last_tile, h, squares.y);
            float sum[2] = {0, 0};
#pragma unroll
            for (int q = 0; q < CLUSTER; q++) sum[q & 1] += ((const float*)&c.gates[parity][q][t])[mine];
            const float r = rsqrtf(squares.x / (STREAMS * HIDDEN) + a.rms_eps);
            const float gate = sigmoid((sum[0] + sum[1]) * r * scale + base) + a.hc_eps;
            float g[STREAMS];
#pragma unroll
            for (int i = 0; i < STREAMS; i++) g[i] = __shfl_sync(0xffffffffu, gate, (lane & ~3) + i);
#pragma unroll
            for (int k = 0; k < G; k++) {
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    float lo = g[0] * low(v[h][k][0][p]), hi = g[0] * high(v[h][k][0][p]);
#pragma unroll
                    for (int i = 1; i < STREAMS; i++) {
                        lo = fmaf(g[i], low(v[h][k][i][p]), lo);
                        hi = fmaf(g[i], high(v[h][k][i][p]), hi);
                    }
                    out[h][k][p] = pack(lo, hi);
                    if (MODE != HEAD && !CUT::X_SHARED) x[h][k][p] = out[h][k][p];
                }
                const uint32_t(&o)[4] = out[h][k];
                if (MODE == HEAD && token < a.tokens)
                    store16(a.input_out + (size_t)token * HIDDEN + column + 32 * k, o[0], o[1], o[2], o[3]);
                if (CUT::X_SHARED) kept_x(h, k) = make_uint4(o[0], o[1], o[2], o[3]);
            }
        }
        if (MODE == HEAD) return;
        float e[2][4] = {};
#pragma unroll
        for (int k = 0; k < G; k++) {
            const uint32_t first[4] = {out[0][k][0], out[1][k][0], out[0][k][1], out[1][k][1]};
            const uint32_t second[4] = {out[0][k][2], out[1][k][2], out[0][k][3], out[1][k][3]};
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mma(e[h], first, out[h][k][0], out[h][k][1]);
                mma(e[h], second, out[h][k][2], out[h][k][3]);
            }
        }
        x_squares[0] = row & 1 ? e[0][1] : e[0][0];
        x_squares[1] = row & 1 ? e[1][3] : e[1][2];
    }

    // The logits of the tokens this block owns, by the chain's first warp, which finishes them a warp of tokens at a time.
    __device__ __forceinline__ void keep_logits(int slot, int parity) {
#pragma unroll
        for (int t = 0; t < CUT::OWNED; t++) {
            float sum = 0, total = 0;
#pragma unroll
            for (int q = 0; q < CLUSTER; q++) {
                if (lane < GATES) sum += c.owner[parity][q][t][lane];
                total += c.squares[parity][q][rank * CUT::OWNED + t].x;
            }
            if (lane < GATES) c.kept[slot * CUT::OWNED + t][lane] = sum * rsqrtf(total / (STREAMS * HIDDEN) + a.rms_eps);
        }
    }

    __device__ __forceinline__ void finish_kept(int count, int first_tile, int step) {
        __syncwarp();
        const int token = (first_tile + lane / CUT::OWNED * step) * TILE + rank * CUT::OWNED + lane % CUT::OWNED;
        if (lane < count && token < a.tokens) finish_gates(a, c.kept[lane], token);
        __syncwarp();
    }

    __device__ __forceinline__ void run(int first, int step, int tiles) {
        constexpr int ROUNDS = KEPT / CUT::OWNED;  // tiles whose logits are kept
        int round = 0, kept_first = first;
        for (int tile = first; tile < tiles; tile += step, round++) {
            const int parity = round & 1, slot = round % ROUNDS;
            make_streams(tile, parity);
            if (tile + step < tiles) load(tile + step);
            send_sums(parity, false, tile + step);
            barrier_wait(&c.ready[parity], (round >> 1) & 1);
            mix(tile, round > 0 ? tile - step : -1, parity);
            if (MODE == HEAD || warp != 0) continue;
            keep_logits(slot, parity);
            if (slot == ROUNDS - 1 || tile + step >= tiles) {
                finish_kept((slot + 1) * CUT::OWNED, kept_first, step);
                kept_first = tile + step;
            }
        }
        if (MODE == HEAD || round == 0) return;
        send_sums(round & 1, true, tiles);
        barrier_wait(&c.ready[round & 1], (round >> 1) & 1);
#pragma unroll
        for (int h = 0; h < 2; h++)
            write_inputs(first + (round - 1) * step, h, squares_of(round & 1, row + 8 * h).y);
    }
};

template <class CUT, bool MEAN>
__global__ void __launch_bounds__(CUT::CHAINS * CUT::WARPS * 32, CUT::RESIDENT) mhc_kernel(const Args a) {
    Shared<CUT>& s = *reinterpret_cast<Shared<CUT>*>(dynamic_shared());
    const int rank = cluster_rank();
    Block<CUT, MEAN> b(a, s, rank);
    const int first = blockIdx.x / CUT::CLUSTER * CUT::CHAINS + b.number, step = gridDim.x / CUT::CLUSTER * CUT::CHAINS;
    b.load(first);
    keep_fn<CUT>(s, a.fn, rank * CUT::COLUMNS);
    if (CUT::MODE != HEAD)
        for (int i = threadIdx.x; i < CUT::COLUMNS; i += CUT::CHAINS * CUT::WARPS * 32) s.norm[i] = a.norm[rank * CUT::COLUMNS + i];
    b.first_gates(first);
    if (b.thread == 0) {
        barrier_init(&b.c.ready[0]);
        barrier_init(&b.c.ready[1]);
        barrier_init_seen();
    }
    cluster_barrier();  // before any block writes into another one
    b.run(first, step, (a.tokens + TILE - 1) / TILE);
}

template <class CUT, bool MEAN>
static int launch(const Args& a, cudaStream_t stream) {
    static int known[DEVICES] = {};  // clusters that fit at once
    auto kernel = mhc_kernel<CUT, MEAN>;
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess && device >= DEVICES) error = cudaErrorInvalidDevice;
    if (error != cudaSuccess) return error;
    int& resident = known[device];
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {CUT::CLUSTER, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(CUT::CLUSTER * 1024);
    config.blockDim = dim3(CUT::CHAINS * CUT::WARPS * 32);
    config.dynamicSmemBytes = sizeof(Shared<CUT>);
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    if (resident == 0) {
        static_assert(sizeof(Shared<CUT>) <= 232448 / CUT::RESIDENT - (CUT::RESIDENT > 1 ? 1024 : 0), "shared memory of an SM");
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<CUT>));
        if (error == cudaSuccess && CUT::CLUSTER > 8)
            error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
        if (error == cudaSuccess) error = cudaOccupancyMaxActiveClusters(&resident, kernel, &config);
        if (error != cudaSuccess) return error;
        if (resident == 0) return cudaErrorLaunchOutOfResources;
    }
    const int tiles = (a.tokens + TILE - 1) / TILE;
    const int wanted = (tiles + CUT::CHAINS - 1) / CUT::CHAINS;
    config.gridDim = dim3(CUT::CLUSTER * (wanted < resident ? wanted : resident));
    return cudaLaunchKernelEx(&config, kernel, a);
}

// hint: how old streams and y are read, a number of `Hint`. Returns a cudaError_t; -1 for a cut that was not compiled.
extern "C" int mhc_launch(int mode, int cluster, int warps, int chains, int blocks, int hint, const Args* a, void* stream) {
    cudaStream_t on = (cudaStream_t)stream;
    const bool mean = a->mean != nullptr;
#define SAME(C, W, K, R, HINT) (cluster == C && warps == W && chains == K && blocks == R && hint == HINT)
#define PICK_SEAM(C, W, K)                                                                            \
    if (SAME(C, W, K, 1, STREAMING) && mode == SEAM) return launch<Cut<SEAM, C, W, K, 1>, false>(*a, on); \
    if (SAME(C, W, K, 1, STREAMING) && mode == PRE) return launch<Cut<PRE, C, W, K, 1>, false>(*a, on);
#define PICK_HEAD(C, W, K, R, HINT)                                                                                      \
    if (SAME(C, W, K, R, HINT) && mode == HEAD)                                                                          \
        return mean ? launch<Cut<HEAD, C, W, K, R, HINT>, true>(*a, on) : launch<Cut<HEAD, C, W, K, R, HINT>, false>(*a, on);
    PICK_SEAM(8, 8, 1)
    PICK_SEAM(8, 16, 1)
    PICK_SEAM(16, 8, 2)
    PICK_HEAD(8, 8, 1, 1, STREAMING)
    PICK_HEAD(8, 8, 1, 1, PLAIN)
    PICK_HEAD(8, 8, 1, 1, NO_ALLOCATE)
    PICK_HEAD(8, 16, 1, 1, STREAMING)
    PICK_HEAD(8, 16, 1, 1, PLAIN)
    PICK_HEAD(8, 16, 1, 1, NO_ALLOCATE)
    PICK_HEAD(16, 8, 2, 1, STREAMING)
    PICK_HEAD(16, 8, 1, 2, STREAMING)
    PICK_HEAD(16, 8, 1, 2, PLAIN)
    return -1;
}

extern "C" const char* mhc_error(int code) { return cudaGetErrorString((cudaError_t)code); }
