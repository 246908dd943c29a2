"""The comparison: every case on every backend at every number of tokens, one row as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from impl.bench.backends import Way, absent, ways
from impl.bench.case import Case, Inputs, pristine, restore
from impl.bench.cases import shape
from impl.bench.timing import measure, sets_for

Event = dict[str, Any]


class Poisoned(RuntimeError):
    """A kernel has broken this process' CUDA context: whatever follows needs another process."""


def compare(
    cases: Sequence[Case],
    backends: Sequence[str],
    tokens: Sequence[int],
    seconds: float,
    device: torch.device,
    copy: float | None,
    every_point: bool = False,
    skip: Sequence[str] = (),
) -> Iterator[Event]:
    """Events `start` and `row`. copy: bytes a second of a plain copy. skip: cells that ended an earlier process."""
    dims = shape(device.type)
    for case in cases:
        for name in backends:
            if reason := absent(name, case, device):
                yield {"event": "absent", "op": case.op, "form": case.form, "backend": name, "reason": reason}
        for n in tokens:
            if n > case.most:
                continue
            sets, nbytes = rotating(case, partial(case.build, dims, n, device))
            kept = [pristine(case, inputs) for inputs in sets]
            for way in ways(case, backends, device, dims, n, every_point):
                cell: Event = {"op": case.op, "form": case.form, "backend": way.backend, "tokens": n}
                cell["parameters"] = dict(way.parameters)
                if label(cell) in skip:
                    continue
                yield {"event": "start", **cell}
                yield {"event": "row", **cell, "dims": dims.name, "bytes": nbytes,
                       **timed(case, way, sets, kept, seconds, device, copy, nbytes)}  # fmt: skip
            del sets, kept
            if device.type == "cuda":
                torch.cuda.empty_cache()


def label(cell: Event) -> str:
    """A cell's name, as one argument."""
    parameters = ",".join(f"{key}={value}" for key, value in cell["parameters"].items())
    return f"{cell['op']}/{cell['form']}/{cell['backend']}/{cell['tokens']}/{parameters}"


def rotating(case: Case, build: Callable[[int], Inputs]) -> tuple[list[Inputs], int]:
    """Inputs of several seeds, as many as a round takes, and the bytes of one."""
    sets = [build(1)]
    nbytes = case.nbytes(sets[0])
    return sets + [build(2 + i) for i in range(sets_for(nbytes) - 1)], nbytes


def timed(
    case: Case, way: Way, sets: list[Inputs], kept: list[Any], seconds: float, device: torch.device,
    copy: float | None, nbytes: int,
) -> Event:  # fmt: skip
    """A row's figures; `error` in their place where the way cannot run here. Raises Poisoned."""

    def refresh() -> None:
        for inputs, copies in zip(sets, kept, strict=True):
            restore(inputs, copies)

    refresh()
    calls = [lambda inputs=inputs: way.compute(inputs) for inputs in sets]
    try:
        timing = measure(calls, refresh, seconds, device)
    except Exception as error:  # one kernel that cannot run here must not cost the others their figures
        if device.type == "cuda" and _broken():
            raise Poisoned(f"{case.name} on {way.backend}: {error}") from error
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]}
    rate = nbytes * 1e3 / timing.ms
    return {
        "ms": timing.ms, "graph_ms": timing.graph_ms, "eager_ms": timing.eager_ms, "low_ms": timing.low_ms,
        "high_ms": timing.high_ms, "rounds": timing.rounds, "sets": timing.sets, "no_graph": timing.refused,
        "bytes_per_second": rate, "of_copy": None if copy is None else rate / copy,
        "kind": "kernel result" if device.type == "cuda" else "no GPU figure",
    }  # fmt: skip


def _broken() -> bool:
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda")
    except RuntimeError:
        return True
    return False


__all__ = ["Poisoned", "compare", "label", "rotating", "timed"]
