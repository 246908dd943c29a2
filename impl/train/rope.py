"""Rotary positions: tables of cosines and sines, and the rotation of interleaved pairs (section 3.1)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from impl.dims import Dims


def rope_table(
    length: int, stride: int, compressed: bool, rope_dim: int, dims: Dims, device: torch.device
) -> tuple[Tensor, Tensor]:
    """fp32 cos and sin `[length, rope_dim // 2]` of positions 0, stride, 2 stride, ..."""
    rounded = 1 << (length - 1).bit_length()
    cos, sin = stored_rope_table(rounded, stride, compressed, rope_dim, dims, device)
    return cos[:length], sin[:length]


@lru_cache(maxsize=256)
def stored_rope_table(
    length: int, stride: int, compressed: bool, rope_dim: int, dims: Dims, device: torch.device
) -> tuple[Tensor, Tensor]:
    """`rope_table`, kept on the device: a copy from the host at every call would make the host wait for it."""
    angles = (
        torch.arange(length, dtype=torch.float64)[:, None] * stride * inverse_frequencies(rope_dim, compressed, dims)
    )
    return angles.cos().float().to(device), angles.sin().float().to(device)


def inverse_frequencies(rope_dim: int, compressed: bool, dims: Dims) -> Tensor:
    """Angle a position, fp64: plain in window-only layers, YaRN with the compress theta throughout compressed ones."""
    theta = dims.compress_rope_theta if compressed else dims.rope_theta
    plain = theta ** (-2 * torch.arange(rope_dim // 2, dtype=torch.float64) / rope_dim)
    if not compressed:
        return plain
    low = max(math.floor(yarn_edge(dims.yarn_beta_fast, rope_dim, theta, dims)), 0)
    high = min(math.ceil(yarn_edge(dims.yarn_beta_slow, rope_dim, theta, dims)), rope_dim - 1)
    ramp = ((torch.arange(rope_dim // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / dims.yarn_factor * ramp + plain * (1 - ramp)


def yarn_edge(rotations: float, rope_dim: int, theta: float, dims: Dims) -> float:
    """The frequency index that turns `rotations` times over the original context."""
    return rope_dim * math.log(dims.yarn_original_len / (2 * math.pi * rotations)) / (2 * math.log(theta))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last `2 * cos.shape[-1]` values of `x` as interleaved pairs; `cos`, `sin` broadcast over pairs."""
    width = 2 * cos.shape[-1]
    keep, pairs = x[..., :-width], x[..., -width:].unflatten(-1, (-1, 2))
    a, b = pairs.unbind(-1)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((keep, turned), dim=-1)
