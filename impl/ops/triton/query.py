"""Norm and RoPE of queries in Triton, in place: a program reads some heads of one token whole before it writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from impl.ops.places import check_outputs, dense_rows
from impl.ops.workspace import Workspace


@triton.jit
def turned(x, table, position, PAIRS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
    """fp32 [ROWS, D] whose last 2 * PAIRS values of each row are rotated as interleaved pairs.

    table: cosines and sines side by side, [positions, PAIRS, 2]; position: int64 scalar, or [ROWS, 1].
    """
    pair = tl.arange(0, D // 2)[None, :] - (D // 2 - PAIRS)
    turns = pair >= 0
    row = table + position * (2 * PAIRS) + 2 * pair
    cos, sin = tl.load(row, mask=turns, other=1.0), tl.load(row + 1, mask=turns, other=0.0)
    even, odd = tl.split(tl.reshape(x, (ROWS, D // 2, 2)))
    new_even = tl.where(turns, even * cos - odd * sin, even)
    new_odd = tl.where(turns, even * sin + odd * cos, odd)
    return tl.reshape(tl.join(new_even, new_odd), (ROWS, D))


@triton.jit
def _query_kernel(  # type: ignore[no-untyped-def]
    q, out, positions, table, eps, heads, q_stride, out_stride,
    PAIRS: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    place = head * D + tl.arange(0, D)[None, :]
    inside = head < heads
    x = tl.load(q + token * q_stride + place, mask=inside, other=0.0, eviction_policy=KEEP).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 1) / D + tl.load(eps))[:, None]
    x = turned(x, table, tl.load(positions + token), PAIRS, HEADS, D)
    tl.store(out + token * out_stride + place, x.to(out.dtype.element_ty), mask=inside)


def query_norm_rope(
    q: Tensor,
    positions: Tensor,
    table: Tensor,
    eps: Tensor,
    workspace: Workspace | None = None,
    out: Tensor | None = None,
    *,
    heads: int = 2,
    warps: int = 1,
    keep: str = "",
) -> Tensor:
    """As `impl.ops.query.query_norm_rope`. heads: how many one program takes; keep: an eviction policy of what is read;
    D is a power of two, and the heads of a token lie side by side. Raises ValueError where they do not, and for
    an `out` of another shape or type, or that is neither `q` nor apart from it."""
    target = q if out is None else out
    n, n_heads, width = q.shape
    dense = q.stride()[1:] == target.stride()[1:] == (width, 1) and dense_rows(target)
    if width & (width - 1) or not dense:
        raise ValueError(f"query heads must be dense and a power of two wide, got {tuple(q.shape)}, {q.stride()}")
    if target.shape != q.shape or target.dtype != q.dtype or target.device != q.device:
        raise ValueError(f"out must be {q.dtype} {tuple(q.shape)}, got {target.dtype} {tuple(target.shape)}")
    check_outputs({"out": target}, {"q": q, "positions": positions, "table": table}, {"out": "q"})
    positions = positions.contiguous()
    if n:
        heads = min(heads, triton.next_power_of_2(n_heads))
        _query_kernel[(n, triton.cdiv(n_heads, heads))](
            q, target, positions, torch.view_as_real(table), eps, n_heads, q.stride(0), target.stride(0),
            PAIRS=table.shape[1], HEADS=heads, D=width, KEEP=keep, num_warps=warps,
        )  # fmt: skip
    return target


OPERATIONS: Mapping[str, Callable[..., Any]] = {"query_norm_rope": query_norm_rope}
_POINTS = [{"heads": h, "warps": w} for h, w in ((2, 1), (4, 4), (4, 2), (1, 1), (2, 2), (8, 4))]
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "query_norm_rope": [*_POINTS, *({**point, "keep": "evict_first"} for point in (_POINTS[0], _POINTS[2]))],
}

__all__ = ["OPERATIONS", "VARIANTS", "query_norm_rope", "turned"]
