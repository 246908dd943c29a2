"""Smoke: short questions with one right answer, graded by the first whole number of the reply."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from dsbench.probes.boot import Boot, Reading


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """1 for a right answer and 0 for a wrong one, by item, with the reply as text."""
    config = boot.plan.probes.smoke
    assert config is not None
    for item in config.items:
        if item.prompt is not None:
            text = (await boot.server.complete(item.prompt, item.max_tokens, ignore_eos=False)).text
        else:
            text = await boot.server.chat(item.chat or "", item.max_tokens)
        yield Reading("smoke.correct", int(first_number(text) == item.answer), item=item.name, text=text)


def first_number(text: str) -> int | None:
    """The first whole number of a text; digits after a decimal point make it no whole number."""
    found = re.search(r"-?\d+(?:\.\d+)?", text)
    return int(found[0]) if found and "." not in found[0] else None
