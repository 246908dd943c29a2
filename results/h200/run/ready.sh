# A default `vllm serve` (graphs, warm-ups, no shortcuts) to ready: base, one boot. bash ready.sh GPU
export CUDA_VISIBLE_DEVICES=$1
. /tmp/gpu/env.sh; mkdir -p /tmp/res; cd /tmp
SPEC='{"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"probabilistic","rejection_sample_method":"synthetic","synthetic_acceptance_length":3.3}'
ALL=mtp_hidden_skip,c128a_topk_shared,dflash_staging_skip,q_in_place,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse
timeout ${READY_LIMIT:-560} python3 -P -m dsbench ab --engine vllm --suite /tmp/gpu/ready.toml --seed 0 --blocks 1 \
  --arm base='' --arm all="toggles=$ALL" \
  --serve-args "v4flash-6layer --load-format dummy --skip-tokenizer-init --kv-cache-dtype fp8 --block-size 256 --max-model-len 131072 --max-num-batched-tokens 8192 --max-num-seqs 8 --gpu-memory-utilization 0.5 --no-enable-prefix-caching --speculative-config '$SPEC'" \
  --vllm-python "$(command -v python3)" -o /tmp/res/ready > /tmp/res/ready.log 2>&1
echo "rc=$? $(date +%T)" >> /tmp/res/ready.log; touch /tmp/res/ready.done
