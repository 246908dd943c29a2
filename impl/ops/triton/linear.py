"""Matrix products of few rows in Triton: one launch a product, and a row's bits whatever rows stand beside it.

A program makes 16 rows by some columns and goes along K in one order, so a row is summed alike alone and in any batch.
The tensor cores multiply bf16: an fp32 operand is the sum of up to three bf16 values of 8 bits each, and the products
of the parts are exact in fp32. Of what the model rounds to bf16 the first part is all there is. Parts have sums of
their own, from the smallest up: short chains, and no small part is lost to a large sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

INTERPRETED = triton.knobs.runtime.interpret
OPERAND = tl.float32 if INTERPRETED else tl.bfloat16
"""Of the products; both hold a part exactly. The interpreter multiplies bf16's bits."""
ROWS = 16
"""Of a tile: the fewest that tensor cores take."""


@triton.jit
def parts_of(x, OPERAND: tl.constexpr):  # type: ignore[no-untyped-def]
    """x as the sum of three bf16 values, the largest first."""
    first = x.to(tl.bfloat16).to(tl.float32)
    second = (x - first).to(tl.bfloat16).to(tl.float32)
    third = x - first - second
    return first.to(OPERAND), second.to(OPERAND), third.to(tl.bfloat16).to(OPERAND)


@triton.jit
def _linear_kernel(  # type: ignore[no-untyped-def]
    x, weight, out, n, x_row_stride, x_group_stride, w_row_stride, w_group_stride, out_row_stride, out_group_stride,
    COLUMNS: tl.constexpr, K: tl.constexpr, X_PARTS: tl.constexpr, W_PARTS: tl.constexpr, WIDTH: tl.constexpr,
    DEPTH: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64) * 16 + tl.arange(0, 16)
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    group = tl.program_id(2).to(tl.int64)
    rows = x + group * x_group_stride + row[:, None] * x_row_stride
    columns = weight + group * w_group_stride + column[None, :].to(tl.int64) * w_row_stride
    here, there = (row < n)[:, None], (column < COLUMNS)[None, :]
    large = tl.zeros((16, WIDTH), tl.float32)
    middle = tl.zeros((16, WIDTH), tl.float32)
    small = tl.zeros((16, WIDTH), tl.float32)
    for start in range(0, K, DEPTH):
        k = start + tl.arange(0, DEPTH)
        if K % DEPTH == 0:  # a mask along K would part the reads
            a = tl.load(rows + k[None, :], mask=here, other=0.0).to(tl.float32)
            b = tl.load(columns + k[:, None], mask=there, other=0.0).to(tl.float32)
        else:
            inside = k < K
            a = tl.load(rows + k[None, :], mask=here & inside[None, :], other=0.0).to(tl.float32)
            b = tl.load(columns + k[:, None], mask=there & inside[:, None], other=0.0).to(tl.float32)
        if X_PARTS == 1 and W_PARTS == 1:
            large = tl.dot(a.to(tl.bfloat16).to(OPERAND), b.to(tl.bfloat16).to(OPERAND), large)
        elif X_PARTS == 1:
            b0, b1, b2 = parts_of(b, OPERAND)
            whole = a.to(tl.bfloat16).to(OPERAND)
            large, middle, small = tl.dot(whole, b0, large), tl.dot(whole, b1, middle), tl.dot(whole, b2, small)
        elif W_PARTS == 1:
            a0, a1, a2 = parts_of(a, OPERAND)
            whole = b.to(tl.bfloat16).to(OPERAND)
            large, middle, small = tl.dot(a0, whole, large), tl.dot(a1, whole, middle), tl.dot(a2, whole, small)
        else:
            a0, a1, a2 = parts_of(a, OPERAND)
            b0, b1, b2 = parts_of(b, OPERAND)
            large = tl.dot(a0, b0, large)
            middle = tl.dot(a1, b0, tl.dot(a0, b1, middle))
            small = tl.dot(a2, b0, tl.dot(a1, b1, tl.dot(a0, b2, small)))
    place = out + group * out_group_stride + row[:, None] * out_row_stride + column[None, :]
    tl.store(place, small + middle + large, mask=here & there)


def linear(
    x: Tensor, weight: Tensor, out: Tensor, *, whole: bool, width: int = 32, depth: int = 128, warps: int = 4,
    stages: int = 2,
) -> Tensor:  # fmt: skip
    """`x @ weight.T` for each group, in `out`.

    x: bf16 or fp32 [N, G, K]. weight: fp32 [G, O, K]. out: fp32 [N, G, O]. The last dimensions are dense, the others
    may be strided. whole: every weight is a bf16 value, and is not taken apart. The order of a row's sum depends on K
    and `depth` only. Raises ValueError for shapes and types that do not fit.
    """
    n, groups, k = x.shape
    columns = weight.shape[1]
    if weight.shape != (groups, columns, k) or out.shape != (n, groups, columns):
        raise ValueError(f"x {tuple(x.shape)}, weight {tuple(weight.shape)} and out {tuple(out.shape)} do not fit")
    if x.dtype not in (torch.bfloat16, torch.float32) or (weight.dtype, out.dtype) != (torch.float32, torch.float32):
        raise ValueError(f"x must be bf16 or fp32, weight and out fp32, got {x.dtype}, {weight.dtype}, {out.dtype}")
    if any(t.shape[2] > 1 and t.stride(2) != 1 for t in (x, weight, out)):
        raise ValueError("the last dimensions of x, weight and out must be dense")
    if n:
        depth = max(16, min(depth, k & -k))
        _linear_kernel[(triton.cdiv(columns, width), triton.cdiv(n, ROWS), groups)](
            x, weight, out, n, *x.stride()[:2], weight.stride(1), weight.stride(0), *out.stride()[:2],
            COLUMNS=columns, K=k, X_PARTS=1 if x.dtype == torch.bfloat16 else 3, W_PARTS=1 if whole else 3,
            WIDTH=width, DEPTH=depth, OPERAND=OPERAND, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return out


OPERATIONS: Mapping[str, Callable[..., Any]] = {}
"""None by dispatch: `impl.ops.linear` takes the kernel on CUDA."""

__all__ = ["OPERAND", "OPERATIONS", "linear", "parts_of"]
