"""What is allocated at the peak of vLLM's memory profile, by where it was asked for: a plugin of its own for one boot.

`trace.sh` puts it beside ours as an entry point of `vllm.general_plugins`. TRACE_OUT names a folder; each worker writes
`rankN.json` there: the peak above what was allocated before, and every allocation alive then, largest first.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from impl.vllm_plugin.hooks import AfterImport

WORKER = "vllm.v1.worker.gpu_worker"
OURS = ("vllm/", "impl/", "flashinfer/", "tilelang/", "deep_gemm/")


def register() -> None:
    finder = AfterImport()
    sys.meta_path.insert(0, finder)
    finder.add(WORKER, wrap)


def wrap(module: Any) -> None:
    determine = module.Worker.determine_available_memory

    def determine_available_memory(self: Any) -> int:
        import torch

        torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=2_000_000)
        available = determine(self)
        torch.cuda.synchronize()
        trace = torch.cuda.memory._snapshot()["device_traces"][self.device.index or 0]
        torch.cuda.memory._record_memory_history(enabled=None)
        out = Path(os.environ["TRACE_OUT"])
        out.mkdir(parents=True, exist_ok=True)
        part = out / f"rank{self.rank}.part"
        part.write_text(json.dumps(at_peak(trace), indent=1) + "\n")
        part.rename(part.with_suffix(".json"))
        return int(available)

    module.Worker.determine_available_memory = determine_available_memory


def at_peak(trace: list[dict[str, Any]]) -> dict[str, Any]:
    """The most bytes alive at once among those that `trace` allocates, less what it frees of earlier ones."""
    alive: dict[int, dict[str, Any]] = {}
    freed_earlier = now = peak = moment = 0
    for number, event in enumerate(trace):
        if event["action"] == "alloc":
            alive[event["addr"]] = event
            now += event["size"]
        elif event["action"] == "free_completed":
            if alive.pop(event["addr"], None) is None:
                freed_earlier += event["size"]
            now -= event["size"]
        if now > peak:
            peak, moment = now, number
    alive.clear()
    for event in trace[: moment + 1]:
        if event["action"] == "alloc":
            alive[event["addr"]] = event
        elif event["action"] == "free_completed":
            alive.pop(event["addr"], None)
    grouped: dict[tuple[int, tuple[str, ...]], int] = {}
    for event in alive.values():
        key = (event["size"], frames(event))
        grouped[key] = grouped.get(key, 0) + 1
    largest = sorted(grouped.items(), key=lambda item: -item[0][0] * item[1])
    return {
        "events": len(trace),
        "peak_bytes": peak,
        "freed_of_earlier_bytes": freed_earlier,
        "alive": [{"bytes": size, "times": times, "frames": where} for (size, where), times in largest],
    }


def frames(event: dict[str, Any]) -> tuple[str, ...]:
    """The innermost frames of model code, `file:line function`, at most six."""
    found = []
    for frame in event.get("frames", ()):
        name = frame["filename"]
        start = max(name.rfind(root) for root in OURS)
        if start >= 0:
            found.append(f"{name[start:]}:{frame['line']} {frame['name']}")
    return tuple(found[:6])
