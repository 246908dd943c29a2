"""RMSNorm in fp32 (deepseek_v4_dspark.md, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.ops.workspace import Workspace


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of [..., D] with fp32 math and one rounding to the type of `x`; a new tensor."""
    wide = x.float()
    inverse = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * inverse).mul_(weight).to(x.dtype)


def rms_norm_(x: Tensor, eps: Tensor, workspace: Workspace, weight: Tensor | None = None) -> Tensor:
    """Divide each vector along the last dim by sqrt(mean of squares + eps), in place, then times `weight` if given.

    x: fp32 [..., D], may be strided. eps: fp32 [1]. weight: fp32 [D].
    """
    with workspace.scope():
        inverse = workspace.empty(x.shape[:-1], torch.float32)
        torch.linalg.vector_norm(x, dim=-1, out=inverse)
        torch.addcmul(eps, inverse, inverse, value=1 / x.shape[-1], out=inverse)
        x.mul_(inverse.rsqrt_().unsqueeze(-1))
    return x if weight is None else x.mul_(weight)
