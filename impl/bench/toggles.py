"""Toggles as kernels: the operation that a toggle changes, on and off by turns in one loop of graph replays.

These are kernel results: what a step gains also depends on everything else in it. Both sides run on the backends of the
tuning table; each pair of replays is a comparison of its own, in random order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from impl.bench.case import Inputs, pristine, restore, workspace
from impl.bench.cases import CASES, shape
from impl.bench.timing import LEAST_SETS, captured, flush, quartiles, timed
from impl.dims import Dims
from impl.ops import dispatch

Event = dict[str, Any]
PAIRS = 40


@dataclass(frozen=True)
class Sides:
    """One toggle's operation."""

    toggle: str
    op: str
    what: str
    """What the two sides are."""
    off: Callable[[dict[str, Any], Inputs, Dims], Any]
    on: Callable[[dict[str, Any], Inputs, Dims], Any]
    """Computed from the operations by name and one set of inputs."""


def _four(i: Inputs) -> tuple[Any, ...]:
    return i["residual"], i["y"], i["post"], i["comb"]


def _seam(o: dict[str, Any], i: Inputs, **out: Any) -> Any:
    return o["mhc_seam"](*_four(i), i["weights"], **out)


def _stashed(o: dict[str, Any], i: Inputs, dims: Dims) -> Any:
    streams = _seam(o, i).residual
    return i["stash"].copy_(streams)


def _unfused(o: dict[str, Any], i: Inputs, dims: Dims) -> Any:
    """As a model without the toggle does it: streams, their mean, and the head over them (vLLM's, where it is here)."""
    from impl.ops.mhc import head, stream_mean

    streams = o["mhc_post"](*_four(i))
    mean = torch.empty_like(i["y"])
    if i["y"].is_cuda and "vllm_head" in i:
        return i["vllm_head"](streams, i), streams.mean(dim=1)
    stream_mean(streams, mean)
    return head(streams, i["head"]), mean


def _fused(o: dict[str, Any], i: Inputs, dims: Dims) -> Any:
    out, mean = torch.empty_like(i["y"]), torch.empty_like(i["y"])
    o["mhc_post_mean_head"](*_four(i), i["head"], out, mean)
    return out, mean


def _map(o: dict[str, Any], i: Inputs, out: Any) -> Any:
    return o["index_map"](i["local"], i["table"], i["requests"], i["per_page"], out, i["lens"], workspace(out))


def _maps(o: dict[str, Any], i: Inputs, dims: Dims) -> None:
    for ratio in dims.compress_ratios:
        if ratio == dims.large_ratio:
            _map(o, i, torch.empty_like(i["local"]))


def _metadata(o: dict[str, Any], i: Inputs, shared: bool) -> Any:
    n, rows = i["n_decode"], torch.empty_like(i["local"])
    prefill = rows[n:] if shared else torch.empty_like(rows)[: rows.shape[0] - n]
    o["topk_metadata"](
        i["visible"], i["table"], i["requests"], i["per_page"], rows[:n], prefill, i["lens"], i["columns"],
        workspace(rows),
    )  # fmt: skip
    return rows, prefill


def _query(o: dict[str, Any], i: Inputs, out: Any) -> Any:
    return o["query_norm_rope"](i["q"], i["positions"], i["table"], i["eps"], workspace(i["q"]), out)


SIDES = (
    Sides("mtp_hidden_skip", "mhc_seam", "a seam, with and without a copy of its streams",
          _stashed, lambda o, i, d: _seam(o, i)),
    Sides("mhc_residual_reuse", "mhc_seam", "new streams in fresh memory, or over the old ones",
          lambda o, i, d: _seam(o, i), lambda o, i, d: _seam(o, i, residual_out=i["residual"])),
    Sides("mhc_input_reuse", "mhc_seam", "layer input in fresh memory, or over the sublayer output",
          lambda o, i, d: _seam(o, i), lambda o, i, d: _seam(o, i, input_out=i["y"])),
    Sides("mhc_residual_reuse,mhc_input_reuse", "mhc_seam", "both in fresh memory, or both over what they come from",
          lambda o, i, d: _seam(o, i),
          lambda o, i, d: _seam(o, i, residual_out=i["residual"], input_out=i["y"])),
    Sides("mhc_final_fused", "mhc_post_mean_head", "streams, mean and head, or both without the streams",
          _unfused, _fused),
    Sides("q_in_place", "query_norm_rope", "queries into fresh memory, or in place",
          lambda o, i, d: _query(o, i, torch.empty_like(i["q"])), lambda o, i, d: _query(o, i, None)),
    Sides("c128_indices_in_place", "index_map", "a map for every dense layer, or one in place",
          _maps, lambda o, i, d: _map(o, i, i["local"])),
    Sides("c128a_topk_shared", "topk_metadata", "decode and prefill rows in two buffers, or in one",
          lambda o, i, d: _metadata(o, i, False), lambda o, i, d: _metadata(o, i, True)),
)  # fmt: skip


