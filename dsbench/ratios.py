"""The verdict row of a counter-ratio: many items in one row, decided by the worst of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from dsbench.claims import EXACT
from dsbench.decide import decide, decide_exact
from dsbench.probes.acceptance import GREEDY
from dsbench.records import Observation, Verdict, Word
from dsbench.sample_row import ALONE, SPREAD_FROM
from dsbench.stats.holm import holm
from dsbench.stats.power import smallest_effect, smallest_effect_unblocked
from dsbench.stats.ratios import Counts, permutation_p, pooled, smallest_p
from dsbench.stats.samples import Interval, interval, sign_flip_p
from dsbench.stats.samples import smallest_p as smallest_sign_flip_p
from dsbench.stats.unblocked import pooled_sd

if TYPE_CHECKING:
    from dsbench.comparison import Comparison

RANKING: tuple[Word, ...] = ("regressed", "inconclusive", "improved", "equivalent")

UNBOUNDED = Interval(-math.inf, math.inf, 1.0)

ByBoot = Mapping[int, Counts]


@dataclass(frozen=True)
class _Item:
    """One ratio in both arms."""

    name: str
    a: ByBoot
    b: ByBoot
    """Counts of the baseline's boots and of the candidate's."""
    exact: bool
    """Greedy, and all boots of each arm counted the same; or both arms counted the same in every block."""
    logs: bool
    """Whether steps are logarithms of ratios, so that levels of blocks do not matter; else they are in the margin's
    own terms: differences, or fractions of the baseline."""
    steps: list[float]
    """The change in each block that has counts in both arms."""

    @property
    def baseline(self) -> float:
        return pooled(list(self.a.values()))

    @property
    def counts(self) -> float:
        """The smaller of the arms' denominators."""
        return min(sum(below for _, below in counts.values()) for counts in (self.a, self.b))

    def outward(self, step: float) -> float:
        return math.expm1(step) if self.logs else step

    def inward(self, change: float) -> float:
        return math.log1p(change) if self.logs else change


@dataclass(frozen=True)
class _Judged:
    """What is said of one item."""

    item: _Item
    effect: float
    """Change in the margin's own terms: a difference, or a fraction of the baseline."""
    p: float
    """After Holm; 0 where counts are compared for equality."""
    interval: Interval
    word: Word


