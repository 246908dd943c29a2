"""Memory of captured graphs on the CPU: temporaries placed by liveness in a few shared segments.

The counterpart of CUDA's private graph pool. Graphs captured one after the other share the segments:
a later graph is placed over the temporaries of the earlier ones and around those of their tensors
that Python still holds. Capture the largest first and the others fit inside it.
"""

from __future__ import annotations

import heapq
import weakref
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

ALIGNMENT = 64
"""What torch's CPU allocator gives, so that kernels see the alignment they see in eager."""
POISON = 0xFF
"""Every float type reads a run of it as NaN, every signed integer as -1."""


@dataclass(frozen=True)
class Lifetime:
    """One block of memory, needed from operation `born` to operation `last`, both included."""

    nbytes: int
    born: int
    last: int


@dataclass(frozen=True)
class Place:
    """Bytes [start, end) of a segment."""

    segment: int
    start: int
    end: int


def plan(lifetimes: Sequence[Lifetime], sizes: Sequence[int], taken: Sequence[Place]) -> list[Place]:
    """A place for each block, best fit in order of birth (`lifetimes` must be in that order).

    Blocks whose lifetimes overlap get disjoint places, and none overlaps a `taken` one. What does not
    fit into the segments of the given sizes goes into one more, numbered len(sizes).
    """
    busy: list[list[tuple[int, int]]] = [[] for _ in range(len(sizes) + 1)]
    for place in taken:
        insort(busy[place.segment], (place.start, place.end))
    dying: list[tuple[int, int, int, int]] = []
    places = []
    for life in lifetimes:
        while dying and dying[0][0] < life.born:
            _, segment, start, end = heapq.heappop(dying)
            busy[segment].remove((start, end))
        length = -(-life.nbytes // ALIGNMENT) * ALIGNMENT
        place = _best_fit(busy, sizes, length)
        insort(busy[place.segment], (place.start, place.end))
        heapq.heappush(dying, (life.last, place.segment, place.start, place.end))
        places.append(place)
    return places


def _best_fit(busy: Sequence[Sequence[tuple[int, int]]], sizes: Sequence[int], length: int) -> Place:
    """The smallest gap that holds `length` bytes; the last segment has no end, so there is always one."""
    best: tuple[int, Place] | None = None
    for segment, blocks in enumerate(busy):
        free = 0
        limit = [(sizes[segment], 0)] if segment < len(sizes) else []
        for start, end in [*blocks, *limit]:
            gap = start - free
            if gap >= length and (best is None or gap < best[0]):
                best = gap, Place(segment, free, free + length)
            free = max(free, end)
        if segment == len(sizes) and best is None:
            best = length, Place(segment, free, free + length)
    assert best is not None
    return best[1]


def footprint(places: Sequence[Place]) -> int:
    """Bytes covered by at least one place."""
    total, segment, reached = 0, -1, 0
    for place in sorted(places, key=lambda p: (p.segment, p.start)):
        if place.segment != segment:
            segment, reached = place.segment, 0
        total += max(0, place.end - max(reached, place.start))
        reached = max(reached, place.end)
    return total


class Arena:
    """The segments, and which of their bytes belong to tensors that Python still holds."""

    def __init__(self) -> None:
        self.segments: list[Tensor] = []
        """uint8 each"""
        self._held: list[tuple[Place, weakref.ref[Any]]] = []

    @property
    def nbytes(self) -> int:
        return sum(segment.numel() for segment in self.segments)

    def place(self, lifetimes: Sequence[Lifetime]) -> list[Place]:
        """Plan around what is held, and grow by one segment if the plan needs it."""
        self._held = [(place, ref) for place, ref in self._held if ref() is not None]
        sizes = [segment.numel() for segment in self.segments]
        places = plan(lifetimes, sizes, [place for place, _ in self._held])
        extent = max((p.end for p in places if p.segment == len(sizes)), default=0)
        if extent:
            self.segments.append(torch.empty(extent, dtype=torch.uint8))
        return places

    def hold(self, place: Place, storage: weakref.ref[Any]) -> None:
        """Keep later graphs off these bytes for as long as the storage lives."""
        self._held.append((place, storage))

    def storage(self, place: Place, nbytes: int) -> torch.UntypedStorage:
        """A storage of its own over the first bytes of a place, indistinguishable from a private allocation.

        Code that asks whether a tensor owns its memory (`reuse_refusal`) must answer as in eager.
        """
        return from_dlpack(self.segments[place.segment][place.start : place.start + nbytes]).untyped_storage()

    def poison(self, places: Sequence[Place]) -> None:
        for place in places:
            self.segments[place.segment][place.start : place.end].fill_(POISON)
