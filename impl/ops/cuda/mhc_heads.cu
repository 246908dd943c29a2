// mHC's fused heads for many tokens on Hopper: a cluster of blocks holds tiles of 16 tokens on chip until their gates are known.
//
// Each block owns HIDDEN / CLUSTER columns of all streams. A warp's 64 columns of a tile come to shared memory as boxes, a few
// tiles ahead; it makes the new streams (POST), writes their mean where one is wanted, and keeps them as the A fragments
// of mma.m16n8k16: they are never written, and never read again. fn stays in shared memory for the whole launch, as two
// bf16 terms (16 significant bits; the streams are bf16 already), which are the two halves of one B fragment. Partial sums
// over a block's columns travel through distributed shared memory (st.async), counted by a barrier in the receiving block,
// once a tile. A tile is one long chain of waits (its boxes, sums of the block, sums of the cluster), so a block runs
// CHAINS of them side by side, each on tiles of its own; they share nothing but fn. y is read by the warp that writes its
// place, and before it does, so either output may be y. Every row is summed in one fixed order: its bits depend on that row
// alone.

#include "mhc_parts.cuh"

constexpr int WIDTH = COLUMNS_OF_BOX, GROUPS = WIDTH / 32;  // columns of a warp, and groups of 32 that an mma's fragments share
constexpr int ROWS = (STREAMS + 1) * TILE;                  // of a tile: four streams, then y

// Blocks of a cluster, chains of a block, tiles of a chain that are there or on their way, blocks of a multiprocessor.
template <int CLUSTER_, int CHAINS_, int STAGES_, int RESIDENT_, bool MEAN_>
struct Cut {
    static constexpr int CLUSTER = CLUSTER_, CHAINS = CHAINS_, STAGES = STAGES_, RESIDENT = RESIDENT_;
    static constexpr bool MEAN = MEAN_;
    static constexpr int COLUMNS = HIDDEN / CLUSTER, WARPS = COLUMNS / WIDTH, THREADS = WARPS * 32;  // of a chain
    static_assert(COLUMNS % WIDTH == 0 && THREADS >= TILE * 8, "columns go round, and 8 lanes a token sum up");
};

template <class CUT>
struct Chain {
    float4 gates[2][CUT::CLUSTER][TILE];  // products of every block's columns with fn
    float squares[2][CUT::CLUSTER][TILE];
    float products[CUT::WARPS][TILE][STREAMS], warp_squares[CUT::WARPS][TILE];
    float post[TILE][4], comb[TILE][16];
    uint64_t come[CUT::STAGES][CUT::WARPS], ready[2];  // boxes of a warp; sums of the tile and gates of the next
};

template <class CUT>
struct Shared {
    uint4 tile[CUT::CHAINS][CUT::STAGES][CUT::WARPS][ROWS][WIDTH / 8];  // by warps; places of a row's pieces: `piece_at`
    uint4 fn[CUT::COLUMNS / 32 * STREAMS][32];  // in fragment order
    Chain<CUT> chain[CUT::CHAINS];
};

struct Maps {
    BoxMap residual, y;
};

template <class CUT>
struct Block {
    static constexpr int CLUSTER = CUT::CLUSTER, STAGES = CUT::STAGES, THREADS = CUT::THREADS;
    const Args& a;
    const Maps& maps;
    Shared<CUT>& s;
    const int rank, number, thread, warp, lane, quad, columns;
    Chain<CUT>& c;
    uint32_t v[2][GROUPS][STREAMS][4];  // new streams of two tokens

    __device__ __forceinline__ Block(const Args& a, const Maps& maps, Shared<CUT>& s, int rank)
        : a(a), maps(maps), s(s), rank(rank), number(threadIdx.x / THREADS), thread(threadIdx.x % THREADS), warp(thread >> 5),
          lane(thread & 31), quad(lane & 3), columns(rank * CUT::COLUMNS + warp * WIDTH), c(s.chain[number]) {}

    __device__ __forceinline__ void sync() { barrier_of(1 + number, THREADS); }

    // The tile's token of a lane's half h: lanes 8n .. 8n + 7, which read at once, have tokens n and n + 4.
    __device__ __forceinline__ int token(int h) const { return (lane >> 3) + (lane >> 2 & 1) * 4 + h * 8; }

