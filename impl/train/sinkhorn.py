"""The mixing matrices of the residual streams: Sinkhorn scaling with its gradient (section 2.1)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor


def found_kernel() -> Callable[[Tensor, int, float], Tensor] | None:
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return None
    from impl.train.sinkhorn_triton import scaled_softmax

    return scaled_softmax


KERNEL = found_kernel()


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """Alternate row and column scaling of softmax(`logits`) `[N, hc, hc]`, ending on the columns.

    On a GPU one kernel does all iterations; elsewhere, and where Triton is missing, they are torch operations.
    """
    if KERNEL is not None and logits.is_cuda:
        return KERNEL(logits, iters, eps)
    # The token dimension last: sums over four then vectorise across tokens.
    comb = torch.softmax(logits.permute(1, 2, 0).contiguous(), dim=1) + eps
    scaled: Tensor = Scaling.apply(comb, iters, eps)
    return scaled.permute(2, 0, 1).contiguous()


class Scaling(torch.autograd.Function):
    """The Sinkhorn iterations on `[source, target, N]`, columns first, with a gradient written out.

    For y = x / d, d = sum(x) + eps, the gradient is dx = (dy - sum(dy y)) / d.
    """

    @staticmethod
    def forward(ctx: Any, comb: Tensor, iters: int, eps: float) -> Tensor:
        steps: list[Tensor] = []
        for step in range(2 * iters - 1):
            denominator = comb.sum(step % 2, keepdim=True) + eps
            comb = comb / denominator
            steps += (comb, denominator)
        ctx.save_for_backward(*steps)
        return comb

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad, saved = grads[0], ctx.saved_tensors
        for step in range(len(saved) // 2 - 1, -1, -1):
            comb, denominator = saved[2 * step : 2 * step + 2]
            grad = (grad - (grad * comb).sum(step % 2, keepdim=True)) / denominator
        return grad, None, None