def turns(ops: Sequence[str], tokens: int, device: torch.device) -> Iterator[Event]:
    """One `toggle` event a toggle. Needs a GPU: on a CPU there is no graph to replay."""
    if device.type != "cuda":
        yield {"event": "note", "text": "toggles are timed by graph replays, which need a GPU"}
        return
    dims = shape(device.type)
    for sides in SIDES:
        if ops and sides.op not in ops:
            continue
        event: Event = {"event": "toggle", "toggle": sides.toggle, "op": sides.op, "what": sides.what,
                        "tokens": tokens, "dims": dims.name, "kind": "kernel result"}  # fmt: skip
        try:
            yield {**event, **_by_turns(sides, tokens, dims, device)}
        except Exception as error:
            yield {**event, "error": f"{type(error).__name__}: {error}"[:300]}
        torch.cuda.empty_cache()


def _by_turns(sides: Sides, tokens: int, dims: Dims, device: torch.device) -> Event:
    operations = {op: dispatch.backend(op, device, dims, tokens) for op in dispatch.REFERENCES}
    # The form that changes most of its inputs: both sides' inputs are restored alike.
    case = max((case for case in CASES if case.op == sides.op), key=lambda case: len(case.changed))
    sets = [case.build(dims, tokens, device, seed) for seed in range(LEAST_SETS)]
    for inputs in sets:
        if sides.toggle == "mtp_hidden_skip":
            inputs["stash"] = torch.empty_like(inputs["residual"])
        if sides.toggle == "mhc_final_fused":
            _find_vllm_head(inputs)
    kept = [pristine(case, inputs) for inputs in sets]

    def refresh() -> None:
        for inputs, copies in zip(sets, kept, strict=True):
            restore(inputs, copies)

    graphs = [_captured(side, operations, sets, dims, refresh) for side in (sides.off, sides.on)]
    order = random.Random(0)
    spans: list[tuple[Any, Any]] = []
    for _ in range(PAIRS):
        pair: dict[int, Any] = {}
        for number in order.sample((0, 1), 2):
            refresh()
            flush()
            pair[number] = timed(graphs[number].replay)
        spans.append((pair[0], pair[1]))
    torch.cuda.synchronize()
    times = [[start.elapsed_time(end) / len(sets) for start, end in pair] for pair in spans]
    low, ratio, high = quartiles([off / on for off, on in times])
    return {
        "off_ms": quartiles([off for off, _ in times])[1], "on_ms": quartiles([on for _, on in times])[1],
        "off_over_on": ratio, "low": low, "high": high, "pairs": PAIRS,
        "backend": operations[sides.op].backend, "sets": len(sets),
    }  # fmt: skip


def _captured(
    side: Callable[[dict[str, Any], Inputs, Dims], Any], operations: dict[str, Any], sets: Sequence[Inputs],
    dims: Dims, refresh: Callable[[], None],
) -> torch.cuda.CUDAGraph:  # fmt: skip
    calls = [lambda inputs=inputs: side(operations, inputs, dims) for inputs in sets]
    for call in calls:
        call()
    refresh()
    torch.cuda.synchronize()
    return captured(calls)


def _find_vllm_head(inputs: Inputs) -> None:
    """vLLM's head over streams, where it is here: nothing else computes it from streams on a GPU as fast."""
    import importlib.util

    if importlib.util.find_spec("vllm"):
        from impl.bench.mhc_cases import vllm_head_of

        inputs["vllm_head"] = vllm_head_of


__all__ = ["SIDES", "turns"]