    // The warp's own columns of a tile.
    __device__ __forceinline__ void ask(int tile, int stage) {
        if (lane > 0) return;
        uint4(*rows)[WIDTH / 8] = s.tile[number][stage][warp];
        uint64_t* come = &c.come[stage][warp];
        barrier_expect(come, ROWS * WIDTH * 2);
        fetch_box(rows[0], maps.residual, columns, tile * TILE, come);
        fetch_box(rows[STREAMS * TILE], maps.y, columns, tile * TILE, come);
    }

    __device__ __forceinline__ void first_gates(int tile) {
        for (int i = thread; i < TILE * GATES; i += THREADS) {
            const int t = i % TILE, token = tile * TILE + t, g = i / TILE;
            if (token >= a.tokens) continue;
            if (g < 4) c.post[t][g] = a.post[(size_t)token * 4 + g];
            else c.comb[t][g - 4] = a.comb[(size_t)token * 16 + g - 4];
        }
    }

    // What this block waits for at every tile: the sums, and the gates of the next tile, in the place of those of this one.
    __device__ __forceinline__ void expect(int parity, int next_tile) {
        if (thread != 0) return;
        const int left = a.tokens - next_tile * TILE, tokens = left < 0 ? 0 : left < TILE ? left : TILE;
        barrier_expect(&c.ready[parity], CLUSTER * TILE * 20 + tokens * 4 * GATES);
        if (tokens == 0) return;
        fetch(c.post[0], a.post + (size_t)next_tile * TILE * 4, tokens * 16, &c.ready[parity]);
        fetch(c.comb[0], a.comb + (size_t)next_tile * TILE * 16, tokens * 64, &c.ready[parity]);
    }

    // POST, rounded to bf16: what anyone reads from here on is the rounded stream.
    __device__ __forceinline__ void make_streams(int tile, int stage) {
        const uint4(*rows)[WIDTH / 8] = s.tile[number][stage][warp];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int t = token(h);
            float post[4], comb[16];
            *(float4*)post = *(const float4*)c.post[t];
#pragma unroll
            for (int q = 0; q < 4; q++) *(float4*)(comb + 4 * q) = *(const float4*)&c.comb[t][4 * q];
#pragma unroll
            for (int k = 0; k < GROUPS; k++) {
                const int at = piece_at(t, k * 4 + quad);
                const uint4 y = rows[STREAMS * TILE + t][at];
                uint4 r[STREAMS];
#pragma unroll
                for (int i = 0; i < STREAMS; i++) r[i] = rows[i * TILE + t][at];
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    const uint32_t old[4] = {word(r[0], p), word(r[1], p), word(r[2], p), word(r[3], p)};
#pragma unroll
                    for (int j = 0; j < STREAMS; j++) {
                        const float from[4] = {comb[j], comb[4 + j], comb[8 + j], comb[12 + j]};
                        v[h][k][j][p] = new_pair(post[j], from, word(y, p), old);
                    }
                }
            }
        }
    }

    // Their mean over streams, to memory.
    __device__ __forceinline__ void write_mean(int tile) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = tile * TILE + token(h);
#pragma unroll
            for (int k = 0; k < GROUPS; k++) {
                uint32_t mean[4];
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    float lo = 0, hi = 0;
#pragma unroll
                    for (int j = 0; j < STREAMS; j++) lo = __fadd_rn(lo, low(v[h][k][j][p])), hi = __fadd_rn(hi, high(v[h][k][j][p]));
                    mean[p] = pack(lo * 0.25f, hi * 0.25f);
                }
                if (row < a.tokens)
                    store16(a.mean + (size_t)row * a.mean_row + columns + 32 * k + quad * 8, mean[0], mean[1], mean[2], mean[3]);
            }
        }
    }

    // This warp's share of fn z, then the block's, then out to all blocks. What is overwritten here has been read: a warp
    // comes here once the tile before was complete everywhere, to which every reader of it has sent a part.
    __device__ __forceinline__ void send_sums(int parity, int next_tile) {
        float d[4] = {}, e[2][4] = {};  // e: tokens with tokens, of which the diagonal is their sums of squares
#pragma unroll
        for (int k = 0; k < GROUPS; k++)
#pragma unroll
            for (int i = 0; i < STREAMS; i++) {
                const uint32_t first[4] = {v[0][k][i][0], v[1][k][i][0], v[0][k][i][1], v[1][k][i][1]};
                const uint32_t second[4] = {v[0][k][i][2], v[1][k][i][2], v[0][k][i][3], v[1][k][i][3]};
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    mma(e[h], first, v[h][k][i][0], v[h][k][i][1]);
                    mma(e[h], second, v[h][k][i][2], v[h][k][i][3]);
                }
                const uint4 fn = s.fn[(warp * GROUPS + k) * STREAMS + i][lane];
                mma(d, first, fn.x, fn.y);
                mma(d, second, fn.z, fn.w);
            }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 both = make_float2(d[2 * h], d[2 * h + 1]);  // of the high terms; of the low ones two lanes further
            both.x += __shfl_xor_sync(0xffffffffu, both.x, 2), both.y += __shfl_xor_sync(0xffffffffu, both.y, 2);
            if (quad < 2) *(float2*)&c.products[warp][token(h)][2 * quad] = both;
            if (quad == lane >> 3) c.warp_squares[warp][token(h)] = lane >> 2 & 1 ? e[h][2 * h + 1] : e[h][2 * h];
        }
        sync();  // all sums are there, all gates of the tile have been read
        expect(parity, next_tile);
        if (thread >= TILE * 8) return;
        // 8 lanes a token: a sum each of the four gates and of the squares, then lanes for the blocks of the cluster.
        const int token = thread >> 3, part = thread & 7;
        float sum = 0;
