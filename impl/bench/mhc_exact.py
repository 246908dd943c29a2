"""mHC against exact arithmetic: streams and means to the bit, gates and rows within their roundings of fp64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from impl.bench.case import Inputs
from impl.bench.mhc_cases import computed
from impl.ops import mhc

ROUNDING, GATE = 2**-8, 2**-16
"""Of bf16, as a share of the value; of a PRE gate that comes from products with 16 significant bits."""
GATES_BOUND, ERROR_RATIO = 2**-14, 1.01
"""Of POST gates and mixing matrices, absolute; of a kernel's error to the reference's own, root mean squares."""
EXACT_TILE = 512


def check(op: str, function: Callable[..., Any], i: Inputs) -> dict[str, Any]:
    """One operation as `function` computes it, and whether that is right (`ok`): to the bit where it can
    be, near elsewhere, and the same in place. `i` is spent."""
    seam, head = i["weights"], i["head"]
    found = computed(op, function, i)
    told: dict[str, Any] = {}
    streams = i["residual"] if op == "mhc_pre" else streams_in_order(i)
    if op in ("mhc_post", "mhc_seam"):
        told["streams_differ"] = int((found[0] != streams).sum())
    if op in ("mhc_seam", "mhc_pre"):
        seen = found[0] if op == "mhc_seam" else streams
        told |= against_exact(seen, seam, found[-1], mhc.pre(seen, seam).layer_input, (found[-3], found[-2]))
    if op in ("mhc_post_mean", "mhc_post_mean_head"):
        mean = torch.empty_like(i["y"])
        mhc.stream_mean(streams, mean)
        told["mean_differs"] = int((found[-1] != mean).sum())
    if op in ("mhc_post_head", "mhc_post_mean_head"):
        told |= against_exact(streams, head, found[0], mhc.head(streams, head))
    told["finite"] = all(bool(torch.isfinite(t).all()) for t in found)
    if op != "mhc_pre":
        placed = computed(op, function, i, in_place=True)
        told["in_place_same"] = all(map(torch.equal, found, placed))
    exact = not told.get("streams_differ") and not told.get("mean_differs") and told.get("in_place_same", True)
    told["ok"] = told["finite"] and exact and near(told)
    return told


def streams_in_order(i: Inputs) -> Tensor:
    """POST in vLLM's rounding order, each fma by one rounding of fp64."""
    residual, y, comb = i["residual"].double(), i["y"].double(), i["comb"].double()
    new = torch.empty_like(i["residual"])
    for j in range(new.shape[1]):
        v = (comb[:, 0, j, None] * residual[:, 0]).float()
        v = (i["post"][:, j, None].double() * y + v).float()
        for k in range(1, new.shape[1]):
            v = (comb[:, k, j, None] * residual[:, k] + v).float()
        new[:, j] = v.bfloat16()
    return new


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
    """POST gates and mixing matrices of fp64 logits [n, hc * (hc + 2)]."""
    hc = math.isqrt(logits.shape[1] + 1) - 1
    scale, base = weights.scale.double(), weights.base.double()
    post = weights.post_mult * torch.sigmoid(logits[:, hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    mixing = (logits[:, 2 * hc :] * scale[2] + base[2 * hc :]).view(-1, hc, hc)
    return post, mhc.sinkhorn(mixing, weights.sinkhorn_iters, weights.hc_eps)


__all__ = ["against_exact", "check", "near", "streams_in_order"]
