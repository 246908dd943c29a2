#!/usr/bin/env bash
# bash micro.sh OUTDIR: refine micro, score it, train its draft, score that. Run in the root of a checkout.
#
# Finished steps are skipped and a cut refinement or draft goes on, so it may be called again with the same OUTDIR.
#   REFINE_MINUTES=7 DRAFT_MINUTES=2.5   training time; 13-14 minutes in all. One 10-minute call: 4.5 and 1.7
#   EVAL_DEVICE=1                        another GPU: scores run there, beside the draft
#   DEVICE=cpu EXTRA="--steps 2 ..."     a check of the commands
# OUTDIR: micro/ and draft/ (weights, curve.jsonl, checkpoint.pt), scores.json (rewritten family by family),
# draft-scores.txt (line by line), log.txt, done-* marks.
set -u
OUT=${1:?OUTDIR}; mkdir -p "$OUT"; OUT=$(cd "$OUT" && pwd)
PY=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda}
REFINE_MINUTES=${REFINE_MINUTES:-7}
DRAFT_MINUTES=${DRAFT_MINUTES:-2.5}
COMMON=${COMMON:-"--device $DEVICE --no-compile --scale 4 --workers 12 --compact"}
SAMPLE=${SAMPLE:-32}
EVAL_SAMPLE=${EVAL_SAMPLE:-}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
log() { echo "[$(date +%T)] $*" | tee -a "$OUT/log.txt"; }
limit() { $PY -c "print(int(60 * $1 + $2))"; }   # minutes of training, seconds beside them

trained() {  # NAME MINUTES MODULE WEIGHTS ARGUMENTS...: one training, gone on with if it was cut, always leaving weights
  local name=$1 minutes=$2 module=$3 weights=$4; shift 4
  [ -e "$OUT/done-$name" ] && return 0
  local go=() first=("$@")
  if [ -e "$OUT/$name/checkpoint.pt" ]; then go=(--resume); fi
  local length="--minutes $minutes --of $minutes --last"
  [ -n "${STEPS:-}" ] && length="--steps $STEPS"
  log "$name: python -m $module ${first[*]} $COMMON $length ${go[*]:-}"
  timeout -k 20 "$(limit "$minutes" 120)" $PY -m "$module" "${first[@]}" $COMMON $length --out "$OUT/$name" \
    ${go[@]+"${go[@]}"} >>"$OUT/log.txt" 2>&1
  local rc=$?
  log "$name: rc $rc"
  if [ $rc -ne 0 ] && [ -e "$OUT/$name/checkpoint.pt" ]; then  # cut: one step more writes the weights that there are
    timeout -k 20 90 $PY -m "$module" "${first[@]}" $COMMON --minutes 0.01 --of "$minutes" --out "$OUT/$name" --resume \
      >>"$OUT/log.txt" 2>&1
    log "$name: weights of the cut run: rc $?"
  fi
  [ -e "$OUT/$name/$weights" ] && touch "$OUT/done-$name"
}

scored() {
  [ -e "$OUT/done-scores" ] && return 0
  log "scores begin"
  timeout -k 10 240 $PY -m impl.train.evaluate "$OUT/micro/micro.safetensors" --device "$DEVICE" --json \
    --into "$OUT/scores.json" ${EVAL_SAMPLE:+--sample $EVAL_SAMPLE} >"$OUT/scores-whole.json" 2>>"$OUT/log.txt" \
    && touch "$OUT/done-scores"
  log "scores end: $(grep -c '"right"' "$OUT/scores.json" 2>/dev/null) families"
}

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >>"$OUT/log.txt" 2>&1
trained micro "$REFINE_MINUTES" impl.train micro.safetensors --dims micro --seed ${SEED:-2} --learning-rate 1e-3 \
  --start-from impl/weights/micro.safetensors || exit 1
sha256sum "$OUT/micro/micro.safetensors" | tee -a "$OUT/log.txt"
if [ -n "${EVAL_DEVICE:-}" ]; then CUDA_VISIBLE_DEVICES=$EVAL_DEVICE scored & else scored; fi
trained draft "$DRAFT_MINUTES" impl.train.draft micro-dspark.safetensors --target "$OUT/micro/micro.safetensors"
if [ -e "$OUT/done-draft" ] && [ ! -e "$OUT/done-draft-scores" ]; then
  sha256sum "$OUT/draft/micro-dspark.safetensors" | tee -a "$OUT/log.txt"
  log "draft scores begin"
  timeout -k 10 150 $PY -m impl.train.evaluate_draft "$OUT/micro/micro.safetensors" "$OUT/draft/micro-dspark.safetensors" \
    --sample "$SAMPLE" --device "$DEVICE" >"$OUT/draft-scores.txt" 2>>"$OUT/log.txt" && touch "$OUT/done-draft-scores"
  log "draft scores end"
  cat "$OUT/draft-scores.txt"
fi
wait
log "all done"
