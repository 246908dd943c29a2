"""Token tiles: the ranges of rows that a loop computes one after the other."""

from __future__ import annotations

from collections.abc import Iterator

import torch

_FAKE = torch._C._TorchDispatchModeKey.FAKE


def tiles(n: int, size: int) -> Iterator[slice]:
    """Slices of `size` rows that cover 0 to n - 1 in order; the last one is shorter where size does not divide n.

    Under FakeTensorMode nothing is computed, and all tiles of one length allocate the same: there, one slice of each
    length is all that comes, so that the memory of a step of 8,192 rows is found in seconds. Raises ValueError for a
    size below 1.
    """
    if size < 1:
        raise ValueError(f"a tile needs at least 1 row, got {size}")
    whole = n - n % size
    # A compiler breaks its graph at the question for the mode, and it has no use for the answer.
    fake = not torch.compiler.is_compiling() and torch._C._get_dispatch_mode(_FAKE) is not None
    last = min(size, whole) if fake else whole
    for start in range(0, last, size):
        yield slice(start, start + size)
    if whole < n:
        yield slice(whole, n)
