"""Word problems of two to four steps with exact answers: `12+7=19. 19-4=15. #### 15`.

Numbers stay within 1 to 999, products within 12x12 or 99x9, and quotients are whole. Training draws the wordings of
`wordings` and leaves out every number combination of `reserved_numbers` and every reserved pair in a step.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from impl.train.micro import wordings
from impl.train.micro.reserved import allowed, reserved_numbers
from impl.train.micro.wordings import Wording
from impl.train.micro.words import ITEMS, NAMES

LARGEST = 999
CHAIN_SHARE = 0.35
"""Share of problems that are put together from sentences."""


@dataclass(frozen=True)
class Problem:
    question: str
    steps: tuple[str, ...]
    """Such as `12+7=19`."""
    answer: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """Those of the question, in order."""
        return tuple(int(n) for n in re.findall(r"\d+", self.question))

    @property
    def work(self) -> str:
        return " ".join(f"{step}." for step in self.steps)

    @property
    def solution(self) -> str:
        """The reply to the question: the steps, then `#### N`."""
        return f"{self.work} #### {self.answer}"


def computed(a: int, sign: str, b: int) -> int | None:
    """The result of a step, None where it leaves the numbers that problems are about."""
    if sign == "*":
        result = a * b if fits_tables(a, b) else 0
    elif sign == "/":
        result = a // b if b > 1 and a % b == 0 and fits_tables(b, a // b) else 0
    else:
        result = a + b if sign == "+" else a - b
    return result if 1 <= result <= LARGEST else None


def fits_tables(a: int, b: int) -> bool:
    low, high = sorted((a, b))
    return low >= 2 and (high <= 12 or (low <= 9 and high <= 99))


def worked(plan: str, values: dict[str, int]) -> tuple[tuple[str, ...], int] | None:
    """Steps and answer of a plan with its numbers put in, None where a step cannot be."""
    results: list[int] = []
    steps: list[str] = []

    def operand(word: str) -> int:
        return int(word[1:]) if word[0] == ":" else results[int(word) - 1] if word.isdigit() else values[word]

    for step in plan.split():
        left, sign, right = re.fullmatch(r"(:?\w)([-+*/])(:?\w)", step).groups()  # type: ignore[union-attr]
        a, b = operand(left), operand(right)
        result = computed(a, sign, b)
        if result is None:
            return None
        steps.append(f"{a}{sign}{b}={result}")
        results.append(result)
    return tuple(steps), results[-1]


def drawn_numbers(rng: random.Random, plan: str) -> dict[str, int]:
    """A number for each letter of a plan: small ones for factors and divisors, others up to 99."""
    values: dict[str, int] = {}
    factors = set(re.findall(r"[a-e](?=\*)|(?<=[*/])[a-e]", plan))
    large = rng.choice(sorted(factors)) if factors and rng.random() < 0.3 else None
    for letter in sorted(set(re.findall(r"[a-e]", plan))):
        if letter in factors:
            values[letter] = rng.randint(11, 60) if letter == large else rng.randint(2, 12)
        else:
            values[letter] = rng.randint(2, 30) if rng.random() < 0.4 else rng.randint(10, 99)
    return values


def from_template(rng: random.Random, templates: Sequence[Wording], items: Sequence[str]) -> Problem:
    wording, plan = rng.choice(templates)
    while True:
        values = drawn_numbers(rng, plan)
        solved = worked(plan, values)
        if solved is not None:
            return Problem(told(rng, wording, items, values), *solved)


def told(rng: random.Random, wording: str, items: Sequence[str], values: dict[str, int]) -> str:
    """A wording with names, things and numbers put in."""
    n, m, o = rng.sample(NAMES, 3)
    i, j = rng.sample(items, 2)
    return wording.format(n=n, m=m, o=o, i=i, j=j, **values)


def chained(
    rng: random.Random, openings: Sequence[Wording], changes: Sequence[Wording], questions: Sequence[str],
    items: Sequence[str],
) -> Problem:  # fmt: skip
    """A story of two to four steps on one running number, sentence by sentence."""
    wanted = rng.choice((2, 2, 3, 3, 4))
    while True:
        text, sign = rng.choice(openings)
        n, m = rng.sample(NAMES, 2)
        names = {"n": n, "m": m, "i": rng.choice(items)}
        x, y = rng.randint(2, 12) if sign else rng.randint(5, 99), rng.randint(2, 12)
        sentences, steps, running = [text.format(x=x, y=y, **names)], [], x
        if sign:
            running = x * y
            steps.append(f"{x}*{y}={running}")
        for text, sign in rng.sample(changes, wanted - len(steps)):
            x = int(sign[1:]) if len(sign) > 1 else rng.randint(2, 60)
            result = computed(running, sign[0], x)
            if result is None:
                break
            sentences.append(text.format(x=x, **names))
            steps.append(f"{running}{sign[0]}{x}={result}")
            running = result
        if len(steps) == wanted:
            question = " ".join([*sentences, rng.choice(questions).format(**names)])
            return Problem(question, tuple(steps), running)


def any_problem(rng: random.Random) -> Problem:
    """One in the wordings of training, with any numbers."""
    if rng.random() < CHAIN_SHARE:
        return chained(rng, wordings.OPENINGS, wordings.CHANGES, wordings.QUESTIONS, ITEMS)
    return from_template(rng, wordings.TEMPLATES, ITEMS)


def training_problem(rng: random.Random) -> Problem:
    while True:
        problem = any_problem(rng)
        if not reserved_numbers(problem.numbers) and allowed(problem.solution):
            return problem