def compare_ratios(
    this: Comparison,
    baseline: Mapping[int, list[Observation]],
    candidate: Mapping[int, list[Observation]],
    blocks: Mapping[int, int | None],
) -> Verdict:
    """Exact where greedy counts repeat in every boot of an arm; otherwise tested, with Holm over the items.

    Boots of one block have the same seeds: sampled counts that are the same in every block are the same, and what
    differs is paired by sign flips over blocks. Where so few blocks cannot say anything of so many items, boots are
    permuted between the arms. A row is regressed if one item is; its figures are those of the item that decided: of
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
    pairs = min((len(item.steps) for item in tested), default=0)
    # Holm takes the smallest p of all tested items times their number.
    many = max(len(tested), 1)
    paired = pairs > 0 and many * smallest_sign_flip_p(pairs) <= this.plan.alpha
    least = smallest_sign_flip_p(pairs) if paired else smallest_p(len(baseline), len(candidate))
    least = min(1.0, least * many)
    adjusted = dict(zip((item.name for item in tested), holm([_p(item, paired) for item in tested]), strict=True))
    judged = [_judged(this, item, paired, adjusted.get(item.name, 0.0)) for item in items]
    word = next(word for word in RANKING if any(one.word == word for one in judged))
    claims = word in ("improved", "regressed")
    shown = max(
        (one for one in judged if one.word == word),
        key=lambda one: (-one.p if claims else 0.0, abs(one.effect) * sqrt(one.item.counts)),
    )
    item, fires = shown.item, least <= this.plan.alpha
    bounded = shown.interval.attained < 1 and not item.exact
    absolute = this.metric.absolute
    delta = shown.effect if absolute else shown.effect * item.baseline
    return this.row(
        word,
        baseline=item.baseline,
        candidate=item.baseline + delta,
        delta=delta,
        relative=delta / item.baseline if item.baseline else None,
        n_baseline=len(baseline),
        n_candidate=len(candidate),
        blocks=len(item.steps),
        test=_test(item, paired, bounded),
        p=shown.p if fires and not item.exact else None,
        smallest_p=None if item.exact else least,
        interval=(shown.interval.low, shown.interval.high) if bounded else None,
        interval_of="difference" if absolute else "relative",
        confidence=shown.interval.attained if bounded else None,
        notes=_notes(this, judged, shown, unread, least, fires or not tested),
        **(_power(this, item, paired, many) if word != "equivalent" and not item.exact else {}),
    )


def _item(this: Comparison, name: str, a: ByBoot, b: ByBoot, blocks: Mapping[int, int | None]) -> _Item:
    repeats = len(set(a.values())) == 1 and len(set(b.values())) == 1
    of_a, of_b = ({block: arm[n] for n in arm if (block := blocks[n]) is not None} for arm in (a, b))
    both = [(of_a[block], of_b[block]) for block in of_a if block in of_b]
    ratios = [(pooled([x]), pooled([y])) for x, y in both if x[1] > 0 and y[1] > 0]
    logs = not this.metric.absolute and all(x > 0 and y > 0 for x, y in ratios)
    base = pooled(list(a.values()))
    return _Item(
        name=name,
        a=a,
        b=b,
        exact=(repeats and f" {GREEDY}" in name) or (bool(of_a) and of_a == of_b),
        logs=logs,
        steps=[math.log(y / x) if logs else _effect(this, base, y - x) for x, y in ratios],
    )


def _effect(this: Comparison, base: float, difference: float) -> float:
    return difference if this.metric.absolute or not base else difference / base


def _p(item: _Item, paired: bool) -> float:
    return sign_flip_p(item.steps) if paired else permutation_p(list(item.a.values()), list(item.b.values()))


def _judged(this: Comparison, item: _Item, paired: bool, p: float) -> _Judged:
    """The effect is what the test is of: the mean of the blocks, or the difference of the pooled ratios."""
    plan, metric = this.plan, this.metric
    effect = _effect(this, item.baseline, pooled(list(item.b.values())) - item.baseline)
    if item.exact:
        return _Judged(item, effect, p, UNBOUNDED, decide_exact(effect, metric.margin, metric.better))
    if paired:
        effect = item.outward(fmean(item.steps))
    span = interval(item.steps, plan.equivalence_confidence) if item.steps else UNBOUNDED
    if span.attained < 1:
        span = Interval(item.outward(span.low), item.outward(span.high), span.attained)
    word = decide(effect, margin=metric.margin, better=metric.better, p=p, interval=span, alpha=plan.alpha)
    return _Judged(item, effect, p, span, word)


def _test(item: _Item, paired: bool, bounded: bool) -> str:
    if item.exact:
        return "equal counts"
    if paired:
        return f"sign-flip over blocks, Holm over items, {'log ratio' if item.logs else 'difference'}"
    return f"permutation of boots, Holm over items{'; interval over blocks' if bounded else ''}"


def _power(this: Comparison, item: _Item, paired: bool, many: int) -> dict[str, Any]:
    """What so many blocks or boots can show of one ratio among `many`, from its spread, and what the margin takes."""
    alpha, margin = this.level / many, this.metric.margin
    power: dict[str, Any] = {}
    if len(item.steps) >= SPREAD_FROM:
        sd, inner = stdev(item.steps), item.inward(margin)
        power = this.needs_of_blocks(sd, inner, 0.0, 0.0) | {"needed_effect": margin or None}
        if paired:
            seen = smallest_effect(sd, len(item.steps), alpha, inner)
            return {"smallest_effect": None if seen is None else item.outward(seen), **power}
    base = item.baseline
    arms = [[_effect(this, base, pooled([c]) - base) for c in arm.values() if c[1] > 0] for arm in (item.a, item.b)]
    between = pooled_sd(*arms)
    if not between or min(map(len, arms)) < SPREAD_FROM:
        return power
    seen = smallest_effect_unblocked(between, len(arms[0]), len(arms[1]), alpha, margin)
    return {"smallest_effect": seen, **(power or this.needs_of_boots(between, margin, 0.0, 0.0))}


def _notes(
    this: Comparison, judged: Sequence[_Judged], shown: _Judged, unread: Sequence[str], least: float, fires: bool
) -> list[str]:
    word, alike = shown.word, [one for one in judged if one.word == shown.word]
    notes = []
    if len(judged) > 1 and word != "equivalent":
        notes.append(f"{this.metric.key}: {len(alike)} of {len(judged)} items {word}, shown: {shown.item.name}")
    if this.metric.better == "same" and word == "regressed":
        notes.append("acceptance is synthetic: the rates are asked for, so that any change is a fault")
    if not fires and word == "inconclusive":
        notes.append(f"with so few boots the permutation cannot go below p={least:.2g}")
    elif word == "inconclusive" and not shown.item.exact and least > this.level + EXACT:
        notes.append(ALONE)
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
