"""Held-out scores of micro, each against its target: `python -m impl.train.evaluate WEIGHTS` runs them.

Recall is scored three times: whole, and with the compressed entries of one kind masked in every layer that has them.
Keys need C4A's, tallies need C128A's; an answer of both needs both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from impl.dims import Dims
from impl.tokenizer import Thinking
from impl.train.attention import View
from impl.train.decode import greedy
from impl.train.forward import Weights
from impl.train.micro import heldout
from impl.train.micro.heldout import Item
from impl.train.micro.heldout_problems import marked_problems, problem_set
from impl.train.scores import score

ALL_RIGHT, MOSTLY, RECALLED, STRUCTURED, CALLED = (1.0, 1.0), (0.6, 0.98), (0.95, 1.0), (0.9, 1.0), (0.8, 1.0)
"""Targets as least and most share."""


@dataclass(frozen=True)
class Family:
    """Items that are scored together."""

    name: str
    items: Callable[[], list[Item]]
    max_tokens: int
    target: tuple[float, float] | None = None
    below: str = ""
    """Name of the family that this one must be visibly worse than: its interval lies below that one's."""
    hidden: str = ""
    """The kind of compressed entries that no token sees: `C4A` or `C128A`."""


def families() -> Iterator[Family]:
    for form in ("completion", "chat"):
        yield Family(f"sums of two digits, {form}", of(heldout.bare, "+", heldout.two_digit_sums(), form), 8, ALL_RIGHT)
        yield Family(f"sums of three digits, {form}", of(heldout.bare, "+", heldout.three_digit("+", 600), form), 8,
                     ALL_RIGHT)  # fmt: skip
        yield Family(f"products to 12x12, {form}", of(heldout.bare, "*", heldout.table_products(), form), 8, ALL_RIGHT)
        factors = heldout.pairs("*", range(10, 100), range(2, 10))
        yield Family(f"products to 99x9, {form}", of(heldout.bare, "*", factors, form), 8, ALL_RIGHT)
    yield Family("products of two digits with steps, chat", of(heldout.step_products, 300), 64, ALL_RIGHT)
    yield Family("differences of three digits, chat", of(heldout.bare, "-", heldout.three_digit("-", 300), "chat"), 8)
    yield Family("facts in held-out questions, chat", of(heldout.drawn_items, 60, "facts", heldout.fact_item), 40)
    yield from problems()
    yield from recall()
    for new in (False, True):
        wording = "new sentences" if new else "held-out sentences"
        yield Family(f"JSON, {wording}", json_items("off", new), 120, None if new else STRUCTURED)
    for thinking in heldout.THINKING[1:]:
        yield Family(f"JSON, {heldout.MODES[thinking]}", json_items(thinking, False), 200)
    yield from tools()


def problems() -> Iterator[Family]:
    held_out = problem_set()
    yield Family(f"word problems, all {len(held_out):,}", of(heldout.problem_items, held_out), 96, MOSTLY)
    for name, new in (("known", False), ("new", True)):
        problems = [problem for problem, is_new in marked_problems() if is_new == new]
        yield Family(f"word problems, {name} wordings", of(heldout.problem_items, problems), 96)
    for thinking in heldout.THINKING[1:]:
        yield Family(
            f"word problems, {heldout.MODES[thinking]}", of(heldout.problem_items, held_out[:300], thinking), 120
        )


def recall() -> Iterator[Family]:
    for beyond, count in ((100, 300), (3000, 200)):
        yield Family(f"recall {beyond:,} beyond the window", of(heldout.lookups, count, beyond), 4)
    yield Family("recall 1,000 beyond, six keys", of(heldout.lookups, 200, 1000, 0.0, 6), 20)
    for name, items, tokens, target in (
        ("recall 1,000 beyond the window", of(heldout.lookups, 500, 1000), 4, RECALLED),
        ("recall 1,000 beyond, among prose", of(heldout.lookups, 300, 1000, 0.7), 4, None),
        ("votes of 165 lines", of(heldout.drawn_items, 300, "votes", heldout.vote_item), 4, None),
        ("tallies of 80 ballots", of(heldout.tallies, 300, 80, 0), 24, RECALLED),
        ("two keys 1,000 beyond, and a tally", of(heldout.tallies, 300, 80, 2), 24, RECALLED),
    ):
        yield Family(name, items, tokens, target)
        for kind in ("C4A", "C128A"):
            needed = target and not (kind == "C4A" and name.startswith("tallies"))
            yield Family(f"{name}, no {kind}", items, tokens, None, below=name if needed else "", hidden=kind)


def tools() -> Iterator[Family]:
    for kind in ("single", "parallel", "chain", "missing", "failed", "nothing"):
        yield Family(f"tools, {kind}", of(heldout.tool_items, kind, 120, "off"), 240, CALLED)
    for thinking in heldout.THINKING[1:]:
        yield Family(f"tools, single, {heldout.MODES[thinking]}", of(heldout.tool_items, "single", 120, thinking), 300,
                     CALLED)  # fmt: skip
        yield Family(f"tools, chain, {heldout.MODES[thinking]}", of(heldout.tool_items, "chain", 120, thinking), 300)
    yield Family("tools, single, new wordings", of(heldout.tool_items, "single", 120, "off", True), 240)


def of(make: Callable[..., list[Item]], *arguments: Any) -> Callable[[], list[Item]]:
    """The items, made when they are first wanted."""
    return cache(lambda: make(*arguments))


def json_items(thinking: Thinking, new: bool) -> Callable[[], list[Item]]:
    return of(heldout.drawn_items, 300, f"JSON {thinking} {new}", lambda rng: heldout.json_item(rng, thinking, new))


def scores(
    weights: Weights, dims: Dims, chosen: Iterable[Family], sample: int | None = None,
    seen: Callable[[dict[str, dict[str, Any]]], None] = lambda rows: None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Name -> right, n, share, low, high; target and whether it is met, where there is one.

    `sample` limits the items of each family; `seen` gets what there is after each of them.
    """
    rows: dict[str, dict[str, Any]] = {}
    for family in chosen:
        items = family.items()
        if sample is not None and len(items) > sample:
            items = items[:: -(-len(items) // sample)]
        drafts = [item.reply for item in items]
        prompts = [item.prompt for item in items]
        texts = greedy(weights, dims, prompts, family.max_tokens, drafts, View(hidden=family.hidden))
        right = sum(item.right(text) for item, text in zip(items, texts, strict=True))
        rows[family.name] = judged(family, score(right, len(items)), rows)
        seen(rows)
    return rows


def judged(family: Family, row: dict[str, Any], before: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """`row` with its target in words and whether it is met."""
    if family.target is not None:
        least, most = family.target
        words = f"{least:.0%}" if least == most else f"{least:.0%} to {most:.0%}"
        return row | {"target": words, "met": least <= row["share"] <= most}
    if family.below in before:
        return row | {"target": "visibly worse", "met": row["high"] < before[family.below]["low"]}
    return row
