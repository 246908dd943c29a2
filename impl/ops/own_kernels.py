"""Whether the engine's small operations run by Triton's kernels: on CUDA, and where DSBENCH_OPS=triton asks for them.

For kernels that are no operation of the tuning table: products, attention and the indexer's choice. Each has one point
whatever the tokens, so that a row has the same bits alone and in a batch. DSBENCH_OPS=torch leaves them to torch.
"""

from __future__ import annotations

import os
from functools import lru_cache

import torch

from impl.ops import dispatch


def own_kernels(device: torch.device) -> bool:
    """Whether Triton's kernels compute on this device; on a CPU only by its interpreter, where that is asked for."""
    return _chosen(device.type, os.environ.get(dispatch.FORCE, ""))


@lru_cache(maxsize=64)
def _chosen(device: str, forced: str) -> bool:
    """Asked for at every operation, so kept by what decides it."""
    asked = dispatch.forced("*") if forced else None
    return (device == "cuda" or asked == "triton") and asked in (None, "triton") and not dispatch.missing("triton")
