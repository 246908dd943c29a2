"""GPU time of steps by CUDA events, asked for and written as `/start_profile` and `/stop_profile` of vLLM's server do.

Events are recorded beside the step and read when the recording ends, so that no step waits for them. A replayed step
is one launch, so the time between its events is the GPU's own; an eager step's has the gaps between its kernels in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from impl.engine.scheduler import Plan


class _Timed(NamedTuple):
    name: str
    what: str
    start: torch.cuda.Event
    end: torch.cuda.Event


class StepTimes:
    """Records steps between `start` and `stop`. The engine's thread runs `around`, any other one the rest."""

    def __init__(self) -> None:
        self._steps: list[_Timed] | None = None
        self._written = 0

    def start(self) -> None:
        """Record from the next step on; what was recorded and not written is dropped."""
        self._steps = []

    @contextmanager
    def around(self, plan: Plan, *, replayed: bool) -> Iterator[None]:
        """Around the launches of one step; nothing but a look while nobody records."""
        steps = self._steps
        if steps is None:
            yield
            return
        events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        events[0].record()
        yield
        events[1].record()
        what = "graph of a step" if replayed else "eager step, gaps included"
        steps.append(_Timed(step_name(plan), what, *events))

    def stop(self, folder: Path) -> Path | None:
        """Wait for what was recorded and write it as a trace into `folder`; None where there is nothing."""
        steps, self._steps = self._steps, None
        if not steps:
            return None
        steps[-1].end.synchronize()
        zero = steps[0].start
        events = []
        for step in steps:
            at = {"ts": 1000 * zero.elapsed_time(step.start), "dur": 1000 * step.start.elapsed_time(step.end)}
            events += [_event("gpu_user_annotation", step.name, at), _event("kernel", step.what, at)]
        folder.mkdir(parents=True, exist_ok=True)
        self._written += 1
        path = folder / f"rank0.{self._written}.pt.trace.json"
        path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
        return path


def step_name(plan: Plan) -> str:
    """vLLM's name of a step in a trace: its prompts and its decodes, each with the number of their rows."""
    decodes, rows = plan.n_decode, plan.n_decode_rows
    return f"execute_context_{len(plan.chunks) - decodes}({plan.n_tokens - rows})_generation_{decodes}({rows})"


def _event(category: str, name: str, at: dict[str, float]) -> dict[str, Any]:
    return {"ph": "X", "pid": 0, "tid": 0, "cat": category, "name": name, **at}
