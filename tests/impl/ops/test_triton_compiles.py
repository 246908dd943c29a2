"""Triton's kernels compile for a Hopper GPU where there is none, and read and write 16 bytes at a time where they can.

The interpreter runs code that the compiler refuses, and does not tell how often a gate is loaded.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LINEAR = [f"linear_{x}_{parts}" for x in ("bf16", "fp32") for parts in (1, 3)]
SAMPLING = ["near", "exact", "stats", "verdict", "verdict_synthetic", "resample", "emit"]
ATTEND = [f"attend_{selected}" for selected in (0, 32, 128)]
SCRIPT = Path(__file__).with_name("compile_for_hopper.py")


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed here")
    root = SCRIPT.parents[3]
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, SCRIPT], env=env, capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["kernel"]: line for line in lines}


def test_all_compile(counts):
    mhc = {"post", "post_mean", "sums", "head", "input"}
    assert set(counts) == {*mhc, "query", "map", "insert", "order", *SAMPLING, *LINEAR, *ATTEND}


BATCH = {
    "map": {"lens", "requests", "valid"},
    "near": {"temperature", "seeds", "positions", "slots"},
    "exact": {"temperature", "seeds", "positions"},
    "verdict": {"temperature", "seeds", "positions", "n_drafted", "mapping", "n_mapped", "n_slots"},
    "emit": {"temperature", "seeds", "positions", "mapping", "n_mapped", "n_slots"},
}
"""What lies and counts otherwise in another batch."""


@pytest.mark.parametrize("kernel", BATCH)
def test_another_batch_asks_for_no_other_compilation(counts, kernel):
    """A column of an odd number of requests begins at 8 bytes: else it would be compiled for while requests wait."""
    assert set(counts[kernel]["anywhere"]) >= BATCH[kernel]


@pytest.mark.parametrize(("kernel", "stores"), [("post", 4), ("post_mean", 1)])
def test_post_reads_a_gate_once_and_everything_else_by_16_bytes(counts, kernel, stores):
    found = counts[kernel]
    assert found["wide_loads"] == 5
    assert found["loads"] == 5 + 20
    assert (found["stores"], found["wide_stores"]) == (stores, stores)


def test_queries_are_read_and_written_by_16_bytes(counts):
    found = counts["query"]
    assert found["wide_loads"] == found["wide_stores"] == found["stores"]


@pytest.mark.parametrize("kernel", LINEAR)
def test_products_run_on_tensor_cores_and_read_by_16_bytes(counts, kernel):
    found = counts[kernel]
    assert found["tensor_core"]
    assert found["fma"] == 0
    assert found["copies"] == found["wide_copies"] > 0


@pytest.mark.parametrize("kernel", ATTEND)
def test_attention_runs_on_tensor_cores(counts, kernel):
    assert counts[kernel]["tensor_core"]
