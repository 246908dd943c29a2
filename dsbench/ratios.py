"""The verdict row of a counter-ratio: many items in one row, decided by the worst of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import TYPE_CHECKING, Any

from dsbench.decide import decide, decide_exact
from dsbench.probes.acceptance import GREEDY
from dsbench.records import Observation, Verdict, Word
from dsbench.stats.holm import holm
from dsbench.stats.power import boots_needed_unblocked, smallest_effect_unblocked
from dsbench.stats.ratios import Counts, permutation_p, pooled, smallest_p
from dsbench.stats.samples import Interval, interval
from dsbench.stats.unblocked import pooled_sd

if TYPE_CHECKING:
    from dsbench.comparison import Comparison

RANKING: tuple[Word, ...] = ("regressed", "inconclusive", "improved", "equivalent")

SPREAD_FROM = 4
"""Boots an arm from which their spread is worth extrapolating from."""

ByBoot = Mapping[int, Counts]


@dataclass(frozen=True)
class _Item:
    """One ratio in both arms."""

    name: str
    baseline: float
    candidate: float
    effect: float
    """Change in the margin's own terms: a difference, or a fraction of the baseline."""
    exact: bool
    """Greedy, and all boots of each arm counted the same; or both arms counted the same in every block."""
    counts: float
    """The smaller of the arms' denominators."""
    p: float
    interval: Interval
    word: Word = "inconclusive"


def compare_ratios(
    this: Comparison,
    baseline: Mapping[int, list[Observation]],
    candidate: Mapping[int, list[Observation]],
    blocks: Mapping[int, int | None],
) -> Verdict:
    """Exact where greedy counts repeat in every boot of an arm; otherwise boots are permuted between the arms.

    Boots of one block have the same seeds: sampled counts that are the same in every block are the same. Holm
    corrects over the items. A row is regressed if one item is; its figures are those of the item that decided: of
    those with its word the one with the smallest p, then with the largest effect.
    """
    a, b = _by_item(baseline), _by_item(candidate)
    names = [name for name in a if name in b and pooled_or_none(a[name]) is not None]
    names = [name for name in names if pooled_or_none(b[name]) is not None]
    unread = [name for name in a if name not in names]
    if not names:
        return this.row("inconclusive", notes=["nothing was counted"])
    items = [_item(this, name, a[name], b[name], blocks) for name in names]
    tested = [item for item in items if not item.exact]
    adjusted = dict(zip((item.name for item in tested), holm([item.p for item in tested]), strict=True))
    # Holm takes the smallest p of all tested items times their number.
    least = min(1.0, smallest_p(len(baseline), len(candidate)) * max(len(tested), 1))
    judged = [_judged(this, item, adjusted.get(item.name, 0.0)) for item in items]
    word = next(word for word in RANKING if any(item.word == word for item in judged))
    claims = word in ("improved", "regressed")
    shown = max(
        (item for item in judged if item.word == word),
        key=lambda item: (-adjusted.get(item.name, 0.0) if claims else 0.0, abs(item.effect) * sqrt(item.counts)),
    )
    fires = least <= this.plan.alpha
    bounded = shown.interval.attained < 1
    return this.row(
        word,
        baseline=shown.baseline,
        candidate=shown.candidate,
        delta=shown.candidate - shown.baseline,
        relative=(shown.candidate / shown.baseline - 1) if shown.baseline else None,
        n_baseline=len(baseline),
        n_candidate=len(candidate),
        blocks=len({blocks[n] for n in baseline} & {blocks[n] for n in candidate}),
        test="equal counts" if shown.exact else "permutation of boots, Holm over items",
        p=adjusted[shown.name] if fires and not shown.exact else None,
        smallest_p=None if shown.exact else least,
        interval=(shown.interval.low, shown.interval.high) if bounded and not shown.exact else None,
        interval_of="difference" if this.metric.absolute else "relative",
        confidence=shown.interval.attained if bounded and not shown.exact else None,
        notes=_notes(this, judged, shown, word, unread, least if tested and not fires else None),
        **(_power(this, a[shown.name], b[shown.name]) if word != "equivalent" and not shown.exact else {}),
    )


