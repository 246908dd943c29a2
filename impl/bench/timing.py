"""Time of one call: on a GPU by events around graph replays over rotating inputs, on a CPU by the clock.

A round runs each set of inputs once. Before it, outside the events, inputs that calls change are restored and 256 MiB
are read, so that nothing of the sets is in the second-level cache: every call finds its inputs in memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

Call = Callable[[], Any]

FLUSH_BYTES = 256 << 20
"""Read before a round; an H200 caches 50 MiB."""
ROTATING_BYTES = 128 << 20
"""What the sets of one round hold together, where MOST_SETS allow."""
LEAST_SETS, MOST_SETS = 3, 48
LEAST_ROUNDS, MOST_ROUNDS = 5, 60
COPY_BYTES = 4 << 30


@dataclass(frozen=True)
class Timing:
    """Milliseconds a call."""

    graph_ms: float | None
    """Median over rounds of graph replays; None where the calls cannot be captured, or on a CPU."""
    eager_ms: float
    low_ms: float
    """Quartiles of `graph_ms`' rounds, or of the eager ones."""
    high_ms: float
    rounds: int
    sets: int
    refused: str = ""
    """Why there is no graph."""

    @property
    def ms(self) -> float:
        return self.eager_ms if self.graph_ms is None else self.graph_ms


def sets_for(nbytes: int) -> int:
    """How many sets of inputs of `nbytes` a round rotates over."""
    return max(LEAST_SETS, min(MOST_SETS, -(-ROTATING_BYTES // max(nbytes, 1))))


def measure(calls: Sequence[Call], refresh: Call, seconds: float, device: torch.device) -> Timing:
    """Time `calls`, one a set of inputs; `refresh` restores what they change. About `seconds` after the first calls."""
    if device.type != "cuda":
        return _by_clock(calls, refresh, seconds)
    return _by_events(calls, refresh, seconds)


def _by_clock(calls: Sequence[Call], refresh: Call, seconds: float) -> Timing:
    for call in calls:
        call()
    rounds: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(rounds) < LEAST_ROUNDS or (time.perf_counter() < deadline and len(rounds) < MOST_ROUNDS):
        refresh()
        start = time.perf_counter()
        for call in calls:
            call()
        rounds.append((time.perf_counter() - start) * 1e3 / len(calls))
    low, middle, high = quartiles(rounds)
    return Timing(None, middle, low, high, len(rounds), len(calls))


def _by_events(calls: Sequence[Call], refresh: Call, seconds: float) -> Timing:
    for call in calls:
        call()
    refresh()
    torch.cuda.synchronize()

    def eager() -> None:
        for call in calls:
            call()

    first = _rounds(eager, refresh, 3)
    eager_ms = statistics.median(first) / len(calls)
    count = max(LEAST_ROUNDS, min(MOST_ROUNDS, round(seconds * 1e3 / max(statistics.median(first), 1e-3))))
    try:
        graph = captured(calls)
    except RuntimeError as error:
        torch.cuda.synchronize()
        low, middle, high = quartiles([ms / len(calls) for ms in _rounds(eager, refresh, count)])
        return Timing(None, middle, low, high, count, len(calls), str(error).splitlines()[0])
    refresh()
    graph.replay()
    low, middle, high = quartiles([ms / len(calls) for ms in _rounds(graph.replay, refresh, count)])
    return Timing(middle, eager_ms, low, high, count, len(calls))


def captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """One graph of all calls; what they return stays allocated side by side, as their inputs do."""
    graph, results = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for call in calls:
            results.append(call())
    return graph


def _rounds(run: Call, refresh: Call, count: int) -> list[float]:
    """Milliseconds of each of `count` rounds."""
    spans = []
    for _ in range(count):
        refresh()
        flush()
        spans.append(timed(run))
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in spans]


def timed(run: Call) -> tuple[Any, Any]:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    return start, end


@cache
def _filler() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(FLUSH_BYTES // 4, device="cuda"), torch.zeros((), device="cuda")


def flush() -> None:
    """Read enough to put everything else out of the cache; reading leaves nothing to be written back."""
    filler, out = _filler()
    torch.sum(filler, 0, out=out)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * list(values)
    return low, middle, high


def copy_rate(rounds: int = 10) -> float:
    """Bytes a second of an eager device copy of 4 GiB, read and written: the ceiling that figures are a fraction of."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").zero_()
    target = torch.empty_like(source)
    target.copy_(source)
    spans = [timed(lambda: target.copy_(source)) for _ in range(rounds)]
    torch.cuda.synchronize()
    return 2 * COPY_BYTES * 1e3 / statistics.median(start.elapsed_time(end) for start, end in spans)


__all__ = ["Timing", "captured", "copy_rate", "flush", "measure", "quartiles", "sets_for", "timed"]
