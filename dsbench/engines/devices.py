"""Accelerators between boots: drained to idle before one, and power, clocks and throttling beside it.

NVML answers for a discrete GPU. On unified memory it has no figures for memory: then the host's MemAvailable and its
page cache are read instead, and the record names that fallback. Without either the answer is unknown, never idle; so
it is where NVML does not say which processes use a GPU. GPUs of other machines are not seen from here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsbench.engines import nvml
from dsbench.errors import InputError

GIB = 2**30
POLL_S = 0.5
SETTLED_BYTES = 64 * 2**20
"""Free memory of a unified-memory host that moves less than this between two looks has settled."""
MEMINFO = Path("/proc/meminfo")

DRIVER = Path("/dev/nvidiactl")

NVML, UNIFIED, NONE = "nvml", "MemAvailable and page cache (unified memory)", "no accelerator"
UNASKED = "an NVIDIA driver is there, and NVML does not answer"

ELSEWHERE = {
    "command": "GPUs are looked at on this machine alone: what those of a rig's other hosts do is unknown",
    "endpoint": "GPUs are looked at on this machine alone: those of servers that run elsewhere are unknown",
}
"""Notes for plans, by engine, whose processes may run on other machines."""


def reading(visible: str | None = None) -> dict[str, Any]:
    """Memory, processes, power, clocks and throttling of the GPUs as they are now; None where NVML does not say.

    `visible` is CUDA_VISIBLE_DEVICES of the engine: other GPUs may do other work. Where NVML hangs or fails there are
    none, and `unknown` of the reading says why. InputError where a GPU is lost.
    """
    try:
        gpus = nvml.bounded(lambda: _gpus(visible))
    except InputError:
        raise
    except Exception as error:
        return {"source": NVML, "host": host_memory(), "gpus": [], "unknown": nvml.failed(error)}
    if gpus is None:
        return {"source": UNASKED if DRIVER.exists() else NONE, "host": host_memory(), "gpus": []}
    source = NVML if all(gpu["used_bytes"] is not None for gpu in gpus) else UNIFIED
    return {"source": source, "host": host_memory(), "gpus": gpus}


def _gpus(visible: str | None) -> list[dict[str, Any]] | None:
    """None where there is nothing to ask."""
    with nvml.session() as asked:
        if asked is None:
            return None
        try:
            handles = [asked.nvmlDeviceGetHandleByIndex(i) for i in range(asked.nvmlDeviceGetCount())]
        except asked.NVMLError as error:
            raise InputError(f"a GPU does not answer NVML ({error}): {nvml.MEND}, and reset it") from None
        return [{"number": i, **_gpu(asked, handles[i])} for i in seen_by_engine(visible, len(handles))]


def seen_by_engine(visible: str | None, count: int) -> list[int]:
    """Numbers of the GPUs that a CUDA_VISIBLE_DEVICES of plain numbers leaves; all for names and without it."""
    if visible == "":
        return []
    asked = [part.strip() for part in (visible or "").split(",")]
    if all(part.isdigit() and int(part) < count for part in asked):
        return [int(part) for part in asked]
    return list(range(count))


def drained(
    deadline_s: float, read: Callable[[], dict[str, Any]] = reading, sleep: Callable[[float], None] = time.sleep
) -> tuple[dict[str, Any], str]:
    """Wait until no process is on any GPU and its memory has stopped falling; the last reading, and why not, or ''.

    What cannot be read is not waited for: `unknown` tells of it.
    """
    deadline = time.monotonic() + deadline_s
    before = read()
    if not before["gpus"]:
        return before, ""
    while True:
        sleep(POLL_S)
        now = read()
        if not now["gpus"]:
            return now, ""
        reason = _busy(before, now)
        if not reason or time.monotonic() > deadline:
            return now, reason
        before = now


def unknown(values: dict[str, Any]) -> list[str]:
    """Lines about what a reading leaves open: whether GPUs were idle."""
    if values["source"] == UNASKED:
        return [f"{UNASKED}: whether its GPUs were idle is unknown; pip install nvidia-ml-py beside dsbench"]
    silent = [str(gpu["number"]) for gpu in values["gpus"] if gpu["processes"] is None]
    if not silent:
        return []
    which = f"GPU {silent[0]}" if len(silent) == 1 else f"GPUs {', '.join(silent)}"
    return [f"NVML does not say which processes use {which}: whether it was idle is unknown"]


def _busy(before: dict[str, Any], now: dict[str, Any]) -> str:
    for gpu in now["gpus"]:
        if gpu["processes"]:
            return f"GPU {gpu['number']} is used by other processes: {', '.join(map(str, gpu['processes']))}"
    if now["source"] == UNIFIED:
        then, left = before["host"]["available_bytes"], now["host"]["available_bytes"]
        moving = None in (then, left) or abs(left - then) > SETTLED_BYTES
        return "the host's available memory is still moving" if moving else ""
    used = [(a["used_bytes"], b["used_bytes"]) for a, b in zip(before["gpus"], now["gpus"], strict=True)]
    falling = [gpu["number"] for gpu, (then, left) in zip(now["gpus"], used, strict=True) if left < then]
    return f"memory of GPU {falling[0]} is still being given back" if falling else ""


def host_memory() -> dict[str, int | None]:
    """MemAvailable and page cache in bytes; None where the system does not say."""
    values: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        for line in MEMINFO.read_text(encoding="ascii").splitlines():
            name, _, rest = line.partition(":")
            values[name] = int(rest.split()[0]) * 1024
    return {"available_bytes": values.get("MemAvailable"), "page_cache_bytes": values.get("Cached")}


def load(asked: Any, handle: Any) -> dict[str, Any]:
    """What one GPU is doing at this moment; None where NVML does not say."""
    return {
        "power_milliwatts": _ask(asked, lambda: asked.nvmlDeviceGetPowerUsage(handle)),
        "temperature_c": _ask(asked, lambda: asked.nvmlDeviceGetTemperature(handle, asked.NVML_TEMPERATURE_GPU)),
        "sm_clock_mhz": _ask(asked, lambda: asked.nvmlDeviceGetClockInfo(handle, asked.NVML_CLOCK_SM)),
        "throttle_reasons": _ask(asked, lambda: asked.nvmlDeviceGetCurrentClocksEventReasons(handle)),
    }


def processes(asked: Any, handle: Any) -> list[int] | None:
    """Ids of the processes that compute on one GPU; None where NVML does not say."""
    running = _ask(asked, lambda: asked.nvmlDeviceGetComputeRunningProcesses(handle))
    return None if running is None else [process.pid for process in running]


def energy(asked: Any, handle: Any) -> int | None:
    """Millijoules that a GPU has taken since its driver was loaded; None where NVML does not count them."""
    counted = _ask(asked, lambda: asked.nvmlDeviceGetTotalEnergyConsumption(handle))
    return None if counted is None else int(counted)


def _ask(asked: Any, question: Callable[[], Any]) -> Any:
    try:
        return question()
    except asked.NVMLError:
        return None


def _gpu(asked: Any, handle: Any) -> dict[str, Any]:
    """One GPU. `processes` are ids of others that compute on it."""
    memory = _ask(asked, lambda: asked.nvmlDeviceGetMemoryInfo(handle))
    return {
        "name": _ask(asked, lambda: nvml.text(asked.nvmlDeviceGetName(handle))),
        "driver": _ask(asked, lambda: nvml.text(asked.nvmlSystemGetDriverVersion())),
        "used_bytes": None if memory is None else int(memory.used),
        "total_bytes": None if memory is None else int(memory.total),
        "processes": processes(asked, handle),
        "power_limit_milliwatts": _ask(asked, lambda: asked.nvmlDeviceGetEnforcedPowerLimit(handle)),
        "memory_clock_mhz": _ask(asked, lambda: asked.nvmlDeviceGetClockInfo(handle, asked.NVML_CLOCK_MEM)),
        **load(asked, handle),
    }