def _item(this: Comparison, name: str, a: ByBoot, b: ByBoot, blocks: Mapping[int, int | None]) -> _Item:
    base, cand = pooled(list(a.values())), pooled(list(b.values()))
    repeats = len(set(a.values())) == 1 and len(set(b.values())) == 1
    of_a, of_b = {blocks[n]: c for n, c in a.items()}, {blocks[n]: c for n, c in b.items()}
    steps = _steps(this, of_a, of_b)
    return _Item(
        name=name,
        baseline=base,
        candidate=cand,
        effect=_effect(this, base, cand),
        exact=(repeats and f" {GREEDY}" in name) or of_a == of_b,
        counts=min(sum(below for _, below in counts.values()) for counts in (a, b)),
        p=permutation_p(list(a.values()), list(b.values())),
        interval=interval(steps, this.plan.equivalence_confidence) if steps else Interval(-1.0, 1.0, 1.0),
    )


def _effect(this: Comparison, base: float, cand: float) -> float:
    return cand - base if this.metric.absolute or not base else cand / base - 1


def _steps(this: Comparison, a: Mapping[int | None, Counts], b: Mapping[int | None, Counts]) -> list[float]:
    """The effect in each block that has counts in both arms."""
    return [
        _effect(this, pooled([a[block]]), pooled([b[block]]))
        for block in a
        if block in b and a[block][1] > 0 and b[block][1] > 0
    ]


def _judged(this: Comparison, item: _Item, p: float) -> _Item:
    margin, better = this.metric.margin, this.metric.better
    if item.exact:
        return replace(item, word=decide_exact(item.effect, margin, better))
    word = decide(item.effect, margin=margin, better=better, p=p, interval=item.interval, alpha=this.plan.alpha)
    return replace(item, word=word)


def _power(this: Comparison, a: ByBoot, b: ByBoot) -> dict[str, Any]:
    """What so many boots can show of one ratio, from its spread between boots, and the boots that the margin takes."""
    base = pooled(list(a.values()))
    arms = [[_effect(this, base, pooled([c])) for c in arm.values() if c[1] > 0] for arm in (a, b)]
    sd, margin, alpha = pooled_sd(*arms), this.metric.margin, this.plan.alpha
    if not sd or min(map(len, arms)) < SPREAD_FROM:
        return {}
    return {
        "smallest_effect": smallest_effect_unblocked(sd, len(arms[0]), len(arms[1]), alpha, margin),
        "blocks_needed": boots_needed_unblocked(margin, sd, alpha) if margin else None,
        "needed_effect": margin or None,
        "needed_unit": "boots an arm",
    }


def _notes(
    this: Comparison, judged: Sequence[_Item], shown: _Item, word: Word, unread: Sequence[str], least: float | None
) -> list[str]:
    alike = [item for item in judged if item.word == word]
    notes = []
    if len(judged) > 1 and word != "equivalent":
        notes.append(f"{this.metric.key}: {len(alike)} of {len(judged)} items {word}, shown: {shown.name}")
    if this.metric.better == "same" and word == "regressed":
        notes.append("acceptance is synthetic: the rates are asked for, so that any change is a fault")
    if least is not None and word == "inconclusive":
        notes.append(f"with so few boots the permutation cannot go below p={least:.2g}")
    if unread:
        notes.append(f"{this.metric.key}: no draft got to {', '.join(unread[:3])}{' ...' if len(unread) > 3 else ''}")
    return notes


def _by_item(observed: Mapping[int, list[Observation]]) -> dict[str, dict[int, Counts]]:
    found: dict[str, dict[int, Counts]] = {}
    for boot, seen in observed.items():
        for o in seen:
            if o.raw is not None and len(o.raw) == 2:
                found.setdefault(o.item or "", {})[boot] = (o.raw[0], o.raw[1])
    return found


def pooled_or_none(boots: ByBoot) -> float | None:
    """The ratio, or None where nothing was counted."""
    return pooled(list(boots.values())) if any(below > 0 for _, below in boots.values()) else None
