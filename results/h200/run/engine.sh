#!/bin/bash
# bash engine.sh OUTDIR SECONDS: operations of a step on the GPU against the CPU's, tests, single-stream timing.
OUT=$1; LIMIT=${2:-360}; HERE=$(cd "$(dirname "$0")" && pwd); BEGIN=$(date +%s)
mkdir -p "$OUT"; export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS=4
left() { echo $(( LIMIT - ( $(date +%s) - BEGIN ) )); }
bounded() { local most=$1 have; shift; have=$(left); [ "$have" -lt 8 ] && { echo "no time left for: $*"; return 1; }
  timeout -k 5 $(( most < have ? most : have )) "$@"; echo "rc $? of $* after $(( $(date +%s) - BEGIN )) s"; }
{
DIFF_SECONDS=40 bounded 90 python3 "$HERE/engine_diff.py" cuda micro > "$OUT/diff-micro.log" 2>&1
tail -40 "$OUT/diff-micro.log" | cut -c1-600
bounded 110 python3 -m pytest -m gpu -p no:cacheprovider --maxfail=20 --durations=15 \
  tests/impl/engine tests/impl/model > "$OUT/pytest.log" 2>&1
tail -40 "$OUT/pytest.log"
for attempt in 1 2; do  # a second process goes on behind the case that lost its CUDA context
  bounded 220 python3 "$HERE/engine_time.py" "$OUT/engine_time.jsonl" --seconds 90
done > "$OUT/engine_time.log" 2>&1
cut -c1-700 "$OUT/engine_time.jsonl"
grep -v '^{' "$OUT/engine_time.log" | tail -60 | cut -c1-400
} 2>&1 | tee "$OUT/engine.log"
