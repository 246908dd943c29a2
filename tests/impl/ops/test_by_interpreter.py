"""The tests of Triton's kernels by its interpreter, in a process of their own: Triton must not have been imported."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).with_name("triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU runs these tests where they stand")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here")
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(path.name, marks=[pytest.mark.long] if "engine" in path.name else [])
        for path in sorted(FOLDER.glob("test_*.py"))
    ],
)
def test_kernels_by_the_interpreter(file):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(FOLDER / file)],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, cwd=FOLDER.parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
