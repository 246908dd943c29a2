"""What the figures were taken on: card, driver, versions, and the rate of a plain copy."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping
from typing import Any

import torch

PACKAGES = ("torch", "triton", "vllm", "tilelang", "flashinfer-python")


def describe(device: torch.device) -> dict[str, Any]:
    """JSON-ready facts; None where nobody says."""
    found: dict[str, Any] = {"device": device.type, "python": platform.python_version(), **versions()}
    if device.type != "cuda":
        return {**found, "card": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    properties = torch.cuda.get_device_properties(device)
    return {
        **found,
        "card": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "cache_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "driver": _smi("driver_version"),
        "clocks": _smi("clocks.sm,clocks.mem"),
        "other_processes": _others(),
    }


def versions() -> Mapping[str, str | None]:
    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    return {name: version(name) for name in PACKAGES}


def _smi(query: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", "0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _others() -> int | None:
    """Processes on the card, this one not counted; None where nvidia-smi does not say."""
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return None
    return max(0, len(said) - 1)


__all__ = ["describe", "versions"]