#pragma unroll
        for (int q = 0; q < CUT::WARPS; q++) {
            if (part < STREAMS) sum += c.products[q][token][part];
            else if (part == STREAMS) sum += c.warp_squares[q][token];
        }
        const int base = lane & 24;
        float4 gates;
        gates.x = __shfl_sync(0xffffffffu, sum, base), gates.y = __shfl_sync(0xffffffffu, sum, base + 1);
        gates.z = __shfl_sync(0xffffffffu, sum, base + 2), gates.w = __shfl_sync(0xffffffffu, sum, base + 3);
        const float squares = __shfl_sync(0xffffffffu, sum, base + STREAMS);
#pragma unroll
        for (int to = part; to < CLUSTER; to += 8) {
            send(&c.gates[parity][rank][token], &c.ready[parity], to, gates);
            send(&c.squares[parity][rank][token], &c.ready[parity], to, squares);
        }
    }

    // The gated sum over streams: the head's output.
    __device__ __forceinline__ void mix(int tile, int parity) {
        const float scale = a.scale[0], base = a.base[quad];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int t = token(h), row = tile * TILE + t;
            float sum[2] = {0, 0}, squares = 0;
#pragma unroll
            for (int q = 0; q < CLUSTER; q++) sum[q & 1] += ((const float*)&c.gates[parity][q][t])[quad];
#pragma unroll
            for (int q = 0; q < CLUSTER / 4; q++) squares += c.squares[parity][q * 4 + quad][t];
            const float r = rsqrtf(quad_sum(squares) / (STREAMS * HIDDEN) + a.rms_eps);
            const float gate = sigmoid((sum[0] + sum[1]) * r * scale + base) + a.hc_eps;
            float g[STREAMS];
#pragma unroll
            for (int i = 0; i < STREAMS; i++) g[i] = __shfl_sync(0xffffffffu, gate, (lane & ~3) + i);
#pragma unroll
            for (int k = 0; k < GROUPS; k++) {
                uint32_t out[4];
#pragma unroll
                for (int p = 0; p < 4; p++) {
                    float lo = g[0] * low(v[h][k][0][p]), hi = g[0] * high(v[h][k][0][p]);
#pragma unroll
                    for (int i = 1; i < STREAMS; i++) lo = fmaf(g[i], low(v[h][k][i][p]), lo), hi = fmaf(g[i], high(v[h][k][i][p]), hi);
                    out[p] = pack(lo, hi);
                }
                if (row < a.tokens)
                    store16(a.input_out + (size_t)row * HIDDEN + columns + 32 * k + quad * 8, out[0], out[1], out[2], out[3]);
            }
        }
    }

    __device__ __forceinline__ void ask_first(int first, int step, int tiles) {
        for (int stage = 0; stage < STAGES; stage++)
            if (first + stage * step < tiles) ask(first + stage * step, stage);
    }

    __device__ __forceinline__ void run(int first, int step, int tiles) {
        int round = 0, stage = 0, phase = 0;
        for (int tile = first; tile < tiles; tile += step, round++) {
            const int parity = round & 1;
            barrier_wait(&c.come[stage][warp], phase);
            make_streams(tile, stage);
            __syncwarp();  // all lanes have read their rows
            if (tile + STAGES * step < tiles) ask(tile + STAGES * step, stage);
            if (++stage == STAGES) stage = 0, phase ^= 1;
            if (CUT::MEAN) write_mean(tile);
            send_sums(parity, tile + step);
            barrier_wait(&c.ready[parity], (round >> 1) & 1);
            mix(tile, parity);
        }
    }
};

