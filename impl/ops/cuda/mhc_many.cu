// mHC seam and PRE for many tokens on Hopper: two kernels side by side, of which the second follows the first.
//
// A block of the first owns HIDDEN / SLICES columns of all streams for the whole launch. It keeps their fn in shared memory and
// a tile of 16 tokens for each of its teams of four warps. A warp has 64 columns of the tile to itself, which come by
// asynchronous copies: it makes the new streams, writes them, asks for the team's next tile in the old ones' place, and sums
// their products with fn in registers. The team adds its warps' sums in the place of y, and raises the tile's count.
// The first kernel leaves some multiprocessors to the second, whose blocks wait until their tile's count says that all columns
// are there: PRE gates, mix and norm over whole rows, read from the second-level cache where they were just written, so that
// the card's memory moves most bytes once; POST gates and Sinkhorn of the block's tokens at once, a lane a token.
// The first never waits for the second, and all its blocks run when those of the second may begin.
// Every element is read and overwritten by the same warp, and y is dead when layer inputs are written, so outputs may
// alias inputs.

#include "mhc_rows.cuh"

constexpr int COLUMNS = HIDDEN / SLICES;
constexpr int TEAM = 128, WIDTH = COLUMNS / 4;  // threads of a team, columns of a warp
constexpr int ROWS = (STREAMS + 1) * TILE;     // of a tile: four streams, then y
constexpr int TEAMS = 3, THREADS = TEAMS * TEAM;

template <Mode M>
struct Sliced {
    static constexpr Mode MODE = M;
    static constexpr int OUTPUTS = outputs(M), GROUPS = COLUMNS / 32;
};

template <class CUT>
struct SlicedShared {
    uint4 fn[CUT::GROUPS * STREAMS * CUT::OUTPUTS / 8][2][32];
    uint4 tile[TEAMS][TEAM / 32][ROWS][WIDTH / 8];  // by warps; places of a row's pieces: `piece_at`
    float post[TEAMS][TILE][4], comb[TEAMS][TILE][16];
};

// A block's own order of tiles: its blocks of columns go through the same ones.
struct Turns {
    int slice, first, step, count;
    __device__ __forceinline__ explicit Turns(int tokens) {
        const int tiles = (tokens + TILE - 1) / TILE;
        slice = blockIdx.x % SLICES, first = blockIdx.x / SLICES, step = gridDim.x / SLICES;
        count = first < tiles ? (tiles - first + step - 1) / step : 0;
    }
    __device__ __forceinline__ int tile(int turn) const { return first + turn * step; }
};

template <class CUT>
struct Maker {
    static constexpr Mode MODE = CUT::MODE;
    static constexpr int N = CUT::OUTPUTS / 8;
    const Args& a;
    SlicedShared<CUT>& s;
    float* sums;
    int* finished;
    const Turns turns;
    const int team, thread, warp, lane, quad, columns;

    __device__ __forceinline__ Maker(const Args& a, SlicedShared<CUT>& s, float* sums, int* finished)
        : a(a), s(s), sums(sums), finished(finished), turns(a.tokens), team(threadIdx.x / TEAM), thread(threadIdx.x % TEAM),
          warp(thread >> 5), lane(thread & 31), quad(lane & 3), columns(turns.slice * COLUMNS + warp * WIDTH) {}

    __device__ __forceinline__ int first(int turn) const { return turns.tile(turn) * TILE; }

    // The tile's token of a lane's half h: lanes 8n .. 8n + 7, which read at once, have tokens n and n + 4.
    __device__ __forceinline__ int token(int h) const { return (lane >> 3) + (lane >> 2 & 1) * 4 + h * 8; }

    // The warp asks for its own columns of a tile's rows, 8 lanes a row: of all streams, or of y. place: of the first row.
    template <int STREAMS_>
    __device__ __forceinline__ void ask_rows(const __nv_bfloat16* from, int first, int place) {
        const int row = lane >> 3, piece = lane & 7, left = a.tokens - first - row;
        from += (size_t)(first + row) * STREAMS_ * HIDDEN + columns + piece * 8;
        const uint32_t rows = shared_address(s.tile[team][warp][place + row]);
        const uint32_t near = rows + piece_at(row, piece) * 16, far = rows + piece_at(row + 4, piece) * 16;
#pragma unroll
        for (int i = 0; i < STREAMS_; i++)
#pragma unroll
            for (int t = 0; t < TILE; t += 4)
                copy16((t & 4 ? far : near) + (i * TILE + t) * WIDTH * 2, from + (t * STREAMS_ + i) * HIDDEN, t < left);
    }

    __device__ __forceinline__ void ask_streams(int first) { ask_rows<STREAMS>(a.residual, first, 0); }
    __device__ __forceinline__ void ask_y(int first) { if (MODE != PRE) ask_rows<1>(a.y, first, STREAMS * TILE); }

