"""The tests of Triton's kernels by its interpreter, in a process of their own: Triton must not have been imported."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
FILES = [*sorted(HERE.glob("triton/test_*.py")), HERE.parent / "vllm_plugin/test_final_by_kernels.py"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs these tests where they stand")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here")
@pytest.mark.parametrize(
    "file",
    [pytest.param(path, marks=[pytest.mark.long] if "engine" in path.name else [], id=path.name) for path in FILES],
)
def test_kernels_by_the_interpreter(file):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(file)],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, cwd=HERE.parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
