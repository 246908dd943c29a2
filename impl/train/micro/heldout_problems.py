"""Held-out word problems: number combinations that training leaves out, a quarter in wordings it has not seen.

Nothing that trains imports this module.
"""

from __future__ import annotations

import random
from functools import lru_cache

from impl.train.micro.problems import Problem, any_problem, from_template
from impl.train.micro.reserved import reserved_numbers
from impl.train.micro.wordings import Wording
from impl.train.micro.words import ITEMS

SET_SIZE = 1319
"""As many as GSM8K's test set has."""

NEW_SHARE = 0.25

NEW_WORDINGS: tuple[Wording, ...] = (
    ("{n} keeps {a} {i} in a drawer. {m} puts {b} more in, but {c} get lost. How many {i} remain?", "a+b 1-c"),
    ("On Monday {n} sees {a} {i}, on Tuesday {b} and on Friday {c}. How many {i} did {n} see?", "a+b 1+c"),
    ("{n} loads {a} carts with {b} {i} each and sells {c}. How many {i} remain?", "a*b 1-c"),
    ("{m} lends {n} {a} {i}. {n} returns {b} and later borrows {c}. How many {i} does {n} still owe?", "a-b 1+c"),
    ("Each of {a} pupils brings {b} {i}, and the teacher brings {c}. How many {i} do they have?", "a*b 1+c"),
    ("{n} divides {a} {i} into {b} equal piles and adds {c} to one pile. How large is that pile?", "a/b 1+c"),
    ("{n} walks {a} steps, {m} walks {b} steps more than {n}, and {o} walks {c} steps fewer than {m}. How many steps "
     "does {o} walk?", "a+b 1-c"),
    ("{n} pays {a} coins for each of {b} {i} and {c} coins for a bag. The purse held {d} coins. How many coins are "
     "left?", "a*b 1+c d-2"),
    ("A band plays {a} songs on each of {b} days, then {c} songs on Sunday, and leaves out {d}. How many songs is "
     "that?", "a*b 1+c 2-d"),
    ("{n} plants {a} rows of {b} {i} and {c} rows of {d} {j}. {e} plants die. How many plants live?",
     "a*b c*d 1+2 3-e"),
)  # fmt: skip
NEW_ITEMS = ("marbles", "buttons", "pears", "keys", "feathers", "ribbons")


def held_out_problem(rng: random.Random, new_wording: bool) -> Problem:
    while True:
        problem = from_template(rng, NEW_WORDINGS, NEW_ITEMS + ITEMS[:6]) if new_wording else any_problem(rng)
        if reserved_numbers(problem.numbers):
            return problem


@lru_cache(maxsize=4)
def marked_problems(count: int = SET_SIZE, seed: int = 1) -> tuple[tuple[Problem, bool], ...]:
    """`count` different held-out problems, the same for the same arguments; each with whether its wording is new."""
    rng = random.Random(f"held-out problems {seed}")
    found: dict[str, tuple[Problem, bool]] = {}
    while len(found) < count:
        new = rng.random() < NEW_SHARE
        problem = held_out_problem(rng, new)
        found.setdefault(problem.question, (problem, new))
    return tuple(found.values())


def problem_set(count: int = SET_SIZE, seed: int = 1) -> list[Problem]:
    return [problem for problem, _ in marked_problems(count, seed)]
