"""Whether this machine can run an experiment: one finding a check, each with its mend."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dsbench.engines import nvml

Status = Literal["ok", "absent", "advice", "fail"]
"""absent: not there and not needed. advice: it runs, but the figures would suffer. fail: it cannot run."""

GIB = 2**30
NEEDED_PYTHON = (3, 11)
NEEDED_MEMORY = 2 * GIB
NEEDED_DISK = GIB // 4
ADVISED_CORES = 2
BUSY_SHARE = 0.3
"""Load average a core above which other work disturbs clock readings."""
CARD_SUFFIXES = (".md", ".json", ".toml")
ENGINE_IMPORT = "import torch, impl.serve; print(torch.__version__, 'cuda' if torch.cuda.is_available() else 'cpu')"
IMPORT_TIMEOUT_S = 120


@dataclass(frozen=True)
class Finding:
    check: str
    status: Status
    found: str
    mend: str = ""


def examine(results: Path) -> Iterator[Finding]:
    """Run every check, cheap ones first; `results` is the folder that experiments would be written to."""
    checks: tuple[Callable[[], Finding], ...] = (_python, _cores, _memory, _load, _port, lambda: _results(results))
    for check in checks:
        yield check()
    yield from _weights(_weights_folder())
    yield _engine()
    yield from _gpus()


def _python() -> Finding:
    found = platform.python_version()
    if sys.version_info < NEEDED_PYTHON:
        return Finding("python", "fail", found, "use Python 3.11 or later")
    return Finding("python", "ok", found)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cores() -> Finding:
    cores = _usable_cores()
    if cores < ADVISED_CORES:
        mend = "give the process two cores: the engine and its client share one here, so TPS means less"
        return Finding("cores", "advice", f"{cores}", mend)
    return Finding("cores", "ok", f"{cores}")


def _memory() -> Finding:
    free = _available_memory()
    if free is None:
        return Finding(
            "memory", "advice", "unknown on this platform", f"see that {NEEDED_MEMORY / GIB:.0f} GiB are free"
        )
    if free < NEEDED_MEMORY:
        return Finding("memory", "fail", f"{free / GIB:.1f} GiB free", f"free {NEEDED_MEMORY / GIB:.0f} GiB")
    return Finding("memory", "ok", f"{free / GIB:.1f} GiB free")


def _available_memory() -> int | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _load() -> Finding:
    load, cores = os.getloadavg()[0], _usable_cores()
    found = f"load average {load:.2f} on {cores} cores"
    if load / cores > BUSY_SHARE:
        return Finding("other load", "advice", found, "stop other work before measuring TPS; bytes do not mind it")
    return Finding("other load", "ok", found)


def _port() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return Finding("free port", "ok", f"127.0.0.1:{server.getsockname()[1]}")
    except OSError as error:
        return Finding("free port", "fail", str(error), "allow this user to listen on 127.0.0.1")


def _results(folder: Path) -> Finding:
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding("results folder", "fail", f"cannot write to {folder}", "name another folder with --out")
    free = shutil.disk_usage(existing).free
    if free < NEEDED_DISK:
        return Finding("results folder", "fail", f"{free // 2**20} MiB free at {folder}", "free 256 MiB there")
    return Finding("results folder", "ok", f"{folder}, {free / GIB:.1f} GiB free")


def _weights_folder() -> Path:
    spec = importlib.util.find_spec("impl")
    if spec is None or spec.origin is None:
        raise RuntimeError("package impl is not installed beside dsbench")
    return Path(spec.origin).parent / "weights"


def _weights(folder: Path) -> Iterator[Finding]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        mend = "reinstall the package, or train them: python -m impl.train --dims pico"
        yield Finding("weights", "fail", "none shipped", mend)
    for file in files:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        cards = [card for card in folder.glob(f"{file.stem}*") if card.suffix in CARD_SUFFIXES]
        if any(digest in card.read_text(encoding="utf-8") for card in cards):
            yield Finding("weights", "ok", f"{file.name}, sha256 {digest[:12]} as its card says")
        else:
            says = "another sum on its card" if cards else "no card"
            yield Finding("weights", "fail", f"{file.name}, sha256 {digest[:12]}, {says}", "reinstall the package")


def _engine() -> Finding:
    """Import the engine in a process of its own: this one stays free of torch."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", ENGINE_IMPORT], capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("engine", "fail", f"no answer in {IMPORT_TIMEOUT_S} s", "look for a stuck disk or driver")
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        mend = "install the engine: pip install torch==2.13.0, then pip install 'dsbench-dspark[engine]'"
        return Finding("engine", "fail", reason, mend)
    return Finding("engine", "ok", f"torch {done.stdout.strip()}")


def _gpus() -> Iterator[Finding]:
    try:
        yield from nvml.bounded(lambda: list(_told_gpus()))
    except Exception as error:
        yield Finding("GPU", "advice", nvml.failed(error), "mend the driver: what GPUs do would be unknown")


def _told_gpus() -> Iterator[Finding]:
    try:
        import pynvml
    except ModuleNotFoundError:
        mend = "for a GPU: pip install 'dsbench-dspark[gpu]'"
        yield Finding("GPU", "absent", "not looked for, nvidia-ml-py is not installed", mend)
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Finding("GPU", "absent", f"none ({error}); the engine runs on the CPU")
        return
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            yield _gpu(index)
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Finding:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = nvml.text(pynvml.nvmlDeviceGetName(handle))
    try:
        used = f"{pynvml.nvmlDeviceGetMemoryInfo(handle).used / GIB:.1f} GiB used"
    except pynvml.NVMLError:
        used = "memory unknown"
    others = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if others:
        mend = "end them or choose another GPU: a boot beside another process is void"
        return Finding(f"GPU {index}", "advice", f"{name}, {used}, {others} other processes", mend)
    return Finding(f"GPU {index}", "ok", f"{name}, {used}, no other process")
