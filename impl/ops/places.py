"""Where tensors lie: whether two share memory, and what a kernel may write beside what it reads.

A tensor here is rows along its first dimension, each dense: `aux[:, i]` is one, and lies apart from `aux[:, j]`,
although the two span the same addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Place(NamedTuple):
    """Bytes: where the first row begins, what a row has, from row to row; and how many rows."""

    begin: int
    row: int
    step: int
    rows: int

    @property
    def end(self) -> int:
        return self.begin + (self.rows - 1) * self.step + self.row


def dense_rows(tensor: Tensor) -> bool:
    """Whether all of a row lies side by side, and no row lies over another."""
    width = 1
    for size, stride in zip(reversed(tensor.shape[1:]), reversed(tensor.stride()[1:]), strict=True):
        if size != 1 and stride != width:
            return False
        width *= size
    return tensor.shape[0] <= 1 or tensor.stride(0) >= width


def place_of(tensor: Tensor) -> Place:
    """Of a tensor with dense rows; one row where the rows lie behind each other."""
    size, count = tensor.element_size(), tensor.shape[0] if tensor.dim() else 1
    if tensor.is_contiguous() or count == 1:
        whole = tensor.numel() * size
        return Place(tensor.data_ptr(), whole, whole, 1)
    return Place(tensor.data_ptr(), tensor.numel() // max(count, 1) * size, tensor.stride(0) * size, count)


def overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors with dense rows share a byte; True too where their rows are spaced differently and nobody can
    tell by looking at the ends."""
    if not a.numel() or not b.numel():
        return False
    first, second = sorted((place_of(a), place_of(b)))
    if second.begin >= first.end:
        return False
    steps = {place.step for place in (first, second) if place.rows > 1}
    if len(steps) != 1:
        return True
    (step,) = steps
    apart = (second.begin - first.begin) % step
    return apart < first.row or step - apart < second.row


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same elements in the same places."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype


def check_outputs(
    outputs: Mapping[str, Tensor | None], inputs: Mapping[str, Tensor | None], may: Mapping[str, str] | None = None
) -> None:
    """Outputs lie apart from each other and from inputs; `may` names the input that an output may be, whole.

    Raises ValueError with one line that names both.
    """
    written = [(name, tensor) for name, tensor in outputs.items() if tensor is not None]
    for i, (name, out) in enumerate(written):
        for other, tensor in written[:i]:
            if overlap(out, tensor):
                raise ValueError(f"{name} and {other} must be two places: each is written")
        for other, read in inputs.items():
            if read is None or not overlap(out, read):
                continue
            allowed = (may or {}).get(name) == other
            if not allowed:
                raise ValueError(f"{name} must lie apart from {other}, which is read again after {name} is written")
            if not same(out, read):
                raise ValueError(f"{name} must be {other} itself or apart from it, got a part of its memory")


__all__ = ["check_outputs", "dense_rows", "overlap", "place_of", "same"]
