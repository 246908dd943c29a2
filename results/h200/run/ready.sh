# A default `vllm serve` (graphs, warm-ups, no shortcuts) from its start to /health: one boot, all toggles on, and two
# greedy prompts. bash ready.sh GPU. Its log is kept whole; READY_TOGGLES= (empty) boots vLLM's own code, READY_LIMIT is
# in seconds. Comes back in /tmp/res: ready/ (engine.log, what the worker wrote, answers), ready.log, ready.done.
export CUDA_VISIBLE_DEVICES=$1
. /tmp/gpu/env.sh; RES=${READY_RES:-/tmp/res}; BOOT=$RES/ready; rm -rf "$BOOT"; mkdir -p "$BOOT"; cd /tmp
LIMIT=${READY_LIMIT:-1100}; PORT=${READY_PORT:-18133}
SPEC='{"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"probabilistic","rejection_sample_method":"synthetic","synthetic_acceptance_length":3.3}'
ALL=mtp_hidden_skip,c128a_topk_shared,dflash_staging_skip,q_in_place,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse
export DSBENCH_BOOT_DIR=$BOOT DSBENCH_TOGGLES=${READY_TOGGLES-$ALL} VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
say() { echo "$1: ${SECONDS} s" >>"$RES/ready.log"; }
ask() {  # N -> greedy tokens after a prompt of N token ids
    python3 - "$1" <<PY >"$BOOT/answer$1.json" 2>>"$RES/ready.log"
import json, random, sys, urllib.request
ids = random.Random(int(sys.argv[1])).choices(range(129280), k=int(sys.argv[1]))
body = {"model": "v4flash-6layer", "prompt": ids, "max_tokens": 16, "temperature": 0, "return_token_ids": True}
request = urllib.request.Request("http://127.0.0.1:$PORT/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=120).read().decode())
PY
}
: >"$RES/ready.log"
SECONDS=0
setsid python3 -P -m vllm.entrypoints.cli.main serve v4flash-6layer --load-format dummy --skip-tokenizer-init \
    --kv-cache-dtype fp8 --block-size 256 --max-model-len 131072 --max-num-batched-tokens 8192 --max-num-seqs 8 \
    --gpu-memory-utilization 0.5 --no-enable-prefix-caching --speculative-config "$SPEC" --seed 0 \
    --host 127.0.0.1 --port "$PORT" >"$BOOT/engine.log" 2>&1 &
server=$! told='' rc=1
while [ $SECONDS -lt "$LIMIT" ] && kill -0 $server 2>/dev/null; do
    [ -z "$told" ] && [ -e "$BOOT/kv_profile.rank0.json" ] && { told=1; say "memory profile written"; }
    python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$PORT/health', timeout=2)" 2>/dev/null && { rc=0; say ready; break; }
    sleep 1
done
if [ $rc = 0 ]; then ask 100; ask 1024; say "two prompts answered"; sleep 2; else say "NOT ready"; fi
kill -TERM -- -$server 2>/dev/null; sleep 5; kill -KILL -- -$server 2>/dev/null; wait $server 2>/dev/null
tail -n 3 "$BOOT/engine.log" | tr '\r' '\n' | tail -n 3 | cut -c1-300 >>"$RES/ready.log"
echo "rc=$rc $(date +%T)" >>"$RES/ready.log"; touch "$RES/ready.done"
