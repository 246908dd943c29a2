"""Inputs, checks and timings of the mHC kernels at DeepSeek-V4-Flash's widths, for `impl.ops.mhc_trial`."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from impl.ops import mhc

HIDDEN, STREAMS, EPS = 4096, 4, 1e-6
L2_BYTES = 128 * 2**20
"""More than any L2 cache of today: what the rotating inputs of one timing come to at least."""
MOVED = {
    "mhc_post": 9, "mhc_pre": 5, "mhc_seam": 10, "mhc_post_mean": 6, "mhc_post_head": 6, "mhc_post_mean_head": 7,
}  # fmt: skip
"""bf16 rows of HIDDEN read once and written once a token; the seam's are R, y, R' and the layer input."""


@dataclass(frozen=True)
class Acts:
    residual: Tensor
    y: Tensor
    post: Tensor
    comb: Tensor

    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.residual, self.y, self.post, self.comb

    def copy(self) -> Acts:
        return Acts(*(tensor.clone() for tensor in self.all()))


def acts(n: int, seed: int) -> Acts:
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    comb = torch.softmax(normal(n, STREAMS, STREAMS), -1)
    return Acts(
        normal(n, STREAMS, HIDDEN).bfloat16(), normal(n, HIDDEN).bfloat16(), 2 * normal(n, STREAMS).sigmoid(), comb
    )


@cache
def weights() -> tuple[mhc.SeamWeights, mhc.HeadWeights]:
    generator = torch.Generator("cuda").manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    rows = STREAMS * (STREAMS + 2)
    norm = (1 + 0.1 * normal(HIDDEN)).bfloat16().float()  # vLLM holds it in bf16
    seam = mhc.SeamWeights(
        normal(rows, STREAMS * HIDDEN) / 128, 1 + 0.1 * normal(3), 0.1 * normal(rows), norm, EPS, EPS, 20
    )
    return seam, mhc.HeadWeights(
        normal(STREAMS, STREAMS * HIDDEN) / 128, 1 + 0.1 * normal(1), 0.1 * normal(STREAMS), EPS, EPS
    )


def streams_in_order(a: Acts) -> Tensor:
    """POST in vLLM's rounding order, each fma by one rounding of fp64."""
    residual, y = a.residual.double(), a.y.double()
    new = torch.empty_like(a.residual)
    for j in range(STREAMS):
        v = (a.comb[:, 0, j, None].double() * residual[:, 0]).float()
        v = (a.post[:, j, None].double() * y + v).float()
        for i in range(1, STREAMS):
            v = (a.comb[:, i, j, None].double() * residual[:, i] + v).float()
        new[:, j] = v.bfloat16()
    return new


def call(
    op: str, function: Callable[..., Any], a: Acts, variant: dict[str, Any], reuse: bool = False
) -> tuple[Tensor, ...]:
    """One operation on `a`; with reuse its outputs lie in its inputs."""
    if op == "mhc_pre":
        return tuple(function(a.residual, weights()[0], **variant))[1:]
    if op == "mhc_post":
        return (function(*a.all(), **variant, **({"out": a.residual} if reuse else {})),)
    if op == "mhc_seam":
        targets = {"residual_out": a.residual, "input_out": a.y} if reuse else {}
        return tuple(function(*a.all(), weights()[0], **targets, **variant))
    out = a.y if reuse else torch.empty_like(a.y)
    if op == "mhc_post_mean":
        function(*a.all(), out, **variant)
        return (out,)
    mean = torch.empty_like(a.y) if op == "mhc_post_mean_head" else None
    function(*a.all(), weights()[1], out, mean, **variant)
    return (out,) if mean is None else (out, mean)