// fn's columns of this block in the order in which lanes need them: lane (n, t) of an 8x32 patch holds columns 8t..8t+7 of
// output n's high terms for n < 4, of output n - 4's low ones else.
template <class CUT>
__device__ void keep_head_fn(Shared<CUT>& s, const float* fn, int first_column) {
#pragma unroll 4
    for (int i = threadIdx.x; i < CUT::COLUMNS / 32 * STREAMS * 32; i += CUT::CHAINS * CUT::THREADS) {
        const int lane = i & 31, patch = i >> 5, n = lane >> 2, stream = patch % STREAMS, group = patch / STREAMS;
        const float* p = fn + (size_t)(n % STREAMS) * STREAMS * HIDDEN + stream * HIDDEN + first_column + group * 32 + (lane & 3) * 8;
        float f[8];
        *(float4*)f = *(const float4*)p;
        *(float4*)(f + 4) = *(const float4*)(p + 4);
        uint32_t out[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            out[k] = pack(f[2 * k], f[2 * k + 1]);
            if (n >= STREAMS) out[k] = pack(f[2 * k] - low(out[k]), f[2 * k + 1] - high(out[k]));
        }
        s.fn[patch][lane] = make_uint4(out[0], out[1], out[2], out[3]);
    }
}

template <class CUT>
__global__ void __launch_bounds__(CUT::CHAINS * CUT::THREADS, CUT::RESIDENT) heads_kernel(const Args a, const __grid_constant__ Maps maps) {
    Shared<CUT>& s = *reinterpret_cast<Shared<CUT>*>(dynamic_shared());
    const int rank = cluster_rank(), tiles = (a.tokens + TILE - 1) / TILE;
    Block<CUT> b(a, maps, s, rank);
    const int first = blockIdx.x / CUT::CLUSTER * CUT::CHAINS + b.number, step = gridDim.x / CUT::CLUSTER * CUT::CHAINS;
    if (b.thread < CUT::STAGES * CUT::WARPS) barrier_init(&b.c.come[0][b.thread]);
    if (b.thread < 2) barrier_init(&b.c.ready[b.thread]);
    barrier_init_seen();
    __syncthreads();
    b.ask_first(first, step, tiles);
    keep_head_fn(s, a.fn, rank * CUT::COLUMNS);
    b.first_gates(first);
    cluster_barrier();  // before any block writes into another one
    b.run(first, step, tiles);
}

template <class CUT>
static int launch(const Args& a, cudaStream_t stream) {
    static int known[DEVICES] = {};  // clusters that fit at once
    auto kernel = heads_kernel<CUT>;
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
    config.blockDim = dim3(CUT::CHAINS * CUT::THREADS);
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
    Maps maps = {};
    error = make_box_map(&maps.residual, a.residual, a.tokens, STREAMS, HIDDEN);
    if (error == cudaSuccess) error = make_box_map(&maps.y, a.y, a.tokens, 1, HIDDEN);
    if (error != cudaSuccess) return error;
    const int tiles = (a.tokens + TILE - 1) / TILE;
    const int wanted = (tiles + CUT::CHAINS - 1) / CUT::CHAINS;
    config.gridDim = dim3(CUT::CLUSTER * (wanted < resident ? wanted : resident));
    return cudaLaunchKernelEx(&config, kernel, a, maps);
}

// Returns a cudaError_t; -1 for a cut that was not compiled.
extern "C" int mhc_heads_launch(int cluster, int chains, int stages, int blocks, const Args* a, void* stream) {
#define PICK(C, K, S, R)                                                     \
    if (cluster == C && chains == K && stages == S && blocks == R)           \
        return a->mean ? launch<Cut<C, K, S, R, true>>(*a, (cudaStream_t)stream) : launch<Cut<C, K, S, R, false>>(*a, (cudaStream_t)stream);
    PICK(8, 2, 1, 1)
    PICK(16, 3, 1, 1)
    PICK(16, 1, 2, 2)
    return -1;
}

extern "C" const char* mhc_heads_error(int code) { return cudaGetErrorString((cudaError_t)code); }
