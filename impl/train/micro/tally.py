"""Tallies: ballots such as `ADEHIKNOQSUX`, one letter of each pair, and their count `?*=`: which letters lead.

Why they are here: every letter of an answer weighs the whole context. A layer with C4A entries sees 32 of them, which
is some ten ballots, and the window holds five; a C128A layer sees all, and the mean of its entries is the count.
- Leanings change from stretch to stretch, so that neither the first ballots nor the last tell the result.
- What is read without C4A entries asks often, and its answers are many. With them a document asks once, at its end: an
  earlier answer would be copied.
- Lines `kx=42` stand among the ballots, and `?kx,ab,*=` asks for both at once: the keys by C4A, the count by C128A.
A letter whose lead is small counts little. Contexts are random; results of a tenth of all kinds are never trained.
"""

from __future__ import annotations

import random

from impl.train.micro.recall import LINE, Lines, Stage
from impl.train.micro.reserved import tenth
from impl.train.packing import ANSWER, GIVEN, Segments

PAIRS = ("AB", "CD", "EF", "GH", "IJ", "KL", "MN", "OP", "QR", "ST", "UV", "WX")
BALLOT = len(PAIRS) + 1
"""Characters of a ballot's line."""
ASKING = len("?*=\n") + len(PAIRS)
"""Characters of a count that is asked for alone, and its answer."""
CLEAR = 0.1
"""Least lead, as a share of the ballots, from which a letter must be right."""
MOST_KEYS = 4
GAPS = (8, 28)
"""Ballots between two counts in one document."""
LEANINGS = ((0.6, 1.0), (0.3, 0.8))
"""Least and most lead of a stretch's favourites; one of these for each document."""


class Count:
    """The ballots of a context so far."""

    def __init__(self) -> None:
        self.ballots = 0
        self.leads = [0] * len(PAIRS)
        """Ballots of each pair's first letter, less those of its second."""

    def add(self, ballot: str) -> None:
        self.ballots += 1
        for place, letter in enumerate(ballot):
            self.leads[place] += 1 if letter == PAIRS[place][0] else -1

    @property
    def result(self) -> str:
        """The leading letters; the first of a pair where they are level."""
        return "".join(pair[lead < 0] for pair, lead in zip(PAIRS, self.leads, strict=True))

    def clear(self, least: float) -> list[bool]:
        return [abs(lead) >= max(1.0, least * self.ballots) for lead in self.leads]


def ballot(rng: random.Random, leans: list[float]) -> str:
    """One ballot; `leans` are the chances of the pairs' first letters."""
    return "".join(pair[rng.random() >= lean] for pair, lean in zip(PAIRS, leans, strict=True))


def reserved_result(result: str) -> bool:
    """True for the tenth of results that no training text gives."""
    return tenth(f"micro tally {result}")


def leanings(rng: random.Random, before: list[float] | None, lead: tuple[float, float]) -> list[float]:
    """Chances of first letters in a new stretch: about half of the favourites stay."""
    sides = [1 if lean > 0.5 else -1 for lean in before] if before else [rng.choice((-1, 1)) for _ in PAIRS]
    return [0.5 + 0.5 * side * rng.choice((-1, 1)) * rng.uniform(*lead) for side in sides]


def tally(rng: random.Random, characters: int, *, once: bool) -> Segments:
    """A document of at most `characters` and nearly as many; `once`: it asks at its end only, and for keys too."""
    lead = rng.choice(LEANINGS)
    lined = rng.choice((0.0, 0.0, 0.3, 0.6))
    """Share of key-value lines among the lines."""
    lines, count = Lines(rng), Count()
    text: Segments = []
    size = 0
    leans = leanings(rng, None, lead)
    left = 0
    """Ballots until the leanings change."""
    gap = rng.randint(*GAPS)
    asking = ASKING + (MOST_KEYS * LINE if once and lined else 0)
    while size + max(BALLOT, LINE) + asking <= characters:
        if rng.random() < lined and not lines.exhausted:
            text.append((lines.new(size), GIVEN))
            size += LINE
            continue
        if not left:
            leans, left = leanings(rng, leans, lead), rng.randint(6, max(8, characters // BALLOT // 3))
        cast = ballot(rng, leans)
        count.add(cast)
        text.append((f"{cast}\n", GIVEN))
        size, left, gap = size + BALLOT, left - 1, gap - 1
        room = size + ASKING + BALLOT + asking <= characters
        if room and not once and gap <= 0 and not reserved_result(count.result):
            text += query(count, [], lines)
            size, gap = size + ASKING, rng.randint(*GAPS)
    if not count.ballots or reserved_result(count.result):
        return tally(rng, characters, once=once)
    keys = lines.asked(size, Stage(), rng.randint(0, MOST_KEYS)) if once and lined else []
    return text + query(count, keys, lines)


def query(count: Count, keys: list[str], lines: Lines) -> Segments:
    """`?kx,ab,*=` and its answer: the values of the keys, then the result."""
    answer: Segments = [(f"{lines.values[key]},", ANSWER) for key in keys]
    sure = count.clear(CLEAR)
    answer += [(letter, ANSWER if clear else GIVEN) for letter, clear in zip(count.result, sure, strict=True)]
    return [(f"?{','.join([*keys, '*'])}=", GIVEN), *answer, ("\n", ANSWER)]
