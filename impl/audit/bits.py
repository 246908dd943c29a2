"""Equality of tensors by their bits, and garbage to fill dead ones with."""

from __future__ import annotations

import torch
from torch import Tensor

GARBAGE = 0xFF
"""A byte that makes every float a NaN and every index -1 or out of bounds."""


def same(a: Tensor, b: Tensor) -> bool:
    """Equal shapes, types and bytes, at any strides; NaNs compare by their bits."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(as_bytes(a), as_bytes(b))


def as_bytes(tensor: Tensor) -> Tensor:
    """A copy's bytes, uint8 [n]."""
    plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8)


def poison_(tensor: Tensor) -> None:
    """Fill a tensor that nothing may read any more."""
    tensor.copy_(torch.full((tensor.numel() * tensor.element_size(),), GARBAGE, dtype=torch.uint8)
                 .view(tensor.dtype).view(tensor.shape))  # fmt: skip
