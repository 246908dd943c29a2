# Where base's peak goes, at TP=1 or TP=2: bash trace.sh TP. One boot to the memory profile with the allocator's history
# (allocation_trace.py), 6 layers, 16 experts. Comes back in /tmp/res/trace/tpN: rank*.json, engine.log. TRACE_GPUS: the cards.
TP=$1; export CUDA_VISIBLE_DEVICES=${TRACE_GPUS:-$([ "$TP" = 2 ] && echo 0,1 || echo 1)}
. /tmp/gpu/env.sh; OUT=/tmp/res/trace/tp$TP; rm -rf "$OUT"; mkdir -p "$OUT/boot"; cd /tmp
INFO=/tmp/meta_trace/allocation_trace-0.dist-info; mkdir -p $INFO
printf 'Metadata-Version: 2.1\nName: allocation-trace\nVersion: 0\n' >$INFO/METADATA
printf '[vllm.general_plugins]\ntrace = allocation_trace:register\n' >$INFO/entry_points.txt
export PYTHONPATH=$PYTHONPATH:/tmp/meta_trace:/tmp/gpu TRACE_OUT=$OUT DSBENCH_BOOT_DIR=$OUT/boot DSBENCH_TOGGLES=
export DSBENCH_VLLM_FAST_START=1 VLLM_USE_BREAKABLE_CUDAGRAPH=1 VLLM_WORKER_MULTIPROC_METHOD=fork VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export NCCL_NVLS_ENABLE=0 VLLM_ALLREDUCE_USE_SYMM_MEM=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1
SPEC='{"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"probabilistic","rejection_sample_method":"synthetic","synthetic_acceptance_length":3.3}'
SECONDS=0
setsid python3 -P -m vllm.entrypoints.cli.main serve v4flash-6layer --load-format dummy --skip-tokenizer-init \
    --kv-cache-dtype fp8 --block-size 256 --max-model-len 131072 --max-num-batched-tokens 8192 --max-num-seqs 8 \
    --gpu-memory-utilization 0.5 --no-enable-prefix-caching --tensor-parallel-size "$TP" --enforce-eager \
    --compilation-config '{"pass_config":{"fuse_allreduce_rms":false}}' --speculative-config "$SPEC" --seed 0 \
    --host 127.0.0.1 --port $((18150 + TP)) >"$OUT/engine.log" 2>&1 &
server=$!
while [ $SECONDS -lt 150 ] && kill -0 $server 2>/dev/null; do
    [ "$(ls "$OUT"/rank*.json 2>/dev/null | wc -l)" = "$TP" ] && grep -qs 'pages allocated' "$OUT"/boot/kv_profile.rank0.json && break
    sleep 0.5
done
kill -TERM -- -$server 2>/dev/null; sleep 3; kill -KILL -- -$server 2>/dev/null; wait $server 2>/dev/null
echo "trace tp$TP: $(ls "$OUT"/rank*.json 2>/dev/null | wc -l) ranks, $SECONDS s" | tee -a /tmp/res/trace.log; touch "/tmp/res/trace$TP.done"
