#!/bin/bash
# The TP=2 ladder on two H200s: bash tp2.sh OUTDIR SECONDS, in a copy of the checkout, on a host made ready:
# bundle in /tmp/site and its env.sh sourced, HOME=/tmp/jc, our own wheels in /tmp/whl (unpacked, or as .whl files).
# A later call goes on where the last one stopped: from /tmp/tp2, else from tp2.tgz in OUTDIR or in .gpu.
# Comes back in OUTDIR: tp2.tgz (results, check), check.log, q_in_place.log, summary.txt, tp2_jit.txz.
#
# Order: one plain base boot (checks the configuration, compiles what TP=2 adds); beside it q_in_place, which must be
# refused; then the ladder, one boot an arm before any arm has its second; then expert parallel, if EP_LEAST seconds are
# left; then the steps' toggles alone. A second block is planned where the check boot says that there is time for it: two
# boots an arm are what a verdict on exact bytes needs. Without that time the ladder is one block, and another of its
# own follows if it still fits.
# TP2_TRY="LAYERS EXPERTS METHOD" forces a configuration, TP2_BLOCKS=N the blocks; TP2_DRY=1 stops before any boot;
# TP2_CACHES=0 leaves the compilers' caches there.
set -u
OUTDIR=$(mkdir -p "$1" && cd "$1" && pwd) || exit 2
LIMIT=${2:-420}
SECONDS=0                       # bash counts from here
CHECKOUT=$PWD
WORK=${TP2_WORK:-/tmp/tp2}
SITE=${BUNDLE_SITE:-/tmp/site}
WHL=${TP2_WHL:-/tmp/whl}
LADDER_SEED=${LADDER_SEED:-9260}  # of the order: as the arms are listed, in the first block
ALONE_SEED=${ALONE_SEED:-121}
left() { echo $((LIMIT - SECONDS)); }
say() { echo "[tp2 ${SECONDS}s] $*" | tee -a "$WORK/summary.txt"; }

# --- where it goes on from -----------------------------------------------------------------------------------------
if [ ! -d "$WORK" ]; then
    mkdir -p "$WORK"
    for kept in "$OUTDIR/tp2.tgz" "$CHECKOUT/.gpu/tp2.tgz"; do
        [ -f "$kept" ] && tar xzf "$kept" -C "$WORK" && break
    done
    [ -f "$CHECKOUT/.gpu/tp2_jit.txz" ] && tar xJf "$CHECKOUT/.gpu/tp2_jit.txz" -C /
fi
say "start, ${LIMIT} s, $(nvidia-smi -L 2>/dev/null | wc -l) GPUs"

