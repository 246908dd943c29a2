"""Matrices that read the same rows, as one: fewer and larger products, and no second copy of the weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from impl.ops.linear import lines


def stack(weights: Mapping[str, Tensor], parts: list[tuple[str, int]]) -> Tensor:
    """fp32 [rows, K] of matrices [..., K] under each other, each padded with zero rows to the given number.

    Zero rows at the end make whole lines of what a product gives. A dictionary's entries become views of the result, so
    that nothing is held twice.
    """
    rows = []
    for name, count in parts:
        part = weights[name].flatten(0, -2).float()
        rows += [part, part.new_zeros(count - part.shape[0], part.shape[1])]
    total = sum(count for _, count in parts)
    rows.append(rows[0].new_zeros(lines(total) - total, rows[0].shape[1]))
    stacked = torch.cat(rows)
    first = 0
    for name, count in parts:
        shape = weights[name].shape
        replace(weights, name, stacked[first : first + shape[:-1].numel()].view(shape))
        first += count
    return stacked


def replace(weights: Mapping[str, Tensor], name: str, view: Tensor) -> None:
    """Let a dictionary's entry be `view`, which holds the same values; other mappings stay as they are."""
    if isinstance(weights, dict):
        weights[name] = view
