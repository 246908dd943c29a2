#!/usr/bin/env bash
# One window on an H200, from the repository's root, vLLM importable where it is to be compared with:
#     bash results/h200/kernels/measure.sh OUT [STEP...]
# OUT: a folder for records and logs. Steps run in this order, each within its time, and a failed one does not stop the
# next; without any named all run. The first four decide; the rest says why.
set -u
out=${1:?usage: measure.sh OUT [STEP...]}
shift
steps=${*:-"build mhc other check tests kernels memcheck racecheck toggles profile"}
mkdir -p "$out"
python=${PYTHON:-python3}
small="index_map topk_metadata query_norm_rope kv_insert draft_sample rejection"

step() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$2
    shift 2
    case " $steps " in *" $name "*) ;; *) return ;; esac
    timeout "$seconds" "$@" >"$out/$name.log" 2>&1
    echo "$name: $?" | tee -a "$out/steps"
}

ops() { for op in $small; do printf -- '--op %s ' "$op"; done; }

points() { # one a line: operation, parameters
    for point in '{"groups":7}' '{"groups":7,"early":2}'; do
        echo "mhc_seam $point"
        echo "mhc_pre $point"
    done
    for point in '{"cluster":8,"chains":2}' '{"cluster":16,"chains":3}'; do
        echo "mhc_post_head $point"
        echo "mhc_post_mean_head $point"
    done
}

sanitize() { # TOOL: a few tokens of every CUDA kernel, and a whole tile and a part of one for the others
    for tokens in 6 149; do
        for op in mhc_seam mhc_pre mhc_post mhc_post_mean mhc_post_head mhc_post_mean_head; do
            compute-sanitizer --tool "$1" --error-exitcode 9 "$python" -m impl.bench.one --op $op --tokens $tokens --calls 1 || return
        done
    done
    (points; for more in '{"groups":5}' '{"groups":7,"early":1}' '{"splits":128,"tiles":4}'; do
        echo "mhc_seam $more"
        echo "mhc_pre $more"
    done) | while read -r op point; do
        compute-sanitizer --tool "$1" --error-exitcode 9 "$python" -m impl.bench.one --op "$op" --tokens 149 --parameters "$point" --calls 1 || exit
    done
}

profile() {
    "$python" -m impl.bench.one --op mhc_seam --tokens 17 || return
    points | while read -r op point; do
        name="$out/$op-$(echo "$point" | tr -dc 'a-z0-9')"
        ncu --set full --import-source yes --kernel-name 'regex:(slices|rows|heads)_kernel' --launch-skip 2 --launch-count 2 -f \
            -o "$name" "$python" -m impl.bench.one --op "$op" --parameters "$point" || exit
        ncu --import "$name.ncu-rep" --page details --csv >"$name-details.csv"
        ncu --import "$name.ncu-rep" --page source --print-source sass --csv >"$name-source.csv"
    done
}

export -f sanitize profile points
export python out
step build 120 "$python" -m impl.ops.cuda.build
step mhc 260 "$python" -m impl.bench.mhc_trial --out "$out/mhc.jsonl" --seconds 240 --seeds 10
step other 200 "$python" -m impl.bench --times --variants $(ops) --backend triton --backend vllm --seconds 0.03 \
    --tokens 1,8,64,1024,8192 --out "$out/other.jsonl"
step check 200 "$python" -m impl.bench --check --backend triton --backend vllm --backend cuda --runs 1000 --out "$out/check.jsonl"
step tests 300 "$python" -m pytest -q -p no:cacheprovider tests/impl/ops
step kernels 300 "$python" -P -m dsbench kernels --times --seconds 0.05 --tokens 1,8,64,1024,8192 -o "$out/kernels"
step memcheck 300 bash -c 'sanitize memcheck'
step racecheck 300 bash -c 'sanitize racecheck'
step toggles 200 "$python" -m impl.bench --toggles --out "$out/toggles.jsonl"
step profile 400 bash -c profile
