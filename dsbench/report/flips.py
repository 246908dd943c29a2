"""Items that the two arms answer differently, side by side: the replies, and which arm was right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from dsbench.evidence import BootEvidence
from dsbench.metrics import Metric
from dsbench.records import Observation, Plan
from dsbench.report.readings import measured

MOST_SHOWN = 20
LONGEST = 2000
"""Characters of one reply."""


@dataclass(frozen=True)
class Answer:
    score: str
    text: str | None
    """None where the probe keeps no replies."""


@dataclass(frozen=True)
class Flip:
    item: str
    change: str
    """lost, gained or changed."""
    note: str
    baseline: Answer
    candidate: Answer


@dataclass(frozen=True)
class Flips:
    arm: str
    metric: str
    items: int
    """Items with an answer in both arms."""
    counts: dict[str, int]
    shown: list[Flip]
    left_out: int


def flips(plan: Plan, boots: Sequence[BootEvidence]) -> list[Flips]:
    """One entry an arm and metric of items where anything differs, in the plan's order."""
    found = []
    for arm in plan.arms[1:]:
        for metric in plan.metrics:
            if metric.kind == "item":
                entry = _of_metric(metric, measured(boots, plan.baseline.name), measured(boots, arm.name), arm.name)
                found += [entry] if entry.shown else []
    return found


def _of_metric(metric: Metric, base: Sequence[BootEvidence], candidate: Sequence[BootEvidence], arm: str) -> Flips:
    a, b = _by_item(base, metric.key), _by_item(candidate, metric.key)
    both = [item for item in a if item in b]
    texts = [_texts(base, metric.key), _texts(candidate, metric.key)]
    changed = [flip for item in both if (flip := _flip(metric, item, a[item], b[item], texts))]
    changed.sort(key=lambda flip: ("lost", "changed", "gained").index(flip.change))
    counts = {word: sum(flip.change == word for flip in changed) for word in ("lost", "gained", "changed")}
    return Flips(
        arm=arm,
        metric=metric.key,
        items=len(both),
        counts={word: count for word, count in counts.items() if count},
        shown=changed[:MOST_SHOWN],
        left_out=max(0, len(changed) - MOST_SHOWN),
    )


def _flip(
    metric: Metric, item: str, a: list[Observation], b: list[Observation], texts: list[dict[str, str]]
) -> Flip | None:
    mine, other = a[0], next((o for o in b if o.value != a[0].value), b[0])
    note = ""
    scores = [[o.value for o in read if isinstance(o.value, int | float)] for read in (a, b)]
    if len(scores[0]) == len(a) and len(scores[1]) == len(b):
        change = fmean(scores[1]) - fmean(scores[0])
        if not change:
            return None
        word = "lost" if (change < 0) == (metric.better != "down") else "gained"
        if len({*scores[0]}) > 1 or len({*scores[1]}) > 1:
            note = "its boots differ among themselves"
            mine = max(a, key=lambda o: abs(_number(o) - _number(other)))
    else:
        if all(o.value == mine.value for o in b):
            return None
        word, note = "changed", _first_difference(mine, other)
    answers = [
        Answer(_score(o), _cut(o.text if o.text is not None else known.get(item)))
        for o, known in zip((mine, other), texts, strict=True)
    ]
    return Flip(item, word, note, answers[0], answers[1])


def _by_item(boots: Sequence[BootEvidence], key: str) -> dict[str, list[Observation]]:
    found: dict[str, list[Observation]] = {}
    for boot in boots:
        for o in boot.readings.get(key, []):
            if o.item is not None and o.value is not None:
                found.setdefault(o.item, []).append(o)
    return found


def _texts(boots: Sequence[BootEvidence], key: str) -> dict[str, str]:
    """Replies by item, of the first metric of the same probe that keeps them."""
    family = f"{key.partition('.')[0]}."
    found: dict[str, str] = {}
    for boot in boots:
        for name, read in boot.readings.items():
            if name.startswith(family):
                for o in read:
                    if o.item is not None and o.text is not None:
                        found.setdefault(o.item, o.text)
    return found


def _number(o: Observation) -> float:
    return float(o.value) if isinstance(o.value, int | float) else 0.0


def _score(o: Observation) -> str:
    if isinstance(o.value, list):
        return f"{len(o.value)} tokens"
    if isinstance(o.value, int | float):
        return {0.0: "wrong", 1.0: "right"}.get(float(o.value), f"{o.value:g}")
    return str(o.value)


def _first_difference(a: Observation, b: Observation) -> str:
    if not isinstance(a.value, list) or not isinstance(b.value, list):
        return ""
    at = next((i for i, (x, y) in enumerate(zip(a.value, b.value, strict=False)) if x != y), None)
    return "one is longer" if at is None else f"token ids differ from token {at + 1} on"


def _cut(text: str | None) -> str | None:
    if text is None or len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]} … {len(text) - LONGEST:,} more characters"
