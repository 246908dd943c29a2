"""Acceptance that is too good: a draft that is hardly ever rejected points to a verifier that does not verify.

A stale or wrong draft distribution can raise acceptance while the output stops following the target
(deepseek_v4_dspark.md section 4), so a rise is looked at as hard as a fall. And baselines that are no measure
themselves: they fail the law of the output, or have so few points, or no right answer, that hardly any can be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from dsbench.evidence import BootEvidence
from dsbench.probes.acceptance import GREEDY, KINDS, RANDOM, SAMPLED
from dsbench.records import Plan

NEAR_BOUND = 0.95
"""Share of the drafts, and of the last draft, from which acceptance is at its bound."""
CERTAIN_POSITION = 0.999
LEAST_POINTS = 0.5
"""Share of the points of tool calls below which a baseline has too little to lose."""
ANSWERS = ("smoke.correct", "gsm8k.correct", "instruction.correct")
"""Metrics of answers that are right or wrong."""
LEAST_ROUNDS = 100
"""Rounds from which a position that was never rejected says something: of 100, a rate of 0.97 has 5 % luck."""


def plausible(
    length: float | None, depth: int, per_position: Sequence[float] | None = None, workload: str = "prose"
) -> str:
    """What a mean acceptance length with `depth` drafts a round is worth; `unknown` if there is none.

    Prose near the bound is a fault; predictable text may be near it without one: counting gives high figures even
    with a draft that has suffered.
    """
    if length is None:
        return "unknown"
    if length > depth + 1 or length < 1:
        return f"impossible ({'above depth + 1' if length > 1 else 'below 1'})"
    if workload != "prose":
        return "not a quality measure (predictable text)"
    certain = any(rate >= CERTAIN_POSITION for rate in per_position or ())
    return "implausible" if certain or length > depth + NEAR_BOUND else "plausible"


def acceptance_findings(plan: Plan, boots: Sequence[BootEvidence]) -> Iterator[str]:
    """One line for each arm, kind of text and temperature whose drafts are accepted as if nothing was verified.

    Of text that is no prose this can be right, so its line is no finding, and arms that say the same share it.
    """
    if plan.probes.acceptance is None or any(m.better == "same" and m.key.startswith("accept.") for m in plan.metrics):
        return
    for arm in plan.arms:
        mine = [boot for boot in boots if boot.planned.arm == arm.name]
        for kind in KINDS:
            for temperature in (GREEDY, SAMPLED):
                why = _above_greedy(mine, kind) if temperature == SAMPLED else None
                if why := why or _at_the_bound(mine, kind, temperature):
                    yield f"finding, acceptance too good: {arm.name} {why}; look at output_law before any claim"
    for kind in (*(kind for kind in KINDS if kind != "prose"), RANDOM):
        for temperature in (GREEDY, SAMPLED):
            told: dict[str, list[str]] = {}
            for arm in plan.arms:
                mine = [boot for boot in boots if boot.planned.arm == arm.name]
                if never := _never_rejected(mine, f"{kind} {temperature}"):
                    told.setdefault(never, []).append(arm.name)
            for never, arms in told.items():
                yield f"{never} in {', '.join(arms)}: predictable, or not verified"


def _above_greedy(boots: Sequence[BootEvidence], kind: str) -> str | None:
    """Sampled drafts are accepted by overlap, greedy ones only where they are the likeliest token."""
    sampled, greedy = (_pooled(boots, "accept.rate", f"{kind} {name}") for name in (SAMPLED, GREEDY))
    if sampled is None or sampled <= NEAR_BOUND or (greedy is not None and greedy >= sampled):
        return None
    beside = f", {greedy:.3f} greedy" if greedy is not None else ""
    return f"accepts {sampled:.3f} of its drafts of {kind} at temperature 1{beside}"


@dataclass(frozen=True)
class _Rounds:
    """Rounds of one kind of text and temperature, over all boots of an arm."""

    number: float
    length: float | None
    rates: list[float]
    """By position."""


def _rounds(boots: Sequence[BootEvidence], item: str) -> _Rounds | None:
    """None where there are too few to tell anything."""
    rounds = sum(raw[1] for raw in _raws(boots, "accept.length", item))
    rates: list[float] = []
    while (rate := _pooled(boots, "accept.per_position", f"{item} k{len(rates)}")) is not None:
        rates.append(rate)
    if rounds < LEAST_ROUNDS or not rates:
        return None
    return _Rounds(rounds, _pooled(boots, "accept.length", item), rates)


def _at_the_bound(boots: Sequence[BootEvidence], kind: str, temperature: str) -> str | None:
    """Length and positions of one kind of text against the depth."""
    item = f"{kind} {temperature}"
    found = _rounds(boots, item)
    if found is None or plausible(found.length, len(found.rates), found.rates, kind) != "implausible":
        return None
    highest = max(range(len(found.rates)), key=found.rates.__getitem__)
    return (
        f"emits {found.length:.3f} tokens a round of {item} with {len(found.rates)} drafts, position {highest} "
        f"accepted in {found.rates[highest]:.4f} of {found.number:g} rounds"
    )


def _never_rejected(boots: Sequence[BootEvidence], item: str) -> str | None:
    """Positions whose drafts were all accepted, of text that a draft may foresee."""
    found = _rounds(boots, item)
    certain = [k for k, rate in enumerate(found.rates) if rate >= CERTAIN_POSITION] if found else []
    if found is None or not certain:
        return None
    least = min(found.rates[k] for k in certain)
    share = "all" if least == 1 else f"{least:.4f} of"
    places = f"position{'s' if len(certain) > 1 else ''} {', '.join(map(str, certain))}"
    return f"{places} accepted in {share} {found.number:g} rounds of {item}"


def law_findings(plan: Plan, boots: Sequence[BootEvidence]) -> Iterator[str]:
    """A baseline that fails the output law is nothing to be compared with."""
    mine = [boot for boot in boots if boot.planned.arm == plan.baseline.name]
    failed = [o for boot in mine for o in boot.readings.get("output_law", ()) if o.value == 0]
    if failed:
        yield (
            f"finding, the baseline itself fails output_law ({failed[0].item}: {failed[0].text}): "
            "an equivalent candidate fails it too"
        )


def toolcall_findings(plan: Plan, boots: Sequence[BootEvidence]) -> Iterator[str]:
    """A baseline that has few points: an item without any cannot be lost."""
    mine = [boot for boot in boots if boot.planned.arm == plan.baseline.name]
    values: dict[str, list[float]] = {}
    for boot in mine:
        for o in boot.readings.get("toolcall.points", ()):
            if o.item is not None and isinstance(o.value, int | float):
                values.setdefault(o.item, []).append(o.value)
    shares = [fmean(seen) for seen in values.values()]
    if shares and sum(shares) < LEAST_POINTS * len(shares):
        yield (
            f"finding, the baseline itself has {sum(shares):.3g} of {len(shares)} points of tool calls: only "
            f"{sum(share > 0 for share in shares)} of the {len(shares)} conversations can lose any"
        )


def answer_findings(plan: Plan, boots: Sequence[BootEvidence]) -> Iterator[str]:
    """A baseline without one right answer: what the candidate does cannot be a loss."""
    mine = [boot for boot in boots if boot.planned.arm == plan.baseline.name]
    for metric in ANSWERS:
        seen = [o for boot in mine for o in boot.readings.get(metric, ()) if o.value is not None]
        if seen and not any(o.value for o in seen):
            yield (
                f"finding, the baseline itself has 0 of {len({o.item for o in seen})} right in {metric}: nothing can "
                "be lost, so take another model, or look at its answers"
            )


def _raws(boots: Sequence[BootEvidence], metric: str, item: str) -> list[list[float]]:
    return [o.raw for boot in boots for o in boot.readings.get(metric, ()) if o.item == item and o.raw]


def _pooled(boots: Sequence[BootEvidence], metric: str, item: str) -> float | None:
    raws = _raws(boots, metric, item)
    below = sum(raw[1] for raw in raws)
    return sum(raw[0] for raw in raws) / below if below else None
