"""Rotary position embedding on interleaved pairs, plain and YaRN (deepseek_v4_dspark.md, section 3.1).

A pair (a, b) times cos + i sin as a complex number is (a cos - b sin, a sin + b cos): tables are complex64, that is
fp32 cosines and sines side by side, and a rotation is one multiplication.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from impl.dims import Dims
from impl.ops.workspace import Workspace


def frequencies(dims: Dims, ratio: int, width: int) -> Tensor:
    """fp64 [width / 2]: angle a position of each pair; plain for ratio 0, YaRN for a compressed layer."""
    exponent = -2.0 * torch.arange(width // 2, dtype=torch.float64) / width
    if ratio == 0:
        return dims.rope_theta**exponent
    theta = dims.compress_rope_theta
    plain = theta**exponent

    def pair_of(turns: float) -> float:
        """The (fractional) pair that makes `turns` rotations over the original length."""
        return width * math.log(dims.yarn_original_len / (2 * math.pi * turns)) / (2 * math.log(theta))

    low = max(math.floor(pair_of(dims.yarn_beta_fast)), 0)
    high = min(math.ceil(pair_of(dims.yarn_beta_slow)), width - 1)
    ramp = ((torch.arange(width // 2, dtype=torch.float64) - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain / dims.yarn_factor * ramp + plain * (1 - ramp)


class RopeTable:
    """cos + i sin of every position for the layers of one ratio."""

    def __init__(self, dims: Dims, ratio: int, device: torch.device | str = "cpu") -> None:
        self.rows = table(frequencies(dims, ratio, dims.rope_dim), dims.max_model_len, device)
        """complex64 [max_model_len, rope_dim / 2]"""
        self.index_rows = self.rows
        """complex64 [max_model_len, index_rope_dim / 2]: what indexer queries and keys turn by"""
        if dims.index_rope_dim != dims.rope_dim:
            self.index_rows = table(frequencies(dims, ratio, dims.index_rope_dim), dims.max_model_len, device)


def table(turn: Tensor, positions: int, device: torch.device | str) -> Tensor:
    """complex64 [positions, pairs] of fp64 angles a position `turn` [pairs]; one rounding, to fp32, at the end."""
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * turn
    return torch.complex(angles.cos().float(), angles.sin().float()).to(device)


def table_rows(table: Tensor, positions: Tensor, out: Tensor) -> Tensor:
    """Rows of a table at int64 `positions` [N], into `out` complex64 [N, pairs]."""
    return torch.index_select(table, 0, positions, out=out)


def rotate_(x: Tensor, rows: Tensor) -> Tensor:
    """Rotate the last `2 * pairs` values of each vector by its token's table row, in place.

    x: fp32 [N, D] or [N, heads, D]; D and the strides of its other dims are even. rows: complex64 [N, pairs].
    """
    pairs = rows.shape[-1]
    turned = torch.view_as_complex(x[..., x.shape[-1] - 2 * pairs :].unflatten(-1, (pairs, 2)))
    turned.mul_(rows if x.dim() == 2 else rows.unsqueeze(1))
    return x


def conjugate_rows(rows: Tensor, workspace: Workspace) -> Tensor:
    """The inverse rotation's table rows, in the workspace's present scope."""
    inverse = workspace.empty(rows.shape, rows.dtype)
    return torch.conj_physical(rows, out=inverse)