# --- two Pythons: ours for the harness, the bundle's for the engine ------------------------------------------------
OURS=$WORK/ours
if compgen -G "$WHL/*.whl" >/dev/null; then
    [ -d "$OURS" ] || { mkdir -p "$OURS"; for w in "$WHL"/*.whl; do python3 -m zipfile -e "$w" "$OURS"; done; }
else
    OURS=$WHL
fi
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0} TORCH_SYMM_MEM_DISABLE_MULTICAST=${TORCH_SYMM_MEM_DISABLE_MULTICAST:-1}
export NVSHMEM_DISABLE_NVLS=${NVSHMEM_DISABLE_NVLS:-1}
META=$WORK/metadata
PYTHONPATH=$OURS:$CHECKOUT python3 -m impl.vllm_plugin.metadata "$META" >/dev/null || exit 2
cat >"$WORK/python" <<WRAP
#!/bin/bash
export PYTHONPATH=$SITE:$SITE/nvidia_cutlass_dsl/dsl_packages:$META:$CHECKOUT
exec python3 "\$@"
WRAP
chmod +x "$WORK/python"
harness() { env --default-signal=INT PYTHONPATH="$OURS:$CHECKOUT" python3 -m dsbench "$@"; }
harness --version >>"$WORK/summary.txt" 2>&1 || { say "the harness does not start with PYTHONPATH=$OURS:$CHECKOUT"; tail -3 "$WORK/summary.txt"; exit 2; }

# --- the model: Flash widths, more layers and experts --------------------------------------------------------------
config() {  # LAYERS EXPERTS -> folder with config.json
    local folder=$WORK/v4flash-$1layer-$2experts
    mkdir -p "$folder"
    python3 - "$1" "$2" "$folder/config.json" "$CHECKOUT" <<'PY'
import json, pathlib, sys
layers, experts, target, checkout = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], pathlib.Path(sys.argv[4])
names = ("shared/gpu/v4flash-6layer.config.json", ".gpu/v4flash-6layer.config.json", "../shared/gpu/v4flash-6layer.config.json", "results/h200/vllm-kv/model-config.json")
source = next(checkout / n for n in names if (checkout / n).is_file())
c = json.loads(source.read_text())
c["num_hidden_layers"] = layers
c["compress_ratios"] = [0, 0, *([4, 128] * layers)][:layers]
c["n_routed_experts"] = experts
c["dspark_target_layer_ids"] = [layers - 3, layers - 2, layers - 1]
pathlib.Path(target).write_text(json.dumps(c, indent=1) + "\n")
PY
    echo "$folder"
}
# Bytes a rank at TP=2: 1.06 GB of embedding and head, 0.16 GB a layer without experts, 256 fp8 experts 3.22 GB a layer;
# 30 + 3 layers: 112.6 GB of weights, 4.5 GB beside them; 0.92 of 150.7 GB leaves about 21 GB for pages.
# The fusion is of torch.compile's, which eager boots do not run; asking for it alone starts CUDA in the front end, and every
# process then imports vLLM anew instead of being forked: 111 s to the loading of weights in place of some 40.
serve_args() {  # LAYERS EXPERTS
    local util=0.92; [ "$2" = 16 ] && util=0.5
    printf '%s' "$(config "$1" "$2") --load-format dummy --skip-tokenizer-init --kv-cache-dtype fp8 --block-size 256" \
        " --max-model-len 131072 --max-num-batched-tokens 8192 --max-num-seqs 8 --gpu-memory-utilization $util" \
        " --no-enable-prefix-caching --tensor-parallel-size 2 --enforce-eager --compilation-config" \
        ' {"pass_config":{"fuse_allreduce_rms":false}} --speculative-config' \
        ' {"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"probabilistic","rejection_sample_method":"synthetic","synthetic_acceptance_length":3.3}'
}
quoted_args() { serve_args "$@" | sed "s/ \({[^ ]*}\)/ '\1'/g"; }
variables() {  # METHOD
    echo "DSBENCH_VLLM_FAST_START=1 VLLM_USE_BREAKABLE_CUDAGRAPH=1 VLLM_WORKER_MULTIPROC_METHOD=$1" \
        "CUDA_VISIBLE_DEVICES=0,1 VLLM_ENABLE_V1_MULTIPROCESSING=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0" \
        "NCCL_NVLS_ENABLE=$NCCL_NVLS_ENABLE VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1"
}

# --- one plain boot, without the harness ---------------------------------------------------------------------------
boot() {  # FOLDER TOGGLES PORT METHOD LAYERS EXPERTS -> sets booted to the process group
    local args; mapfile -t args < <(serve_args "$5" "$6" | tr ' ' '\n')
    mkdir -p "$1"; rm -f "$1"/*.json
    # shellcheck disable=SC2046
    setsid env $(variables "$4") DSBENCH_BOOT_DIR="$1" DSBENCH_TOGGLES="$2" \
        "$WORK/python" -P -m vllm.entrypoints.cli.main serve "${args[@]}" --seed 0 --host 127.0.0.1 --port "$3" \
        >"$1/engine.log" 2>&1 &
    booted=$!
}
end_group() { kill -TERM -- "-$1" 2>/dev/null; sleep 2; kill -KILL -- "-$1" 2>/dev/null; wait "$1" 2>/dev/null; }
profiled() { [ "$(grep -l 'pages allocated' "$1"/kv_profile.rank[01].json 2>/dev/null | wc -l)" = 2 ]; }
idle() {  # no process left on a GPU, at most 20 s
    for _ in $(seq 40); do [ -z "$(nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null)" ] && return; sleep 0.5; done
}
check() {  # LAYERS EXPERTS METHOD LIMIT -> 0 if both ranks wrote their profile
    local folder=$WORK/check-$1-$2-$3 until=$((SECONDS + $4)) q='' began=$SECONDS good=1
    boot "$folder" "" 18111 "$3" "$1" "$2"; local base=$booted
    if [ ! -f "$WORK/refused" ]; then boot "$WORK/q_in_place" q_in_place 18112 "$3" "$1" "$2"; q=$booted; fi
    while [ $SECONDS -lt $until ] && kill -0 "$base" 2>/dev/null; do
        # Not refused in the front end: it must not reach the cards beside the base boot.
        if [ -n "$q" ] && grep -sq 'Initializing a V1 LLM engine\|EngineCore' "$WORK/q_in_place/engine.log"; then
            end_group "$q"; q=''; say "q_in_place was NOT refused"
        fi
        if [ -n "$q" ] && ! kill -0 "$q" 2>/dev/null; then
            wait "$q"; local code=$?; q=''
            grep -q 'toggle q_in_place cannot run here' "$WORK/q_in_place/engine.log" && echo $code >"$WORK/refused"
            say "q_in_place: exit code $code: $(grep -m1 -o 'dsbench: .*' "$WORK/q_in_place/engine.log")"
        fi
        profiled "$folder" && { good=0; [ -z "$q" ] && break; [ $SECONDS -gt $((began + 60)) ] && break; }
        sleep 0.5
    done
    profiled "$folder" && good=0
    [ -n "$q" ] && end_group "$q"
    end_group "$base"; idle
    cp "$folder/engine.log" "$OUTDIR/check.log"
    [ -f "$WORK/q_in_place/engine.log" ] && cp "$WORK/q_in_place/engine.log" "$OUTDIR/q_in_place.log"
    [ $good = 0 ] && echo $((SECONDS - began)) >"$WORK/check.s"
    say "check $1 layers, $2 experts, $3: $([ $good = 0 ] && echo profiled || echo FAILED) after $((SECONDS - began)) s"
    grep -h '"available_bytes"\|"weights_bytes"\|"peak_activation' "$folder"/kv_profile.rank*.json 2>/dev/null | tee -a "$WORK/summary.txt"
    [ $good = 0 ] || grep -v '^ *$' "$folder/engine.log" | grep -i 'error\|assert\|memory\|dsbench:' | tail -8 | cut -c1-300 | tee -a "$WORK/summary.txt"
    return $good
}

# --- experiments ---------------------------------------------------------------------------------------------------
cat >"$WORK/tp2.toml" <<'TOML'
name = "kv"
summary = "bytes only, boots that stop after the memory profile"
blocks = 2
warmup_boots = 0
until = "profile"
guards = ["kv.available_bytes", "kv.persistent_bytes", "kv.peak_activation_bytes", "kv.workspace_bytes",
          "kv.resident_bytes"]
drift_controls = ["kv.weights_bytes"]
[timeouts]
boot = 200
stop = 30
[probes.kv]
TOML
# The whole first, then the steps that lead there; each of the steps' toggles alone is an experiment of its own.
STEP2=mtp_hidden_skip,mhc_final_fused STEP3=mtp_hidden_skip,mhc_final_fused,mhc_residual_reuse
STEP4=$STEP3,mhc_input_reuse STEP5=$STEP3,mhc_input_reuse,c128a_topk_shared
LADDER=(--arm base= --arm "all=toggles=$STEP5,dflash_staging_skip" --arm mtp=toggles=mtp_hidden_skip
    --arm "mtp+final=toggles=$STEP2" --arm "mtp+final+residual=toggles=$STEP3"
    --arm "mtp+final+residual+input=toggles=$STEP4" --arm "mtp+final+residual+input+topk=toggles=$STEP5")
ALONE=(--arm base= --arm residual=toggles=mhc_residual_reuse --arm input=toggles=mhc_input_reuse
    --arm topk=toggles=c128a_topk_shared --arm staging=toggles=dflash_staging_skip)
# With expert parallel vLLM 0.26 takes FlashInfer's CUTLASS experts first, which are compiled at the first call: likely what
# two boots were at when they had no profile after 160 and 333 s. Without it, and so here, Triton's.
EP_ARGS='--enable-expert-parallel --moe-backend triton'
EXPERT=(--arm "ep=args=$EP_ARGS" --arm "ep+sp_moe=args=$EP_ARGS;toggles=sp_moe_config_aware")
EP_LEAST=${EP_LEAST:-220}
fits() { [ $(($(left) - 25)) -gt $(($1 * $(cat "$WORK/check.s" 2>/dev/null || echo 120) * 2 / 3)) ]; }  # BOOTS: after the
# check, which compiles what they find, they take two thirds of its time
blocks_for() { echo "${TP2_BLOCKS:-$(fits $(($1 * 2)) && echo 2 || echo 1)}"; }  # ARMS -> 2 if two boots of each fit
asked() {  # NAME SEED ARMS... -> words of one experiment, in `words`
    local set=() v; for v in $(variables "$METHOD"); do set+=(--env "$v"); done
    words=(--engine vllm --vllm-python "$WORK/python" --suite "$WORK/tp2.toml" --until profile --seed "$2"
        --serve-args "$(quoted_args "$LAYERS" "$EXPERTS")" "${set[@]}" "${@:3}")
}
keep() {
    tar czf "$OUTDIR/.tp2.tgz" -C "$WORK" --exclude=ours --exclude=metadata --exclude='*.part' . 2>/dev/null && mv "$OUTDIR/.tp2.tgz" "$OUTDIR/tp2.tgz"
    cp "$WORK/summary.txt" "$OUTDIR/summary.txt"
}
experiment() {  # NAME BLOCKS SEED ARMS...: starts it or goes on with it, until SECONDS are up
    local name=$1 blocks=$2 out=$WORK/results/$1; shift 2
    [ -f "$out.done" ] && return
    local room=$(($(left) - 25)); [ $room -lt 40 ] && { say "$name: no time left"; return; }
    mkdir -p "$out"; local found; found=$(ls -d "$out"/20* 2>/dev/null | head -1)
    asked "$name" "$@"
    if [ -n "$found" ]; then set -- --resume "$found" -o "$out"; else set -- "${words[@]}" --blocks "$blocks" -o "$out"; fi
    say "$name: dsbench ab ($([ -n "$found" ] && echo resumed || echo started)), $room s"
    timeout -s INT -k 30 $room env --default-signal=INT PYTHONPATH="$OURS:$CHECKOUT" python3 -m dsbench ab "$@" 2>&1 | tee -a "$out.log" | grep --line-buffered '^boot \|^dsbench\|^stopped\|^stored' | cut -c1-200
    local code=${PIPESTATUS[0]}
    case $code in 0 | 1 | 3 | 4) grep -q 'stored in' "$out.log" && touch "$out.done" ;; esac
    say "$name: exit code $code"
    found=$(ls -d "$out"/20* 2>/dev/null | head -1)
    if [ -n "$found" ]; then  # judged in a copy: a stopped experiment goes on later
        rm -rf "$WORK/judged" && cp -r "$found" "$WORK/judged" && harness judge "$WORK/judged" >"$out.table" 2>&1; rm -rf "$WORK/judged"
    fi
    keep
}

# --- the run -------------------------------------------------------------------------------------------------------
read -r LAYERS EXPERTS METHOD < <(cat "$WORK/config" 2>/dev/null || echo "${TP2_TRY:-30 256 fork}")
if [ -n "${TP2_DRY:-}" ]; then
    asked ladder "$LADDER_SEED" "${LADDER[@]}"; harness plan "${words[@]}" --blocks 2 -o "$WORK/results/ladder"; echo "plan: $?"
    asked expert 1 "${EXPERT[@]}"; harness plan "${words[@]}" --blocks 1 -o "$WORK/results/expert"; echo "plan: $?"
    serve_args "$LAYERS" "$EXPERTS"; echo; exit
fi
if [ ! -f /tmp/tp2.warm ]; then
    if check "$LAYERS" "$EXPERTS" "$METHOD" 200; then
        echo "$LAYERS $EXPERTS $METHOD" >"$WORK/config"
    elif [ ! -f "$WORK/config" ]; then
        log=$WORK/check-$LAYERS-$EXPERTS-$METHOD/engine.log
        if grep -qi 'out of memory\|No available memory\|KV cache is needed\|free memory on device' "$log"; then
            LAYERS=12                         # too large
        elif grep -q Traceback "$log"; then
            LAYERS=6 EXPERTS=16 METHOD=spawn  # what is known to boot
        elif grep -q 'Model loading took' "$log"; then
            LAYERS=12                         # too slow
        else
            LAYERS=12 METHOD=spawn            # workers that hang before they load
        fi
        say "falls back to $LAYERS layers, $EXPERTS experts, $METHOD"
        limit=$(($(left) - 60)); [ $limit -gt 200 ] && limit=200
        [ $limit -gt 40 ] && check "$LAYERS" "$EXPERTS" "$METHOD" $limit && echo "$LAYERS $EXPERTS $METHOD" >"$WORK/config"
    fi
    [ -f "$WORK/config" ] && touch /tmp/tp2.warm
    keep
fi
experiment ladder "$(blocks_for 7)" "$LADDER_SEED" "${LADDER[@]}"
grep -sq '"status":"ok"' "$WORK"/results/ladder/20*/records.jsonl && echo "$LAYERS $EXPERTS $METHOD" >"$WORK/config" && touch /tmp/tp2.warm
if [ "$(left)" -ge $EP_LEAST ]; then
    experiment expert "$(blocks_for 2)" 1 "${EXPERT[@]}"
else
    say "expert parallel: no time left"
fi
if [ -f "$WORK/results/ladder.done" ] && grep -sq '^ "blocks": 1,' "$WORK"/results/ladder/20*/plan.json && fits 7; then
    experiment ladder-again 1 1 "${LADDER[@]}"
fi
[ -f "$WORK/results/ladder.done" ] && fits 5 && experiment alone 1 "$ALONE_SEED" "${ALONE[@]}"
if [ -z "${TP2_CACHES:-}" ] && [ $(left) -gt 15 ]; then
    timeout 25 tar cJf "$OUTDIR/tp2_jit.txz" -C / tmp/jc $([ -d /tmp/torchinductor_root ] && echo tmp/torchinductor_root) 2>/dev/null
    [ "$(stat -c %s "$OUTDIR/tp2_jit.txz" 2>/dev/null || echo 0)" -gt 15000000 ] && rm -f "$OUTDIR/tp2_jit.txz"
fi
for table in "$WORK"/results/*.table; do [ -f "$table" ] && cat "$table" >>"$WORK/summary.txt"; done
say end
keep
ls -la "$OUTDIR"
