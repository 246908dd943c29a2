"""The verdict row of a sample: one value a boot, compared inside blocks, or between arms where there are none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from dsbench.comparison import Comparison, Numbers
from dsbench.decide import decide
from dsbench.floors import Floor
from dsbench.records import Verdict
from dsbench.stats.power import boots_to_fire, smallest_effect, smallest_effect_unblocked
from dsbench.stats.samples import Interval, blocks_to_fire, interval, sign_flip_p, smallest_p
from dsbench.stats.unblocked import compare_unblocked, pooled_sd

SPREAD_FROM = 4
"""Blocks, or boots an arm, from which their spread is worth extrapolating from; of two or three it is luck."""


def compare_samples(
    this: Comparison,
    baseline: Mapping[int, float],
    candidate: Mapping[int, float],
    blocks: Mapping[int, int | None],
    notes: list[str],
) -> Verdict:
    """Values by boot. Boots of one block are paired; boots that belong to none are compared as two groups."""
    a, b = _by_block(baseline, blocks), _by_block(candidate, blocks)
    common = sorted(a.keys() & b.keys())
    if common:
        return _blocked(this, [a[block] for block in common], [b[block] for block in common], notes)
    if any(blocks[boot] is None for boot in (*baseline, *candidate)):
        return _unblocked(this, list(baseline.values()), list(candidate.values()), notes)
    return this.row("not-run", notes=[*notes, "no block has a reading in both arms"])


def _blocked(this: Comparison, a: Numbers, b: Numbers, notes: list[str]) -> Verdict:
    """Sign-flip test and interval over the blocks that have both arms."""
    plan, scale = this.plan, _Scale(this, a, b)
    steps = [y - x for x, y in zip(scale.a, scale.b, strict=True)]
    n, least = len(steps), smallest_p(len(steps))
    span = interval(steps, plan.equivalence_confidence)
    p = sign_flip_p(steps) if least <= plan.alpha else None
    sd, notes = stdev(steps) if n >= SPREAD_FROM else None, list(notes)
    if p is None:
        need = blocks_to_fire(plan.alpha)
        notes.append(f"at {n} blocks the test cannot go below p={least:.4g}; improved or regressed needs {need}")
    floor = _floor(this, scale.logs)
    if sd is None and floor is not None:
        sd = floor.paired
        notes.append("spread of the blocks from the stored floor")
    power: dict[str, Any] = {}
    if sd is not None:
        power = scale.outward_all(
            {
                "smallest_effect": smallest_effect(sd, n, plan.alpha, scale.margin),
                **this.needs_of_blocks(sd, scale.margin, scale.claimed(this), abs(fmean(steps))),
            }
        )
    row = scale.row(this, fmean(steps), span, p, least, notes, "sign-flip over blocks", {"blocks": n, **power})
    if floor is not None and row.word in ("improved", "regressed") and abs(fmean(steps)) <= floor.noise(n):
        told = f"{row.word} by its blocks alone, and no claim: A/A experiments of {n} blocks move as far (the floor)"
        row = row.model_copy(update={"word": "inconclusive", "notes": [*row.notes, told]})
    return row


def _unblocked(this: Comparison, a: Numbers, b: Numbers, notes: list[str]) -> Verdict:
    """Mann-Whitney, or with ties the permutation test, over boots that belong to no block."""
    plan, scale = this.plan, _Scale(this, a, b)
    tests = compare_unblocked(scale.a, scale.b, plan.equivalence_confidence)
    p, parted = tests.p_if_it_fires(plan.alpha), tests.parted(plan.alpha)
    sd, notes = pooled_sd(scale.a, scale.b) if min(len(a), len(b)) >= SPREAD_FROM else None, list(notes)
    if p is None:
        need = boots_to_fire(plan.alpha)
        notes.append(
            f"at {len(a)}+{len(b)} boots the test cannot go below p={tests.smallest_p:.4g}; improved or regressed "
            f"needs {need} an arm"
        )
    if parted:
        notes.append(parted)
    power: dict[str, Any] = {}
    if sd is not None:
        power = scale.outward_all(
            {
                "smallest_effect": smallest_effect_unblocked(sd, len(a), len(b), plan.alpha, scale.margin),
                **this.needs_of_boots(sd, scale.margin, scale.claimed(this), abs(tests.difference)),
            }
        )
    return scale.row(this, tests.difference, tests.interval, p, tests.smallest_p, notes, tests.test, power, parted)


class _Scale:
    """Logarithms where all values are positive, so that differences are ratios; else the values themselves."""

    def __init__(self, this: Comparison, a: Numbers, b: Numbers) -> None:
        self.n = (len(a), len(b))
        self.logs = min(*a, *b) > 0
        self.a = [math.log(x) for x in a] if self.logs else list(a)
        self.b = [math.log(x) for x in b] if self.logs else list(b)
        self.base = math.exp(fmean(self.a)) if self.logs else fmean(a)
        # The margin is a fraction of the baseline; where ratios make no sense it is one of the baseline's size.
        self.margin_outward = this.margin(self.base) if self.logs else this.margin_in_unit(self.base)
        self.margin = math.log1p(self.margin_outward) if self.logs else self.margin_outward

    def outward(self, step: float) -> float:
        """A difference on this scale as a fraction of the baseline, or in the unit."""
        return math.expm1(step) if self.logs else step

    def outward_all(self, power: dict[str, Any]) -> dict[str, Any]:
        """Fields of a row, with the effects among them as fractions of the baseline, or in the unit."""
        effects = {key: power[key] for key in ("smallest_effect", "needed_effect")}
        return power | {key: None if step is None else self.outward(step) for key, step in effects.items()}

    def claimed(self, this: Comparison) -> float:
        """The change that is claimed, on this scale; 0 without one."""
        claimed = this.claimed(self.base) or 0.0
        return math.log1p(claimed) if self.logs else claimed * abs(self.base)

    def row(
        self,
        this: Comparison,
        centre: float,
        span: Interval,
        p: float | None,
        least: float,
        notes: list[str],
        test: str,
        more: dict[str, Any],
        parted: str = "",
    ) -> Verdict:
        bounded = math.isfinite(span.low)
        ends = (self.outward(span.low), self.outward(span.high)) if bounded else None
        effect = self.outward(centre)
        word = decide(
            effect,
            margin=self.margin_outward,
            better=this.metric.better,
            p=p,
            interval=Interval(*ends, span.attained) if ends else None,
            alpha=this.plan.alpha,
            parted=parted,
        )
        if word == "inconclusive" and "smallest_effect" not in more:
            notes = [*notes, "no spread to tell the boots needed from: run 4 blocks, or store a floor (dsbench aa)"]
        return this.row(
            word,
            kind="sample",
            test=f"{test}, {'log ratio' if self.logs else 'difference'}",
            baseline=self.base,
            candidate=self.base * math.exp(centre) if self.logs else self.base + centre,
            delta=self.base * effect if self.logs else effect,
            relative=effect if self.logs else (effect / self.base if self.base else None),
            n_baseline=self.n[0],
            n_candidate=self.n[1],
            p=p,
            smallest_p=least,
            interval=ends,
            interval_of="relative" if self.logs else "difference",
            confidence=span.attained if bounded else None,
            notes=notes,
            **more,
        )


def _floor(this: Comparison, logs: bool) -> Floor | None:
    """The A/A spread of the differences inside blocks on this machine that the plan holds."""
    for floor in this.plan.floors:
        if (floor.metric, floor.relative) == (this.metric.key, logs) and floor.rank in (this.rank, None):
            return floor
    return None


def _by_block(values: Mapping[int, float], blocks: Mapping[int, int | None]) -> dict[int, float]:
    return {block: value for boot, value in values.items() if (block := blocks[boot]) is not None}
