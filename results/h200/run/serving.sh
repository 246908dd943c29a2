# Tokens and bytes of serving, base / q / all, two boots each. bash serving.sh GPU
# Drafts are verified (vLLM's standard rejection sampling): at rates of synthetic acceptance most tokens would be the draft's.
export CUDA_VISIBLE_DEVICES=$1
. /tmp/gpu/env.sh; mkdir -p /tmp/res; cd /tmp
SPEC='{"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"probabilistic"}'
ALL=mtp_hidden_skip,c128a_topk_shared,dflash_staging_skip,q_in_place,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse
timeout 580 python3 -P -m dsbench ab --engine vllm --suite /tmp/gpu/serving.toml --seed 0 \
  --arm base='' --arm q='toggles=q_in_place' --arm all="toggles=$ALL" \
  --env DSBENCH_VLLM_FAST_START=1 --env VLLM_USE_BREAKABLE_CUDAGRAPH=1 --env VLLM_WORKER_MULTIPROC_METHOD=fork \
  --serve-args "v4flash-6layer --load-format dummy --skip-tokenizer-init --kv-cache-dtype fp8 --block-size 256 --max-model-len 131072 --max-num-batched-tokens 8192 --max-num-seqs 8 --gpu-memory-utilization 0.5 --no-enable-prefix-caching --speculative-config '$SPEC' --enforce-eager" \
  --vllm-python "$(command -v python3)" -o /tmp/res/serving > /tmp/res/serving.log 2>&1
echo "rc=$? $(date +%T)" >> /tmp/res/serving.log; touch /tmp/res/serving.done
