"""Held-out items, made by rules of their own; nothing that trains imports this module.

Pairs and triples come from a residue class that training leaves out; wordings and items of `NEW_WORDINGS` occur in no
training text.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from impl.train import data

WINDOW = 32
"""pico's sliding window, in tokens."""


@dataclass(frozen=True)
class Item:
    prompt: str
    answer: str
    """Exact text expected before the newline; for word problems only what follows `####` counts."""


def sums(form: str = "completion") -> list[Item]:
    """Every held-out two-digit pair, both orders, as `17+25=` or as a chat."""
    return [arithmetic_item(f"{a}+{b}", str(a + b), form) for a, b in sum_pairs()]


def sum_pairs() -> Iterator[tuple[int, int]]:
    for a in range(10, 100):
        for b in range(10, 100):
            if zlib.crc32(b"sum %d %d" % (min(a, b), max(a, b))) % 10 == 0:
                yield a, b


def products(form: str = "completion") -> list[Item]:
    """The whole times table to twelve. Facts: all of them are in the training text."""
    return [arithmetic_item(f"{a}*{b}", str(a * b), form) for a in range(1, 13) for b in range(1, 13)]


def arithmetic_item(question: str, answer: str, form: str) -> Item:
    if form == "chat":
        return Item(f"Q: {question}\nA:", f" {answer}")
    return Item(f"{question}=", answer)


NEW_WORDINGS: tuple[tuple[str, str], ...] = (
    ("{n} keeps {a} {i}. {m} brings {b} more, but {c} get lost. How many remain?", "a+b-c"),
    ("On Monday {n} sees {a} {i}, on Tuesday {b}, on Friday {c}. How many in total?", "a+b+c"),
    ("{n} packs {a} crates with {b} {i} each and sells {c}. How many remain?", "a*b-c"),
    ("{n} fills {a} jars with {b} {i} each. {m} adds {c}. How many in total?", "a*b+c"),
    ("{n} starts with {a} {i}, drops {b} and picks up {c}. How many at the end?", "a-b+c"),
)
NEW_ITEMS = ("marbles", "buttons", "pears", "keys")


def problems(count: int, seed: int = 1, new_wording: bool = False) -> list[Item]:
    """`count` word problems with number triples that training leaves out; optionally in new wordings and items."""
    rng = random.Random(f"held-out problems {seed}")
    wordings, items = (NEW_WORDINGS, NEW_ITEMS) if new_wording else (data.PROBLEMS, data.ITEMS)
    out: list[Item] = []
    while len(out) < count:
        wording, plan = rng.choice(wordings)
        a, b, c = data.problem_numbers(rng, plan)
        if zlib.crc32(b"problem %d %d %d" % (a, b, c)) % 10:
            continue
        name, other = rng.sample(data.NAMES, 2)
        question = wording.format(n=name, m=other, i=rng.choice(items), a=a, b=b, c=c)
        out.append(Item(f"Q: {question}\nA:", str(data.worked(plan, a, b, c)[1])))
    return out


def lookups(count: int, characters: int, seed: int = 1) -> list[Item]:
    """`count` contexts of `characters` with one query each, its line more than a window back.

    Contexts are random; the chance that one repeats a training context is nil.
    """
    rng = random.Random(f"held-out lookup {seed} {characters}")
    out: list[Item] = []
    while len(out) < count:
        context, queries = data.lookup(rng, characters, questions=1)
        for query, answer in queries:
            if len(context) - context.index(query[1:]) > WINDOW:
                out.append(Item(context + query, answer.strip()))
    return out