def check(op: str, function: Callable[..., Any], variant: dict[str, Any], n: int, seed: int = 0) -> dict[str, Any]:
    """Against the torch reference: streams and means bit by bit, gates and rows within bounds, in place bitwise."""
    a = acts(n, 1000 * seed + n)
    found = call(op, function, a, variant)
    report: dict[str, Any] = {}
    streams = streams_in_order(a)
    if op == "mhc_post":
        report["streams_differ"] = int((found[0] != streams).sum())
    elif op in ("mhc_seam", "mhc_pre"):
        if op == "mhc_seam":
            report["streams_differ"] = int((found[0] != streams).sum())
        seen = found[0] if op == "mhc_seam" else a.residual
        _, post, comb, rows = mhc.pre(seen, weights()[0])
        report["gates_off"] = max((found[-3] - post).abs().max().item(), (found[-2] - comb).abs().max().item())
        report["rows_differ"], report["rows_off_steps"] = _steps(found[-1], rows)
    else:
        if op != "mhc_post_head":
            mean = torch.empty_like(a.y)
            mhc.stream_mean(streams, mean)
            report["mean_differs"] = int((found[-1] != mean).sum())
        if op != "mhc_post_mean":
            report["rows_differ"], report["rows_off_steps"] = _steps(found[0], mhc.head(streams, weights()[1]), streams)
    report["finite"] = all(bool(torch.isfinite(t).all()) for t in found)
    if op != "mhc_pre":
        placed = call(op, function, a.copy(), variant, reuse=True)
        report["in_place_same"] = all(torch.equal(u, v) for u, v in zip(found, placed, strict=True))
    exact = not report.get("streams_differ") and not report.get("mean_differs") and report.get("in_place_same", True)
    roundings = 2 if op in ("mhc_seam", "mhc_pre") else 1  # a layer input is rounded before its norm and after
    near = report.get("gates_off", 0) < 1e-4 and report.get("rows_off_steps", 0) <= roundings
    report["ok"] = report["finite"] and exact and near
    return report


def _steps(found: Tensor, expected: Tensor, streams: Tensor | None = None) -> tuple[float, float]:
    """Share of elements that differ, and the largest difference in steps of bf16; where streams cancel, in as much of
    what was added up."""
    off = (found.float() - expected.float()).abs()
    step = torch.ldexp(torch.ones_like(off), torch.frexp(expected.float())[1] - 8)
    step = step.clamp(min=2**-14) if streams is None else torch.maximum(step, 2**-14 * streams.float().abs().sum(1))
    return (off > 0).float().mean().item(), (off / step).max().item()


def timed(
    op: str, function: Callable[..., Any], variant: dict[str, Any], n: int, reuse: bool, replays: int = 25
) -> dict[str, Any]:
    """Milliseconds a call: a graph of calls over rotating inputs larger than L2, between events."""
    moved = MOVED[op] * n * HIDDEN * 2
    inputs = rotating(op, n)
    calls = [partial(call, op, function, a, variant, reuse) for a in inputs]
    return {**timed_calls(calls, replays), "moved": moved}


def rotating(op: str, n: int) -> list[Acts]:
    """Inputs that together are larger than L2, as far as 64 of them are."""
    moved = MOVED[op] * n * HIDDEN * 2
    return [acts(n, seed) for seed in range(min(64, max(3, -(-L2_BYTES // moved))))]


def timed_calls(calls: Sequence[Callable[[], Any]], replays: int = 25) -> dict[str, Any]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for one in calls[:2]:
            one()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in calls:
            one()
    found = []
    for turn in range(replays + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        if turn >= 3:
            found.append((begin, end))
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) / len(calls) for a, b in found]
    return {"ms": round(statistics.median(times), 5), "min": round(min(times), 5), "max": round(max(times), 5)}


def copy_ceiling() -> dict[str, Any]:
    """An eager device copy of 4 GiB: bytes read and written a second."""
    source = torch.zeros(2**30, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(8):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return {
        "ms": round(statistics.median(times), 4),
        "GBps": round(2 * source.nbytes / statistics.median(times) / 1e6, 1),
    }


__all__ = ["MOVED", "acts", "call", "check", "copy_ceiling", "streams_in_order", "timed", "timed_calls", "weights"]