    __device__ __forceinline__ void ask_gates(int first) {
        if (MODE == PRE) return;
        if (thread < TILE && first + thread < a.tokens) copy16(shared_address(s.post[team][thread]), a.post + (size_t)(first + thread) * 4);
        if (thread < TILE * 4 && first + thread / 4 < a.tokens)
            copy16(shared_address((float4*)s.comb[team] + thread), a.comb + (size_t)first * 16 + thread * 4);
    }

    // New streams of one half of the tile's tokens in vLLM's rounding order; PRE's are what came.
    __device__ __forceinline__ void make(uint32_t (&v)[STREAMS][4], int h, int group) {
        const int t = token(h), at = piece_at(t, group * 4 + quad);
        const uint4(*rows)[WIDTH / 8] = s.tile[team][warp];
        uint4 r[STREAMS];
#pragma unroll
        for (int i = 0; i < STREAMS; i++) r[i] = rows[i * TILE + t][at];
        if (MODE == PRE) {
#pragma unroll
            for (int i = 0; i < STREAMS; i++) v[i][0] = r[i].x, v[i][1] = r[i].y, v[i][2] = r[i].z, v[i][3] = r[i].w;
            return;
        }
        const uint4 y = rows[STREAMS * TILE + t][at];
        float post[4], comb[16];
        *(float4*)post = *(const float4*)s.post[team][t];
#pragma unroll
        for (int q = 0; q < 4; q++) *(float4*)(comb + 4 * q) = *(const float4*)&s.comb[team][t][4 * q];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            const uint32_t old[4] = {word(r[0], p), word(r[1], p), word(r[2], p), word(r[3], p)};
#pragma unroll
            for (int j = 0; j < STREAMS; j++) {
                const float c[4] = {comb[j], comb[4 + j], comb[8 + j], comb[12 + j]};
                v[j][p] = new_pair(post[j], c, word(y, p), old);
            }
        }
    }

    __device__ __forceinline__ void write(const uint32_t (&v)[STREAMS][4], int h, int first, int group) {
        const int t = token(h);
        if (MODE == PRE || first + t >= a.tokens) return;
        __nv_bfloat16* out = a.residual_out + (size_t)(first + t) * STREAMS * HIDDEN + columns + group * 32 + quad * 8;
#pragma unroll
        for (int j = 0; j < STREAMS; j++) store16_kept(out + j * HIDDEN, make_uint4(v[j][0], v[j][1], v[j][2], v[j][3]));
    }

    // The same number as one of its own for the compiler, which else copies the four of a product anew for every product.
    __device__ __forceinline__ uint32_t own(uint32_t v) const { return v ^ (uint32_t)(a.tokens >> 31); }

    __device__ __forceinline__ void add_products(float (&d)[N][4], float (&e)[2][4], const uint32_t (&v)[2][STREAMS][4], int group) {
#pragma unroll
        for (int i = 0; i < STREAMS; i++) {
            const uint32_t first[4] = {own(v[0][i][0]), own(v[1][i][0]), own(v[0][i][1]), own(v[1][i][1])};
            const uint32_t second[4] = {own(v[0][i][2]), own(v[1][i][2]), own(v[0][i][3]), own(v[1][i][3])};
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

    // Four of a warp's sums of a token, where its columns of y were.
    __device__ __forceinline__ float* part(int warp, int token, int four) {
        return (float*)&s.tile[team][warp][STREAMS * TILE + token][piece_at(token, four)];
    }

    // The warp's sums over its columns of one tile. next: the first token of the team's next one, -1 for none.
    __device__ __forceinline__ void sum_up(int first, int next) {
        float d[N][4] = {}, e[2][4] = {};  // e: tokens with tokens, of which the diagonal is their sums of squares
#pragma unroll 1
        for (int group = 0; group < WIDTH / 32; group++) {
            uint32_t v[2][STREAMS][4];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                make(v[h], h, group);
                write(v[h], h, first, group);
            }
            if (group == WIDTH / 32 - 1) {
                __syncwarp();  // all lanes have read their rows
                if (next >= 0) ask_streams(next);
            }
            add_products(d, e, v, warp * (WIDTH / 32) + group);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int n = 0; n < N; n++)
                *(float2*)(part(warp, token(h), n * 2 + (quad >> 1)) + (quad & 1) * 2) = make_float2(d[n][2 * h], d[n][2 * h + 1]);
            if (quad == lane >> 3) *part(warp, token(h), 6) = lane >> 2 & 1 ? e[h][2 * h + 1] : e[h][2 * h];
        }
    }

    __device__ __forceinline__ void write_sums(int first) {
        const int t = thread / 8, four = thread % 8;
        if (first + t >= a.tokens || four > 6) return;
        float4 sum = *(const float4*)part(0, t, four);
#pragma unroll
        for (int w = 1; w < 4; w++) {
            const float4 more = *(const float4*)part(w, t, four);
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        // Spelled so that the compiler sees the alignment and stores 16 bytes at once.
        *(float4*)(sums + (((size_t)(first + t) * SLICES + turns.slice) * (SUMS / 4) + four) * 4) = sum;
    }

    __device__ __forceinline__ void meet() { barrier_of(1 + team, TEAM); }

    __device__ __forceinline__ void ask_first() {
        if (team >= turns.count) return;
        ask_streams(first(team));
        ask_y(first(team));
        ask_gates(first(team));
    }

    __device__ __forceinline__ void run() {
        for (int turn = team; turn < turns.count; turn += TEAMS) {
            const int next = turn + TEAMS < turns.count ? first(turn + TEAMS) : -1;
            wait_copies();
            meet();  // all copies of the tile have come
            sum_up(first(turn), next);
            meet();  // all parts have been written, all gates read
            write_sums(first(turn));
            if (next >= 0) ask_gates(next);
            meet();  // all parts have been read
            if (next >= 0) ask_y(next);
            if (thread == 0) count_up(finished + turns.tile(turn));  // what the team has written is seen first
        }
    }
};

