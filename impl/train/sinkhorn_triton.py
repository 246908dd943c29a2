"""Sinkhorn scaling on a GPU: all iterations in one kernel forward and one backward, a few tokens a program.

The forward keeps the sums it divided by; the backward multiplies them back in, so that no step's matrix is stored.
It differs from the operations of `sinkhorn` by fp32 rounding.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 32
"""Tokens a program."""


@triton.jit
def forward_kernel(  # type: ignore[no-untyped-def]  # Triton reads annotations: plain arguments must have none
    logits, out, sums, n, eps, iters: tl.constexpr, hc: tl.constexpr, tokens: tl.constexpr
):
    token = tl.program_id(0) * tokens + tl.arange(0, tokens)
    real = token < n
    at = token[:, None, None] * (hc * hc) + tl.arange(0, hc)[None, :, None] * hc + tl.arange(0, hc)[None, None, :]
    x = tl.load(logits + at, mask=real[:, None, None], other=0.0)
    x = tl.exp(x - tl.max(x, 2)[:, :, None])
    x = x / tl.sum(x, 2)[:, :, None] + eps
    at_sum = token[:, None] * hc + tl.arange(0, hc)[None, :]
    total = tl.sum(x, 1) + eps
    tl.store(sums + at_sum, total, mask=real[:, None])
    x = x / total[:, None, :]
    for i in range(iters - 1):
        total = tl.sum(x, 2) + eps
        tl.store(sums + (2 * i + 1) * n * hc + at_sum, total, mask=real[:, None])
        x = x / total[:, :, None]
        total = tl.sum(x, 1) + eps
        tl.store(sums + (2 * i + 2) * n * hc + at_sum, total, mask=real[:, None])
        x = x / total[:, None, :]
    tl.store(out + at, x, mask=real[:, None, None])


@triton.jit
def backward_kernel(  # type: ignore[no-untyped-def]
    logits, out, sums, grad, grad_logits, n, eps, iters: tl.constexpr, hc: tl.constexpr, tokens: tl.constexpr
):
    token = tl.program_id(0) * tokens + tl.arange(0, tokens)
    real = token < n
    at = token[:, None, None] * (hc * hc) + tl.arange(0, hc)[None, :, None] * hc + tl.arange(0, hc)[None, None, :]
    at_sum = token[:, None] * hc + tl.arange(0, hc)[None, :]
    y = tl.load(out + at, mask=real[:, None, None], other=0.0)
    g = tl.load(grad + at, mask=real[:, None, None], other=0.0)
    for step in range(iters - 1):
        i = iters - 2 - step
        total = tl.load(sums + (2 * i + 2) * n * hc + at_sum, mask=real[:, None], other=1.0)
        g = (g - tl.sum(g * y, 1)[:, None, :]) / total[:, None, :]
        y = y * total[:, None, :]
        total = tl.load(sums + (2 * i + 1) * n * hc + at_sum, mask=real[:, None], other=1.0)
        g = (g - tl.sum(g * y, 2)[:, :, None]) / total[:, :, None]
        y = y * total[:, :, None]
    total = tl.load(sums + at_sum, mask=real[:, None], other=1.0)
    g = (g - tl.sum(g * y, 1)[:, None, :]) / total[:, None, :]
    x = tl.load(logits + at, mask=real[:, None, None], other=0.0)
    x = tl.exp(x - tl.max(x, 2)[:, :, None])
    x = x / tl.sum(x, 2)[:, :, None]
    tl.store(grad_logits + at, x * (g - tl.sum(g * x, 2)[:, :, None]), mask=real[:, None, None])


@torch.library.custom_op("impl_train::scaled_softmax_parts", mutates_args=())
def parts(logits: Tensor, iters: int, eps: float) -> tuple[Tensor, Tensor]:
    """The scaled matrices `[N, hc, hc]` of fp32 logits `[N, hc, hc]`, and what each step divided by."""
    logits = logits.contiguous()
    n, hc, _ = logits.shape
    out = torch.empty_like(logits)
    sums = torch.empty(2 * iters - 1, n, hc, dtype=logits.dtype, device=logits.device)
    grid = (triton.cdiv(n, TOKENS),)
    forward_kernel[grid](logits, out, sums, n, eps, iters=iters, hc=hc, tokens=TOKENS)
    return out, sums


@torch.library.custom_op("impl_train::scaled_softmax_grad", mutates_args=())
def parts_grad(logits: Tensor, out: Tensor, sums: Tensor, grad: Tensor, iters: int, eps: float) -> Tensor:
    logits, grad = logits.contiguous(), grad.contiguous()
    n, hc, _ = logits.shape
    result = torch.empty_like(logits)
    grid = (triton.cdiv(n, TOKENS),)
    backward_kernel[grid](logits, out, sums, grad, result, n, eps, iters=iters, hc=hc, tokens=TOKENS)
    return result


@parts.register_fake
def _(logits: Tensor, iters: int, eps: float) -> tuple[Tensor, Tensor]:
    n, hc, _ = logits.shape
    return logits.new_empty(n, hc, hc), logits.new_empty(2 * iters - 1, n, hc)


@parts_grad.register_fake
def _(logits: Tensor, out: Tensor, sums: Tensor, grad: Tensor, iters: int, eps: float) -> Tensor:
    return logits.new_empty(logits.shape)


def keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, ctx.iters, ctx.eps = inputs
    ctx.save_for_backward(logits, *output)


def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
    return parts_grad(*ctx.saved_tensors, grad, ctx.iters, ctx.eps), None, None


parts.register_autograd(backward, setup_context=keep)


def scaled_softmax(logits: Tensor, iters: int, eps: float) -> Tensor:
    """`sinkhorn` of logits `[N, hc, hc]`, hc a power of two."""
    out: Tensor = parts(logits, iters, eps)[0]
    return out
