#!/usr/bin/env bash
# Servers that run already, by --engine endpoint: two of one build, again and again, and one with a defect planted.
#   results/endpoint/run.sh OUT [REPEATS] [BLOCKS]
# In the root of a checkout, in its environment. Ports 8141 to 8144 must be free. Prints one line an experiment; those
# that OUT/words.txt has already are not run again.
set -u
out=${1:?OUT}; repeats=${2:-20}; blocks=${3:-8}; here=$(dirname "$0")
mkdir -p "$out"
servers=()
serve() {  # PORT TOGGLES
  DSBENCH_TOGGLES=$2 python -m impl.serve --dims micro --port "$1" >"$out/server-$1.log" 2>&1 &
  servers+=($!)
}
trap 'kill "${servers[@]}" 2>/dev/null' EXIT
told() {  # NAME ARGUMENTS...
  local name=$1; shift
  grep -qF "$name: " "$out/words.txt" 2>/dev/null && return
  dsbench ab "$@" -o "$out" >"$out/last.txt" 2>&1
  local code=$?
  echo "$name: exit $code, $(grep -E '^b [a-z-]+' "$out/last.txt" | cut -c1-150)" | tee -a "$out/words.txt"
}

serve 8141 ""
serve 8142 ""
serve 8143 residual_reuse_small_path
serve 8144 c128_row_corrupt:10
at=http://127.0.0.1
for port in 8141 8142 8143 8144; do
  until curl -sf "$at:$port/health" >/dev/null; do
    sleep 0.5
  done
done
told "residual_reuse_small_path, quick" --a $at:8141 --b $at:8143 --suite quick
told "c128_row_corrupt:10, needles" --a $at:8141 --b $at:8144 --suite "$here/needles.toml"
told "one build twice, needles" --a $at:8141 --b $at:8142 --suite "$here/needles.toml"
for seed in $(seq 1 "$repeats"); do
  told "one build twice, quick, seed $seed" --a $at:8141 --b $at:8142 --suite quick --blocks "$blocks" --seed "$seed"
done
echo "regressed: $(grep -c '^one build twice.*exit 1' "$out/words.txt") of $(grep -c '^one build twice' "$out/words.txt")" |
  tee -a "$out/words.txt"
