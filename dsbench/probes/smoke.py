"""Smoke: short questions with one right answer: a number, a word, or several numbers in order.

Prompts: the suite's `items`, each a text to complete or one user message, greedy and one after the other. Scorer:
`answer` is the first whole number of the reply; `expect` is a text that stands in it as words of its own, or the
numbers that it begins with. One item a question, `smoke.correct` 1 or 0 with the reply as text.

What failure looks like: any lost item is a regression, since these are answers that a working engine never misses. A
small defect passes, since prompts of ten tokens look up next to nothing: with one index row in 50 or in 10 corrupted
(`c128_row_corrupt:N`) micro kept all 8 items of `full` (results/battery/dose); pico, the shape of the unit tests, kept
its items even with one in 3.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from dsbench.answer_settings import SmokeItem
from dsbench.probes.boot import Boot, Reading, kept

LONGEST = 40
"""Characters of a number."""


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """1 for a right answer and 0 for a wrong one, by item, with the reply as text."""
    config = boot.plan.probes.smoke
    assert config is not None
    for item in config.items:
        if item.prompt is not None:
            text = (await boot.server.complete(item.prompt, item.max_tokens, ignore_eos=False)).text
        else:
            text = await boot.server.chat(item.chat or "", item.max_tokens)
        yield Reading("smoke.correct", int(is_right(item, text)), item=item.name, text=kept(text))


def is_right(item: SmokeItem, text: str) -> bool:
    """Whether a reply gives what the item wants."""
    if item.expect is None:
        return first_number(text) == item.answer
    if isinstance(item.expect, str):
        return re.search(rf"(?<!\w){re.escape(item.expect)}(?!\w)", text, re.IGNORECASE) is not None
    numbers = whole_numbers(text)
    counted = [len(item.expect), *item.expect]
    return item.expect == numbers[: len(item.expect)] or counted == numbers[: len(counted)]


def whole_numbers(text: str) -> list[int]:
    """Every whole number of a text, in order; one too long to be meant ends the list."""
    found: list[int] = []
    for number in re.finditer(r"-?\d+(?:\.\d+)?", text):
        if len(number[0]) > LONGEST:
            break
        if "." not in number[0]:
            found.append(int(number[0]))
    return found


def first_number(text: str) -> int | None:
    """The first whole number of a text; digits after a decimal point make it no whole number."""
    found = re.search(r"-?\d+(?:\.\d+)?", text)
    return int(found[0]) if found and "." not in found[0] else None
