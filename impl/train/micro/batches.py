"""The batches of one training step of micro: `batches(seed, step, progress, scale)`, as `impl.train.data` has it.

Batches, by name, and their rows of token ids. `scale` multiplies rows, not lengths; scale 1 is 4 to 9 thousand tokens
a step. Rows hold whole documents with little padding; those of `copying` and `recall` before RECALL_ONLY are short.

| name | rows at scale 1 x length | progress | what |
|---|---|---|---|
| `copying` | 8 x 256 | below 0.3 | random strings twice, ever longer, soon longer than the window |
| `recall` | 8 x 256, then 4 x 512 | below 0.3 | key-value lines, first letters distinct at first |
| `drills` | 8 x 256 | from 0.3 on | short sums, differences and products, many a row |
| `numbers` | 2 x 1,024 | from 0.3 on | arithmetic, word problems, facts |
| `forms` | 2 x 1,024 | from 0.3 on | JSON, tools, small chats, prose |
| `near` | 2 x 1,024 | from 0.3 on | recall in one row, votes, and copies |
| `far` | 2 x 1,024, 1 x 2,304 or 1 x 4,608 | from 0.3 on | recall; 2,304 from 0.4 on, 4,608 from 0.55 on |
| `coarse` | 2 x 1,024 | from 0.5 on | recall among much prose, read without C4A entries |
| `counted` | 4 x 512, 2 x 1,024 or 1 x 2,304 | from 0.5 on | tallies that ask often, read without C4A entries |
| `tally` | as `counted` | from 0.5 on | tallies that ask at their end, for keys too |

From 0.5 on a step has one of `near`, `far` and `coarse`: by then looking back is learned, numbers are not. It also has
one of `counted` and `tally`: what a count needs is learned where C128A's entries are all there is, and is then at hand
where C4A's are seen, too. Most steps have no row above 1,024. At progress 1, which no step of a first run has, every
length of `far` is as likely as at the end of a run, and a step has either a batch of recall or one of tallies: weights
that are refined look back already, so arithmetic gets more steps and a larger part of each.

Looking back comes first and alone: everything else is built on it.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from impl.train.micro import arithmetic, facts, recall, structured, tally, tool_chats
from impl.train.micro.chats import problem_text, small_chat
from impl.train.micro.prose import paragraph
from impl.train.micro.recall import Stage
from impl.train.packing import COARSE, COUNTED, TALLY, Batch, Segments, fill

RECALL_ONLY = 0.3
"""Up to this share of a run a step holds nothing but copies and lookups."""
LENGTH = 1024
SHORT = 256
SETTLED = 0.5
"""From this share of a run on, a step has one batch of recall."""
NEAR, FAR = 0.35, 0.4
"""Shares of these steps whose recall is `near` and `far`; that of the others is `coarse`."""
LONGER = 2304, 4608
UNLOCKED = 0.4, 0.55
"""Progress at which rows of each of `LONGER` begin."""
LONGER_SHARE = 0.2
"""Share of steps whose `far` rows have any one of `LONGER`, once it is unlocked."""
WITHOUT = 0.6
"""Share of steps whose tallies are `counted`."""
COUNTING = 0.5
"""Share of a refinement's steps that have a batch of tallies."""
TALLIES = (512, 1024, 1024, 1024, 2304)
"""Lengths of rows of tallies, one of these for each step."""
LONE = (0.7, 0.85, 0.93)
"""Shares of prose that leave about one line to a C128A entry."""
SPARSE = (0.0, 0.0, 0.0, 0.3, 0.6, 0.85)
"""Shares of prose among the lines of a context; lines alone are what the held-out set asks for."""


def numbers(rng: random.Random) -> Segments:
    kind = rng.random()
    if kind < 0.3:
        return arithmetic.completions(rng)
    if kind < 0.6:
        return arithmetic.training_chat(rng)
    if kind < 0.7:
        return facts.training_text(rng)
    return problem_text(rng)


def forms(rng: random.Random) -> Segments:
    kind = rng.random()
    if kind < 0.22:
        return structured.training_text(rng)
    if kind < 0.7:
        return tool_chats.training_text(rng)
    if kind < 0.84:
        return small_chat(rng)
    return paragraph(rng)


