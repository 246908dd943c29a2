"""Effects of toggles over the arms of a matrix: exact contrasts of bytes, paired contrasts of samples by block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from dsbench.evidence import BootEvidence
    from dsbench.matrices import Matrix
    from dsbench.metrics import Metric
    from dsbench.records import Plan

Cell = frozenset[str]
"""The factors that are on."""
Values = Mapping[Cell, float]


class Effect(BaseModel):
    """What one toggle, or two of them together, do to one metric."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["main", "interaction", "step", "given the rest"]
    """main: on minus off, averaged over the states of the others. interaction: two together minus the sum of each.
    step: one more rung of a ladder. given the rest: all on minus all but these."""
    toggles: list[str]
    mixed_with: str = ""
    """What a half factorial cannot tell it from, as it is in the estimate: `minus half of b x c`, `plus c x d`."""
    estimate: float
    """In the metric's unit; for samples a fraction of the baseline."""
    low: float | None = None
    """Least of the differences that were averaged, for exact metrics."""
    high: float | None = None
    p: float | None = None
    """Two-sided, of the sign-flip test over blocks; not corrected for the number of effects."""
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    blocks: int = 0


class MetricEffects(BaseModel):
    """All effects on one metric."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    metric: str
    unit: str
    rank: int | None
    exact: bool
    """Whether the figures are differences of values that every boot repeats."""
    additive: bool | None = None
    """Of exact metrics: whether every arm reads the baseline plus the sum of its toggles; None if too few arms ran."""
    effects: list[Effect]


@dataclass(frozen=True)
class Contrast:
    """Sums of arms minus sums of arms; the effect is their total over `divisor`."""

    kind: Literal["main", "interaction", "step", "given the rest"]
    toggles: tuple[str, ...]
    terms: list[tuple[list[Cell], list[Cell]]]
    divisor: int
    mixed_with: str = ""

    def differences(self, values: Values) -> list[Fraction]:
        """One exact number a term."""
        return [
            sum((Fraction(values[cell]) for cell in plus), Fraction(0)) - sum(Fraction(values[cell]) for cell in minus)
            for plus, minus in self.terms
        ]

    def estimate(self, values: Values) -> Fraction:
        return sum(self.differences(values), Fraction(0)) / self.divisor


def effects(plan: Plan, boots: Sequence[BootEvidence]) -> list[MetricEffects]:
    """Effects on every exact and sample metric that is a number; `boots` are the measured ones that ended well.

    Exact metrics that no toggle moves are left out. Items and counter-ratios have verdict rows only.
    """
    if plan.matrix is None:
        return []
    cells = {arm.name: frozenset(arm.toggles) for arm in plan.arms}
    chosen = contrasts(plan.matrix, list(cells.values()))
    if not chosen:
        return []
    found = []
    for metric in plan.metrics:
        if metric.kind not in ("exact", "sample"):
            continue
        ranks = {rank for boot in boots for rank in boot.ranks.get(metric.key, ())}
        for rank in sorted(ranks, key=lambda rank: -1 if rank is None else rank):
            readings = _readings(boots, metric.key, rank)
            of_cell = {cells[arm]: by_boot for arm, by_boot in readings.items()}
            if set(of_cell) != set(cells.values()):
                continue
            steady = all(len(set(values)) == 1 for values in of_cell.values())
            if metric.kind == "exact" and steady:
                made = _exact(metric, rank, chosen, {cell: values[0] for cell, values in of_cell.items()})
            else:
                made = _sampled(plan, metric, rank, chosen, _by_block(boots, cells, metric.key, rank))
            if made:
                found.append(made)
    return found


# --- contrasts ------------------------------------------------------------------------------------------------------


def contrasts(matrix: Matrix, cells: Sequence[Cell]) -> list[Contrast]:
    """What the arms of a matrix can tell beyond each arm against the baseline."""
    factors = matrix.factors
    if matrix.kind == "ladder":
        rungs = [frozenset(factors[:n]) for n in range(len(factors) + 1)]
        return [
            Contrast("step", (factor,), [([above], [below])], 1)
            for factor, below, above in zip(factors, rungs, rungs[1:], strict=False)
        ]
    if matrix.kind == "leave-one-out":
        everything = frozenset(factors)
        kept = [cell for cell in cells if cell and cell != everything]
        return [
            Contrast("given the rest", tuple(f for f in factors if f not in cell), [([everything], [cell])], 1)
            for cell in kept
        ]
    if matrix.kind == "full":
        return _matched(factors, set(cells))
    if matrix.kind == "half":
        return _fractional(factors, cells)
    return []


def _matched(factors: Sequence[str], cells: set[Cell]) -> list[Contrast]:
    """Effects from arms that differ in nothing else; in a complete factorial the usual contrasts."""
    found = []
    for factor in factors:
        without = [cell for cell in cells if factor not in cell and cell | {factor} in cells]
        if without:
            terms = [([cell | {factor}], [cell]) for cell in without]
            found.append(Contrast("main", (factor,), terms, len(terms)))
    for pair in combinations(factors, 2):
        a, b = pair
        without = [c for c in cells if not c & {a, b} and {c | {a}, c | {b}, c | {a, b}} <= cells]
        if without:
            terms = [([c | {a, b}, c], [c | {a}, c | {b}]) for c in without]
            found.append(Contrast("interaction", pair, terms, len(terms)))
    return found


def _fractional(factors: Sequence[str], cells: Sequence[Cell]) -> list[Contrast]:
    """Effects from a half factorial, each mixed with that of all the other factors together (told up to two).

    How much of it an effect holds is what its contrast makes of values in which nothing else is at work.
    """
    found, n = [], len(cells)
    kinds: tuple[Literal["main", "interaction"], ...] = ("main", "interaction")
    for size, kind in enumerate(kinds, start=1):
        for chosen in combinations(factors, size):
            others = [factor for factor in factors if factor not in chosen]
            if size == 2 and len(others) == 1:
                continue  # it is the main effect of the third factor, told there
            plus = [cell for cell in cells if (len(cell & set(chosen)) - size) % 2 == 0]
            minus = [cell for cell in cells if cell not in plus]
            contrast = Contrast(kind, chosen, [(plus, minus)], n // 2 // size)
            if len(others) == 2:
                share = contrast.estimate({cell: float(cell >= set(others)) for cell in cells})
                how = {Fraction(-1, 2): "minus half of", Fraction(1): "plus"}[share]
                contrast = replace(contrast, mixed_with=f"{how} {' x '.join(others)}")
            found.append(contrast)
    return found


# --- exact ----------------------------------------------------------------------------------------------------------


def _exact(metric: Metric, rank: int | None, chosen: Sequence[Contrast], values: Values) -> MetricEffects | None:
    if len(set(values.values())) == 1:
        return None
    made = []
    for contrast in chosen:
        parts = contrast.differences(values)
        several = len(parts) > 1
        made.append(
            Effect(
                kind=contrast.kind,
                toggles=list(contrast.toggles),
                mixed_with=contrast.mixed_with,
                estimate=float(contrast.estimate(values)),
                low=float(min(parts)) if several else None,
                high=float(max(parts)) if several else None,
            )
        )
    return MetricEffects(
        metric=metric.key,
        unit=metric.unit,
        rank=rank,
        exact=True,
        additive=_additive(chosen, values),
        effects=made,
    )


def _additive(chosen: Sequence[Contrast], values: Values) -> bool | None:
    """Whether the main effects alone give every arm exactly; None where there is no arm left to check with."""
    mains = {contrast.toggles[0]: contrast.estimate(values) for contrast in chosen if contrast.kind == "main"}
    factors = set().union(*values)
    if not mains or set(mains) != factors or len(values) <= len(factors) + 1:
        return None
    base = Fraction(values[frozenset()])
    return all(base + sum(mains[factor] for factor in cell) == Fraction(value) for cell, value in values.items())


# --- samples --------------------------------------------------------------------------------------------------------


def _sampled(
    plan: Plan, metric: Metric, rank: int | None, chosen: Sequence[Contrast], by_block: Sequence[Values]
) -> MetricEffects | None:
    """One contrast of logarithms a block, tested over blocks as the verdict rows are."""
    from dsbench.stats.samples import interval, sign_flip_p, smallest_p

    if not by_block or min(value for values in by_block for value in values.values()) <= 0:
        return None
    logs = [{cell: math.log(value) for cell, value in values.items()} for values in by_block]
    made = []
    for contrast in chosen:
        steps = [float(contrast.estimate(values)) for values in logs]
        span = interval(steps, plan.equivalence_confidence)
        bounded = math.isfinite(span.low)
        made.append(
            Effect(
                kind=contrast.kind,
                toggles=list(contrast.toggles),
                mixed_with=contrast.mixed_with,
                estimate=math.expm1(fmean(steps)),
                p=sign_flip_p(steps) if smallest_p(len(steps)) <= plan.alpha else None,
                interval=(math.expm1(span.low), math.expm1(span.high)) if bounded else None,
                confidence=span.attained if bounded else None,
                blocks=len(steps),
            )
        )
    return MetricEffects(metric=metric.key, unit=metric.unit, rank=rank, exact=False, effects=made)


# --- readings -------------------------------------------------------------------------------------------------------


def _number(boot: BootEvidence, key: str, rank: int | None) -> float | None:
    values = [o.value for o in boot.readings.get(key, ()) if o.rank == rank]
    return values[0] if len(values) == 1 and isinstance(values[0], int | float) else None


def _readings(boots: Sequence[BootEvidence], key: str, rank: int | None) -> dict[str, list[float]]:
    """Numbers by arm; an arm without one is not there."""
    found: dict[str, list[float]] = {}
    for boot in boots:
        if (value := _number(boot, key, rank)) is not None:
            found.setdefault(boot.planned.arm, []).append(value)
    return found


def _by_block(boots: Sequence[BootEvidence], cells: Mapping[str, Cell], key: str, rank: int | None) -> list[Values]:
    """Numbers by cell, one mapping a block in which every arm has one."""
    found: dict[int, dict[Cell, float]] = {}
    for boot in boots:
        block, value = boot.planned.block, _number(boot, key, rank)
        if block is not None and value is not None:
            found.setdefault(block, {})[cells[boot.planned.arm]] = value
    return [values for _, values in sorted(found.items()) if len(values) == len(set(cells.values()))]
