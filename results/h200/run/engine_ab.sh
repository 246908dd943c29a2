#!/bin/bash
# bash engine_ab.sh OUTDIR [SECONDS] [BLOCKS_SPEED] [BLOCKS_GRAPHS] [BLOCKS_TOGGLES]: the embedded engine's three A/Bs on one GPU.
OUT=$1; LIMIT=${2:-540}; HERE=$(cd "$(dirname "$0")" && pwd); BEGIN=$(date +%s)
mkdir -p "$OUT"; export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
AB="python3 -P -m dsbench ab --engine embedded --device ${DEVICE:-cuda} --dims ${DIMS:-micro} --seed 0"
ALL=mtp_hidden_skip,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse,dflash_staging_skip,c128a_topk_shared,q_in_place,c128_indices_in_place
ONLY=" ${ONLY:-speed toggles graphs} "  # ONLY="speed" on one GPU beside ONLY="graphs" on another
run() { case "$ONLY" in *" $1 "*) ;; *) return;; esac; local name=$1 have; shift; have=$(( LIMIT - ( $(date +%s) - BEGIN ) ))
  [ "$have" -lt 20 ] && { echo "no time left for $name"; return; }
  timeout -k 10 "$have" "$@" -o "$OUT/$name" > "$OUT/$name.log" 2>&1
  echo "rc $? $name after $(( $(date +%s) - BEGIN )) s"; tail -25 "$OUT/$name.log"; }
{
run speed $AB --suite "$HERE/engine_speed.toml" --blocks "${3:-6}" \
  --arm off='speculative=none;args=--capture steps' --arm dspark='speculative=dspark;args=--capture steps'
run toggles $AB --suite "$HERE/engine_toggles.toml" --blocks "${5:-6}" --gate "$HERE/engine_policy.toml" \
  --arm off='speculative=dspark' --arm all="speculative=dspark;toggles=$ALL"
run graphs $AB --suite "$HERE/engine_graphs.toml" --blocks "${4:-6}" --speculative dspark \
  --arm eager='args=--eager' --arm graphs=''
} 2>&1 | tee "$OUT/engine_ab.log"
