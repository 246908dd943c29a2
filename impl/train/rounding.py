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


EXACT, SERVED = Exact(), Served()


class Bf16(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return round_bf16(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


class PackedState(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rope_dim: int, group: int) -> Tensor:
        nope, rope = round_bf16(x).split((x.shape[-1] - rope_dim, rope_dim), dim=-1)
        return torch.cat((e4m3(nope.unflatten(-1, (-1, group))).flatten(-2), rope), dim=-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0], None, None


def round_bf16(x: Tensor) -> Tensor:
    """The nearest bf16 value, ties to even, as fp32.

    A compiler may drop a cast there and back, as fp32 holds more; integer operations on the bits it must keep.
    """
    if not torch.compiler.is_compiling():
        return x.bfloat16().float()
    bits = x.view(torch.int32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).view(torch.float32)


def e4m3(groups: Tensor) -> Tensor:
    """Nearest e4m3 value of each element under the group's scale 2^e, e = ceil(log2(max(absmax, 1e-4) / 448)).

    An e4m3 number has three bits behind its leading one, and steps of 2^-9 below 2^-6. Powers of two are made and read
    as exponent bits, so that every operation but the rounding is exact, on any device and in any compiler's hands.
    """
    absmax = groups.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_ABSMAX)
    # 448 is 1.75 * 2^8: e is absmax's own exponent less 8, and one more where its mantissa is above 1.75.
    exponent = ((absmax.view(torch.int32) + 0x1FFFFF) >> 23) - 8
    codes = (groups * power_of_two(254 - exponent)).clamp(-E4M3_MAX, E4M3_MAX)
    step = ((codes.view(torch.int32) >> 23) & 0xFF).clamp_min(127 - 6) - 3
    return torch.round(codes * power_of_two(254 - step)) * power_of_two(step) * power_of_two(exponent)


def power_of_two(biased: Tensor) -> Tensor:
    """2^(biased - 127) as fp32 of int32 exponents 1 to 254."""
    return (biased << 23).view(torch.float32)
