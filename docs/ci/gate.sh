#!/usr/bin/env bash
# One gated A/B for any CI: gate.sh TOGGLE [SUITE] [POLICY]. Exits as `dsbench gate` does: 0 passed, 1 failed, 2 usage,
# 3 open, 4 void or nothing checked.
#   DSBENCH_OUT           folder of results            [results]
#   DSBENCH_MAIN_RESULTS  results of the main branch    [none: not compared]
#   DSBENCH_JUNIT         JUnit XML to write           [dsbench.xml]
set -u -o pipefail

toggle=${1:?usage: gate.sh TOGGLE [SUITE] [POLICY]}
suite=${2:-kv}
policy=${3:-$(dirname "$0")/gate.toml}
out=${DSBENCH_OUT:-results}
junit=${DSBENCH_JUNIT:-dsbench.xml}

options=(--junit "$junit")
if [ -n "${DSBENCH_MAIN_RESULTS:-}" ] && compgen -G "$DSBENCH_MAIN_RESULTS/*/plan.json" > /dev/null; then
  options+=(--baseline "$DSBENCH_MAIN_RESULTS")
fi

# What the policy answers with "rerun" runs once more by itself.
dsbench ab --toggle "$toggle" --suite "$suite" --out "$out" --gate "$policy" "${options[@]}"
code=$?

case $code in
  0) echo "gate: passed" ;;
  1) echo "gate: failed, see $junit" >&2 ;;
  3) echo "gate: open, the boots do not decide" >&2 ;;
  4) echo "gate: void or nothing checked, which is no pass" >&2 ;;
  *) echo "gate: dsbench ended with $code" >&2 ;;
esac
exit $code
