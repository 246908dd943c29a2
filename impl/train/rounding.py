"""Rounding of activations and cached states, with gradients passed straight through (sections 2.1, 3.6)."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

E4M3_MAX = 448.0
SMALLEST_ABSMAX = 1e-4


class Rounding(Protocol):
    def bf16(self, x: Tensor) -> Tensor: ...
    def state(self, x: Tensor, rope_dim: int, group: int) -> Tensor: ...
    def index(self, x: Tensor) -> Tensor: ...


class Exact:
    """No rounding at all: fp32 everywhere."""

    def bf16(self, x: Tensor) -> Tensor:
        return x

    def state(self, x: Tensor, rope_dim: int, group: int) -> Tensor:
        return x

    def index(self, x: Tensor) -> Tensor:
        return x


class Served:
    """Rounding as the serving engine stores: all results are fp32 tensors that hold rounded values."""

    def bf16(self, x: Tensor) -> Tensor:
        out: Tensor = Bf16.apply(x)
        return out

    def state(self, x: Tensor, rope_dim: int, group: int) -> Tensor:
        """`[..., D]`: e4m3 with one scale a `group` for all but the last `rope_dim` values, those bf16."""
        out: Tensor = PackedState.apply(x, rope_dim, group)
        return out

    def index(self, x: Tensor) -> Tensor:
        """`[..., d]`: e4m3 with one scale for the whole row."""
        out: Tensor = PackedState.apply(x, 0, x.shape[-1])
        return out


class Bf16(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.bfloat16().float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


class PackedState(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rope_dim: int, group: int) -> Tensor:
        rounded = x.bfloat16().float()
        nope = rounded[..., : x.shape[-1] - rope_dim]
        nope.copy_(e4m3(nope.unflatten(-1, (-1, group))).flatten(-2))
        return rounded

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None, None


def e4m3(groups: Tensor) -> Tensor:
    """Nearest e4m3 value of each element under the group's scale 2^e, e = ceil(log2(max(absmax, 1e-4) / 448))."""
    absmax = groups.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_ABSMAX)
    mantissa, exponent = torch.frexp(absmax / E4M3_MAX)
    scale = torch.ldexp(torch.ones_like(absmax), exponent - (mantissa == 0.5).int())
    codes = (groups / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.float() * scale
