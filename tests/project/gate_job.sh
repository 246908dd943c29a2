#!/usr/bin/env bash
# What a CI job does, one case a call: gate_job.sh CASE SUITE. It exits as the gate does.
set -u -o pipefail

case $1 in
  planted) # a merge that loses an optimization
    dsbench ab --arm before='toggles=mhc_input_reuse' --arm after= --suite "$2" --out planted --gate --junit planted.xml
    ;;
  aa) # two arms that differ in nothing that matters
    dsbench ab --arm main= --arm merge='env=NO_SUCH_SETTING=1' --suite "$2" --out aa --gate --junit aa.xml
    ;;
  missing) # the A/A's records without one check, and without the checksums by which its loss would be refused
    cp -r aa missing
    sed -i -e '0,/"record":"check"/{/"record":"check"/d}' \
      -e 's/,"after":"[0-9a-f]*","crc32":"[0-9a-f]*"}$/}/' missing/*/records.jsonl
    dsbench gate missing/* --junit missing.xml
    ;;
  *)
    echo "usage: gate_job.sh planted|aa|missing SUITE" >&2
    exit 64
    ;;
esac
