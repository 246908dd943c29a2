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
ROUNDING, GATE = 2**-8, 2**-16
"""Of bf16, as a share of the value; of a PRE gate that comes from products with 16 significant bits."""
GATES_BOUND, ERROR_RATIO = 2**-14, 1.01
"""Of POST gates and mixing matrices, absolute; of a kernel's error to the reference's own, root mean squares."""
EXACT_TILE = 512
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
    """Streams and means bit by bit, gates and rows within bounds of fp64, in place bitwise."""
    a = acts(n, 1000 * seed + n)
    found = call(op, function, a, variant)
    report: dict[str, Any] = {}
    streams = streams_in_order(a)
    seam, head = weights()
    if op in ("mhc_post", "mhc_seam"):
        report["streams_differ"] = int((found[0] != streams).sum())
    if op in ("mhc_seam", "mhc_pre"):
        seen = found[0] if op == "mhc_seam" else a.residual
        report |= against_exact(seen, seam, found[-1], mhc.pre(seen, seam).layer_input, (found[-3], found[-2]))
    if op in ("mhc_post_mean", "mhc_post_mean_head"):
        mean = torch.empty_like(a.y)
        mhc.stream_mean(streams, mean)
        report["mean_differs"] = int((found[-1] != mean).sum())
    if op in ("mhc_post_head", "mhc_post_mean_head"):
        report |= against_exact(streams, head, found[0], mhc.head(streams, head))
    report["finite"] = all(bool(torch.isfinite(t).all()) for t in found)
    if op != "mhc_pre":
        placed = call(op, function, a.copy(), variant, reuse=True)
        report["in_place_same"] = all(torch.equal(u, v) for u, v in zip(found, placed, strict=True))
    exact = not report.get("streams_differ") and not report.get("mean_differs") and report.get("in_place_same", True)
    report["ok"] = report["finite"] and exact and near(report)
    return report


def near(report: dict[str, Any]) -> bool:
    """Whether what `against_exact` found is as good as fp32 arithmetic with the roundings the operation has."""
    within = report.get("rows_of_bound", 0) <= 1 and report.get("gates_off", 0) <= GATES_BOUND
    return within and report.get("rows_error_ratio", 0) <= ERROR_RATIO


def against_exact(
    streams: Tensor, weights: mhc.SeamWeights | mhc.HeadWeights, rows: Tensor, reference: Tensor,
    gates: tuple[Tensor, Tensor] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Layer inputs (SeamWeights) or heads against fp64, from bf16 streams [N, hc, H]; rows, reference: bf16 [N, H].

    rows_of_bound: the largest error as a share of what the operation's roundings, each of half a step of bf16 of what
    it rounds, and PRE gates off by GATE may come to: where streams cancel, a small value is off by as much as a large
    one. rows_error_ratio: the error's root mean square over the reference's own. rows_differ: the share of elements
    that are not the reference's. gates_off: the largest difference of POST gates and matrices.
    """
    seam = isinstance(weights, mhc.SeamWeights)
    worst = torch.zeros((), dtype=torch.float64, device=rows.device)
    errors, off = [], [worst]
    for start in range(0, len(rows), EXACT_TILE):
        part = slice(start, start + EXACT_TILE)
        z = streams[part].double()
        product = z.flatten(1) @ weights.fn.double().T
        logits = product * torch.rsqrt(z.flatten(1).square().mean(1, keepdim=True) + weights.rms_eps)
        hc = z.shape[1]
        pre = torch.sigmoid(logits[:, :hc] * weights.scale[0] + weights.base[:hc]) + weights.hc_eps
        wanted = (pre[..., None] * z).sum(1)
        spread = GATE * z.abs().sum(1)
        bound = ROUNDING * wanted.abs() + spread
        if isinstance(weights, mhc.SeamWeights):
            turn = weights.norm * torch.rsqrt(wanted.square().mean(1, keepdim=True) + weights.rms_eps)
            # The mean square is of what was rounded: off by as many roundings as there are columns, that mostly cancel.
            turn_off = 4 * ROUNDING / z.shape[2] ** 0.5
            wanted, bound = wanted * turn, (bound + turn_off * wanted.abs()) * turn.abs()
            bound = bound + ROUNDING * (wanted.abs() + bound)
        if seam and gates is not None:
            off += [(gate[part] - true).abs().max() for gate, true in zip(gates, _gates(logits, weights), strict=True)]
        worst = torch.maximum(worst, ((rows[part] - wanted).abs() / (bound + 1e-30)).max())
        errors.append([(found[part] - wanted).square().sum() for found in (rows, reference)])
    mine, own = (torch.stack(column).sum().sqrt().item() for column in zip(*errors, strict=True))
    report = {
        "rows_differ": (rows != reference).float().mean().item(),
        "rows_of_bound": worst.item(),
        "rows_error_ratio": mine / max(own, 1e-30),
    }
    return report if gates is None else {"gates_off": max(o.item() for o in off), **report}


def _gates(logits: Tensor, weights: Any) -> tuple[Tensor, Tensor]:
    """POST gates and mixing matrices of fp64 logits."""
    hc = STREAMS
    scale, base = weights.scale.double(), weights.base.double()
    post = weights.post_mult * torch.sigmoid(logits[:, hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    mixing = (logits[:, 2 * hc :] * scale[2] + base[2 * hc :]).view(-1, hc, hc)
    return post, mhc.sinkhorn(mixing, weights.sinkhorn_iters, weights.hc_eps)


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


__all__ = [
    "MOVED",
    "acts",
    "against_exact",
    "call",
    "check",
    "copy_ceiling",
    "near",
    "streams_in_order",
    "timed",
    "timed_calls",
    "weights",
]
