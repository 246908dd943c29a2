#!/bin/bash
# bash battery.sh OUTDIR SECONDS: the whole battery on one GPU, mhc_final_fused on and off, in the root of a checkout.
# Cut off, it goes on when called again with the same OUTDIR, also on another host that has OUTDIR's files.
OUT=$1; LIMIT=${2:-580}; HERE=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$OUT"; export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
had=$(ls -d "$OUT"/20*/ 2>/dev/null | tail -1)
if [ -n "$had" ]; then set -- --resume "$had"
else set -- --suite "$HERE/battery.toml" --toggle mhc_final_fused --device "${DEVICE:-cuda}" --seed 0 -o "$OUT"; fi
timeout -s INT -k 20 "$LIMIT" python3 -P -m dsbench ab "$@" 2>&1 | tee -a "$OUT/battery.log" | tail -30
