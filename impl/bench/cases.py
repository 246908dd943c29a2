"""Every form of every operation that is timed, in the order of a model's layer."""

from __future__ import annotations

from impl.bench import index_cases, mhc_cases, query_cases, sampling_cases
from impl.bench.case import Case
from impl.dims import FLASH, PICO, Dims

CASES: tuple[Case, ...] = (*mhc_cases.CASES, *query_cases.CASES, *index_cases.CASES, *sampling_cases.CASES)

GPU_TOKENS = (1, 2, 4, 8, 16, 32, 64, 1024, 8192)
CPU_TOKENS = (1, 16, 64)


def shape(device_type: str) -> Dims:
    """Full size on a GPU; on a CPU the smallest model."""
    return FLASH if device_type == "cuda" else PICO


__all__ = ["CASES", "CPU_TOKENS", "GPU_TOKENS", "shape"]
