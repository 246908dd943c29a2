"""What a machine is, as far as noise depends on it: processor, memory, kernel, GPUs, versions. No names, no paths."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from dsbench.engines import nvml
from dsbench.errors import InputError

GIB = 2**30
ASK_S = 60
VERSIONS = (
    "import platform, importlib.metadata as m\n"
    "print(platform.python_version())\n"
    "try: print(m.version('torch'))\n"
    "except m.PackageNotFoundError: print('none')"
)


class Fingerprint(BaseModel):
    """Two machines, or one at two times, make the same noise only if all of this is the same."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpu: str
    cores: int
    """Cores that this process may use."""
    memory_gib: int
    kernel: str
    gpus: list[str] = []
    """Name, memory and driver of each."""
    python: str
    torch: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]

    def read_back(self, conditions: Mapping[str, Any]) -> Fingerprint:
        """The same machine with the versions that an engine says it runs."""
        known = {key: str(conditions[key]) for key in ("python", "torch") if conditions.get(key)}
        return self.model_copy(update=known)

    def changes(self, now: Fingerprint) -> list[str]:
        """What is different now, one text each."""
        then, new = self.model_dump(), now.model_dump()
        return [f"{key} {_text(then[key])} -> {_text(new[key])}" for key in then if then[key] != new[key]]


class Host(BaseModel):
    """One machine of a pool, whose blocks are its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """`host1`, `host2`, ..., in the order in which the experiment met them."""
    node: str
    """What the pool calls it; the same node is the same host in a later run."""
    gpus: int
    fingerprint: Fingerprint


@cache
def fingerprint(interpreter: str | None = None) -> Fingerprint:
    """This machine; versions are those that an engine under `interpreter` (else this one) will find.

    InputError if that interpreter does not answer.
    """
    python, torch = _versions(interpreter)
    return Fingerprint(
        cpu=_cpu(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB),
        kernel=platform.release(),
        gpus=_gpus(),
        python=python,
        torch=torch,
    )


def _versions(interpreter: str | None) -> tuple[str, str]:
    if interpreter is None:
        try:
            return platform.python_version(), importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            return platform.python_version(), "none"
    try:
        asked = subprocess.run(
            [interpreter, "-P", "-c", VERSIONS], capture_output=True, text=True, timeout=ASK_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"python {interpreter} does not tell its version: {error}") from None
    python, torch = asked.stdout.split()
    return python, torch


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _gpus() -> list[str]:
    """Empty without NVML; one text with the reason where that hangs or fails."""
    try:
        return nvml.bounded(_named)
    except Exception as error:
        return [f"unknown: {nvml.failed(error)}"]


def _named() -> list[str]:
    with nvml.session() as asked:
        if asked is None:
            return []
        driver = nvml.text(asked.nvmlSystemGetDriverVersion())
        handles = [asked.nvmlDeviceGetHandleByIndex(i) for i in range(asked.nvmlDeviceGetCount())]
        return [f"{nvml.text(asked.nvmlDeviceGetName(h))}, {_memory(asked, h)}, driver {driver}" for h in handles]


def _memory(asked: Any, handle: Any) -> str:
    """Unified memory has no figure of its own."""
    try:
        return f"{round(asked.nvmlDeviceGetMemoryInfo(handle).total / GIB)} GiB"
    except asked.NVMLError:
        return "memory unknown"


def _text(value: Any) -> str:
    return "; ".join(value) or "none" if isinstance(value, list) else str(value)
