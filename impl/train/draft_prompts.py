"""Held-out prompts that a draft's acceptance is measured on, by shape and kind (torch-free)."""

from __future__ import annotations

import random

from impl.train import data
from impl.train import heldout as pico
from impl.train.micro import heldout as micro
from impl.train.micro import prose
from impl.train.micro.heldout_problems import problem_set

KINDS: dict[str, dict[str, int]] = {
    "pico": {"sums": 24, "problems": 64, "lookups": 32, "prose": 64},
    "micro": {"sums": 24, "problems": 96, "lookups": 32, "JSON": 120, "tools": 160, "prose": 96},
}
"""Shape -> kind of prompt -> most tokens generated."""


def kinds(shape: str) -> dict[str, int]:
    """Those of micro, or pico's for any other shape."""
    return KINDS["micro" if shape == "micro" else "pico"]


def prompts(shape: str, kind: str, count: int) -> list[str]:
    """Held-out prompts, at most `count`."""
    return prompts_of_micro(kind, count) if shape == "micro" else prompts_of_pico(kind, count)


def prompts_of_pico(kind: str, count: int) -> list[str]:
    if kind == "sums":
        return spread([item.prompt for form in ("completion", "chat") for item in pico.sums(form)], count)
    if kind == "problems":
        return [item.prompt for item in pico.problems(count)]
    if kind == "lookups":
        return [item.prompt for item in pico.lookups(count, 150)]
    rng = random.Random("held-out prose")
    return [f"{data.sentence(rng)} {data.noun_phrase(rng).capitalize()} " for _ in range(count)]


def prompts_of_micro(kind: str, count: int) -> list[str]:
    if kind == "sums":
        pairs = micro.two_digit_sums()
        return spread([item.prompt for form in ("completion", "chat") for item in micro.bare("+", pairs, form)], count)
    if kind == "problems":
        return [item.prompt for item in micro.problem_items(problem_set(count))]
    if kind == "lookups":
        return [item.prompt for item in micro.lookups(count, 300)]
    if kind == "JSON":
        return [
            item.prompt for item in micro.drawn_items(count, "draft", lambda rng: micro.json_item(rng, "off", False))
        ]
    if kind == "tools":
        return [item.prompt for item in micro.tool_items("single", count, "off")]
    rng = random.Random("held-out prose")
    return [f"{prose.sentence(rng)} {prose.noun_phrase(rng).capitalize()} " for _ in range(count)]


def spread(every: list[str], count: int) -> list[str]:
    """At most `count` of them at equal distances."""
    return every[:: -(-len(every) // count)]
