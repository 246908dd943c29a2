"""Profiler traces of PyTorch (Chrome trace JSON): the GPU's own time of the decode steps in them.

vLLM marks every step of a traced worker with the numbers of its prompts and of its decoding requests. The time of a
step runs from its first kernel to the first of the next step, so that what follows the model, the draft and the
sampling, belongs to it. Kernels that run at once count once.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_BYTES = 512 * 2**20
"""Longest trace that is read, unpacked."""
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
STEP = re.compile(r"execute_(?:\d+_)?context_(\d+)\(.{0,200}?\)_generation_(\d+)\(")

Span = tuple[float, float]


class BadTrace(Exception):
    """Not a trace, or one without the steps that are asked for; the message says which."""


@dataclass(frozen=True)
class DecodeSteps:
    """Neighbouring decode steps of one trace; milliseconds."""

    steps: int
    busy_ms: float
    """Time a step in which at least one kernel or copy ran."""
    span_ms: float
    """Time a step from its first kernel to the next step's first: busy and idle."""


def decode_steps(path: Path, requests: int) -> DecodeSteps:
    """The longest run of steps that decode `requests` requests and read no prompt. BadTrace without two of them."""
    events = _events(path)
    starts = _longest_run(events, requests)
    if len(starts) < 2:
        raise BadTrace(f"{path.name} has no two neighbouring decode steps of {requests} requests")
    first, last = starts[0], starts[-1]
    spans = [_span(event) for event in events if event.get("cat") in ON_GPU]
    busy = covered([(max(a, first), min(b, last)) for a, b in spans if b > first and a < last])
    steps = len(starts) - 1
    return DecodeSteps(steps, busy / steps / 1000, (last - first) / steps / 1000)


def covered(spans: Iterable[Span]) -> float:
    """Length of the union of intervals."""
    total, end = 0.0, float("-inf")
    for a, b in sorted(spans):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


def _events(path: Path) -> list[dict[str, Any]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BadTrace(f"{path.name} is longer than {MAX_BYTES // 2**20} MiB: trace fewer steps")
        events = json.loads(content)["traceEvents"]
        return [event for event in events if event.get("ph") == "X"]
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadTrace(f"{path.name} is not a profiler trace: {error}") from None


def _longest_run(events: Sequence[dict[str, Any]], requests: int) -> list[float]:
    """Start times, in us, of neighbouring decode steps. A step is marked once on every stream that it uses: the
    stream with most marks is taken."""
    by_stream: dict[Any, list[tuple[float, bool]]] = defaultdict(list)
    for event in events:
        marked = STEP.match(str(event.get("name", "")))
        if marked and event.get("cat") == "gpu_user_annotation":
            wanted = int(marked[1]) == 0 and int(marked[2]) == requests
            by_stream[event.get("pid"), event.get("tid")].append((_span(event)[0], wanted))
    marks = max(by_stream.values(), key=len, default=[])
    best: list[float] = []
    run: list[float] = []
    for start, wanted in sorted(marks):
        run = [*run, start] if wanted else []
        best = max(best, run, key=len)
    return best


def _span(event: dict[str, Any]) -> Span:
    start = float(event["ts"])
    return start, start + float(event.get("dur", 0))


__all__ = ["BadTrace", "DecodeSteps", "covered", "decode_steps"]
