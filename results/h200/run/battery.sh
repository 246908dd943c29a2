#!/bin/bash
# bash battery.sh OUTDIR SECONDS [full dose]: the whole battery on one GPU, in the root of a checkout.
#   full: battery.toml, mhc_final_fused on and off
#   dose: the probes of answers with all their items, sound against c128_row_corrupt:50 and :10
# Cut off, it goes on when called again with the same OUTDIR, also on another host that has OUTDIR's files.
OUT=$1; LIMIT=${2:-580}; shift 2; HERE=$(cd "$(dirname "$0")" && pwd); END=$(( $(date +%s) + LIMIT ))
mkdir -p "$OUT"; export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
run() {  # NAME ARGUMENTS...
  local name=$1 left=$(( END - $(date +%s) )) had code; shift
  [ -e "$OUT/$name.done" ] && return
  [ $left -lt 30 ] && { echo "$name: no time left"; return; }
  had=$(ls -d "$OUT/$name"/20*/ 2>/dev/null | tail -1)
  if [ -n "$had" ]; then set -- --resume "$had"; else set -- "$@" --device "${DEVICE:-cuda}" --seed 0 -o "$OUT/$name"; fi
  timeout -s INT -k 20 "$left" python3 -P -m dsbench ab "$@" >>"$OUT/$name.log" 2>&1
  code=$?
  case $code in 0|1|3|4) touch "$OUT/$name.done";; esac
  echo "$name: exit $code with $(( END - $(date +%s) )) s left"; tail -30 "$OUT/$name.log"
}
for what in ${*:-full dose}; do
  case $what in
    full) run full --suite "$HERE/battery.toml" --toggle mhc_final_fused;;
    dose) run dose --suite quality --blocks 2 --controls --arm sound='speculative=dspark' \
      --arm one-in-50='speculative=dspark;toggles=c128_row_corrupt:50' \
      --arm one-in-10='speculative=dspark;toggles=c128_row_corrupt:10';;
  esac
done