template <class CUT>
__global__ void __launch_bounds__(THREADS, 1) slices_kernel(
    const Args a, float* sums, int* finished, bool early) {
    SlicedShared<CUT>& s = *reinterpret_cast<SlicedShared<CUT>*>(dynamic_shared());
    Maker<CUT> maker(a, s, sums, finished);
    if (!early) launch_dependents();
    keep_fn<CUT, THREADS, 8>(s, a.fn, maker.turns.slice * COLUMNS);  // first: the tiles' copies would take its bandwidth
    if (early) {
        wait_for_prerequisites();  // counts are cleared, and whatever wrote the inputs has ended
        launch_dependents();       // blocks of the second kernel may look at the counts from here on
    }
    maker.ask_first();
    __syncthreads();
    maker.run();
}

__global__ void clear_kernel(int* finished, int tiles) {
    launch_dependents();
    wait_for_prerequisites();  // the memory may still be another kernel's
    for (int i = threadIdx.x; i < tiles; i += THREADS) finished[i] = 0;
}

template <class CUT>
static cudaError_t launch(const Args& a, int groups, int early, float* sums, cudaStream_t stream) {
    static int known[DEVICES] = {};
    auto kernel = slices_kernel<CUT>;
    auto rows = rows_kernel<CUT::MODE>;
    constexpr size_t ROWS_BYTES = sizeof(RowsShared);
    static_assert(sizeof(SlicedShared<CUT>) <= 232448 && ROWS_BYTES <= 232448, "shared memory of an SM");
    int device = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess && device >= DEVICES) error = cudaErrorInvalidDevice;
    if (error != cudaSuccess) return error;
    int& processors = known[device];
    if (processors == 0) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(SlicedShared<CUT>));
        if (error == cudaSuccess) error = cudaFuncSetAttribute(rows, cudaFuncAttributeMaxDynamicSharedMemorySize, ROWS_BYTES);
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
        if (error != cudaSuccess) return error;
    }
    const int tiles = (a.tokens + TILE - 1) / TILE, most = processors / SLICES - 1;
    if (groups == 0) groups = most < 1 ? 1 : most < 7 ? most : 7;
    if (groups * SLICES > processors) return cudaErrorInvalidConfiguration;
    int* finished = (int*)(sums + (size_t)a.tokens * SLICES * SUMS);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.stream = stream;
    config.attrs = &attribute;
    if (early == 0) {
        error = cudaMemsetAsync(finished, 0, tiles * sizeof(int), stream);
    } else {
        config.gridDim = dim3(1);
        config.blockDim = dim3(THREADS);
        config.numAttrs = early > 1 ? 1 : 0;
        error = cudaLaunchKernelEx(&config, clear_kernel, finished, tiles);
    }
    if (error != cudaSuccess) return error;
    config.gridDim = dim3(SLICES * (tiles < groups ? tiles : groups));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = sizeof(SlicedShared<CUT>);
    config.numAttrs = early > 0 ? 1 : 0;
    error = cudaLaunchKernelEx(&config, kernel, a, sums, finished, early > 0);
    if (error != cudaSuccess) return error;
    config.gridDim = dim3((a.tokens + UNIT - 1) / UNIT);
    config.blockDim = dim3(MIXERS);
    config.dynamicSmemBytes = ROWS_BYTES;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, rows, a, (const float*)sums, (const int*)finished, early > 1);
}

// groups: blocks of a slice, which go through the tiles side by side; 16 times as many multiprocessors are the first
// kernel's. 0: up to 7, as many as leave 16 for the second. early: the first kernel begins with fn while the counts are being cleared (1), or while the kernel in front
// ends (2: fn must not be written by anything that has not ended).
// sums: fp32 [tokens, 16, 32], and behind them an int a tile of 16 tokens. Returns a cudaError_t; -1 for what was not compiled.
extern "C" int mhc_many_launch(int mode, int groups, int early, const Args* a, float* sums, void* stream) {
    if (groups < 0 || early < 0 || early > 2) return -1;
    if (mode == SEAM) return launch<Sliced<SEAM>>(*a, groups, early, sums, (cudaStream_t)stream);
    if (mode == PRE) return launch<Sliced<PRE>>(*a, groups, early, sums, (cudaStream_t)stream);
    return -1;
}

extern "C" const char* mhc_many_error(int code) { return cudaGetErrorString((cudaError_t)code); }