def rows_of_one(make: Callable[[int], Segments], rows: int, length: int) -> Batch:
    """`rows` rows that one document of `length` tokens fills, bos and eos counted."""
    return fill(lambda: make(length - 2), rows, length, pool=1)


def lookups(rng: random.Random, rows: int, length: int, stage: Stage) -> Batch:
    return rows_of_one(lambda size: recall.lookup(rng, size, stage), rows, length)


def first_stage(progress: float) -> Stage:
    """From one letter and any distance to two letters and mostly beyond the window."""
    grown = progress / RECALL_ONLY
    return Stage(
        reach=512, far=0.3 + 0.5 * grown, distinct=max(0.0, 1.0 - 1.6 * grown), several=0.1 + 0.2 * grown,
    )  # fmt: skip


def looking_back(rng: random.Random, progress: float, scale: int) -> dict[str, Batch]:
    """The batches of a step before RECALL_ONLY."""
    grown = progress / RECALL_ONLY
    longest = 20 + int(140 * grown)
    stage = first_stage(progress)
    length, rows = (256, 8) if grown < 0.5 else (512, 4)
    return {
        "copying": fill(lambda: recall.copied(rng, rng.randint(4, longest)), 8 * scale, 256),
        "recall": lookups(rng, rows * scale, length, stage),
    }


def far_length(rng: random.Random, progress: float) -> int:
    drawn = rng.random()
    for length, start in zip(LONGER, UNLOCKED, strict=True):
        if progress >= start:
            if drawn < LONGER_SHARE:
                return length
            drawn -= LONGER_SHARE
    return LENGTH


def near_document(rng: random.Random, size: int, stage: Stage) -> Segments:
    kind = rng.random()
    if kind < 0.1:
        return recall.copied(rng, rng.randint(24, size // 2 - 1))
    if kind < 0.35:
        return recall.votes(rng, rng.randint(size // 2, size), rng.uniform(0.12, 0.5))
    return recall.lookup(rng, size if rng.random() < 0.75 else rng.randint(100, size), stage)


def batches(seed: int, step: int, progress: float, scale: int = 1) -> dict[str, Batch]:
    """The batches of one step by name, the same for the same arguments.

    `progress` is the share of the curriculum that is behind; `scale` multiplies the number of rows (for a GPU).
    """
    rng = random.Random(f"micro {seed}/{step}")
    if progress < RECALL_ONLY:
        return looking_back(rng, progress, scale)
    work = {
        "drills": fill(lambda: arithmetic.drill(rng), 8 * scale, SHORT),
        "numbers": fill(lambda: numbers(rng), 2 * scale, LENGTH),
        "forms": fill(lambda: forms(rng), 2 * scale, LENGTH),
    }
    if progress == 1.0:
        return work | (tallied(rng, scale) if rng.random() < COUNTING else recalled(rng, progress, scale))
    work |= recalled(rng, progress, scale)
    return work if progress < SETTLED else work | tallied(rng, scale)


def tallied(rng: random.Random, scale: int) -> dict[str, Batch]:
    """The tallies of a step: many counts without C4A entries, or one a row with them."""
    kind = COUNTED if rng.random() < WITHOUT else TALLY
    length = rng.choice(TALLIES)
    rows = 2 * LENGTH // length * scale if length <= LENGTH else scale
    return {kind: rows_of_one(lambda size: tally.tally(rng, size, once=kind != COUNTED), rows, length)}


def recalled(rng: random.Random, progress: float, scale: int) -> dict[str, Batch]:
    """The batches of recall of a step behind RECALL_ONLY: near and far, or one of three kinds."""
    drawn = rng.random()
    chosen = "near" if drawn < NEAR else "far" if drawn < NEAR + FAR else COARSE
    kinds = ("near", "far") if progress < SETTLED else (chosen,)
    stage = Stage(prose=SPARSE, chats=0.2)
    found: dict[str, Batch] = {}
    for kind in kinds:
        if kind == "near":
            found[kind] = fill(lambda: near_document(rng, LENGTH - 2, stage), 2 * scale, LENGTH, pool=6)
            continue
        length = far_length(rng, progress) if kind == "far" else LENGTH
        of_kind = stage if kind == "far" else Stage(far=1.0, prose=LONE, several=0.0)
        found[kind] = lookups(rng, max(1, 2 * LENGTH // length) * scale, length, of_kind)
    return found
