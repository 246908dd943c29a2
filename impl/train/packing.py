"""Documents as weighted text, and rows of tokens that hold whole documents (torch-free).

A row starts with bos and a whole document, so the served case (one prompt alone from position 0) is in every row;
further whole documents follow while they fit, each `bos text eos`. Attention may look back at earlier documents.
What is left is padding without loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from impl.tokenizer import BOS, EOS, PAD, encode

COARSE, COUNTED, TALLY = "coarse", "counted", "tally"
"""Batches of a step by name: lookups among prose, and tallies read without C4A entries and with them."""
WITHOUT_C4A = frozenset((COARSE, COUNTED))
"""Batches of a step that are read with all C4A entries hidden: what lies far back is then in C128A's or nowhere."""

Segments = list[tuple[str, float]]
"""A document's text in pieces, each with the loss weight of its characters."""

ANSWER, GIVEN, PROSE, END = 1.0, 0.03, 0.3, 0.3
"""Loss weights: what must be right, what cannot be foreseen (operands, keys), running text, and the eos."""

POOL = 24
"""Documents that `fill` chooses among."""


@dataclass(frozen=True)
class Batch:
    """Token ids and the loss weight of each, as a target: both `rows` lists of `length`."""

    ids: list[list[int]]
    weights: list[list[float]]


def document(segments: Segments) -> tuple[list[int], list[float]]:
    ids, weights = [BOS], [0.0]
    for text, weight in segments:
        ids += encode(text)
        weights += [weight] * len(text)
    return [*ids, EOS], [*weights, END]


def pack(make: Callable[[], Segments], rows: int, length: int) -> Batch:
    """`rows` sequences of `length` tokens of whole documents; a document longer than a sequence is cut."""
    batch = Batch([], [])
    pending = document(make())
    for _ in range(rows):
        ids, weights = pending[0][:length], pending[1][:length]
        pending = document(make())
        while len(ids) + len(pending[0]) <= length:
            ids += pending[0]
            weights += pending[1]
            pending = document(make())
        add_row(batch, ids, weights, length)
    return batch


def fill(make: Callable[[], Segments], rows: int, length: int, pool: int = POOL) -> Batch:
    """As `pack`, with less padding: a row starts with the document that waited longest, then takes the longest of
    `pool` waiting ones that fits, until none does."""
    batch = Batch([], [])
    waiting = [document(make()) for _ in range(pool)]
    for _ in range(rows):
        first = waiting.pop(0)
        ids, weights = first[0][:length], first[1][:length]
        while True:
            waiting += [document(make()) for _ in range(pool - len(waiting))]
            room = length - len(ids)
            fitting = [i for i in range(pool) if len(waiting[i][0]) <= room]
            if not fitting:
                break
            chosen = waiting.pop(max(fitting, key=lambda i: len(waiting[i][0])))
            ids += chosen[0]
            weights += chosen[1]
        add_row(batch, ids, weights, length)
    return batch


def add_row(batch: Batch, ids: list[int], weights: list[float], length: int) -> None:
    """Append one row, padded to `length`."""
    room = length - len(ids)
    batch.ids.append(ids + [PAD] * room)
    batch.weights.append(weights + [0.0] * room)
