"""Acceptance that is too good: a draft that is hardly ever rejected points to a verifier that does not verify.

A stale or wrong draft distribution can raise acceptance while the output stops following the target
(deepseek_v4_dspark.md section 4), so a rise is looked at as hard as a fall.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsbench.evidence import BootEvidence
from dsbench.probes.acceptance import GREEDY, KINDS, SAMPLED
from dsbench.records import Plan

NEAR_BOUND = 0.95
"""Share of the drafts, and of the last draft, from which acceptance is at its bound."""
CERTAIN_POSITION = 0.999


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
    """One line for each arm and kind of text whose sampled drafts are accepted as if nothing was verified."""
    if plan.probes.acceptance is None or any(m.better == "same" for m in plan.metrics):
        return
    for arm in plan.arms:
        mine = [boot for boot in boots if boot.planned.arm == arm.name]
        for kind in KINDS:
            rates = {name: _pooled(mine, "accept.rate", f"{kind} {name}") for name in (GREEDY, SAMPLED)}
            sampled, greedy = rates[SAMPLED], rates[GREEDY]
            if sampled is None or sampled <= NEAR_BOUND:
                continue
            if greedy is not None and greedy >= sampled:
                continue
            beside = f", {greedy:.3f} greedy" if greedy is not None else ""
            yield (
                f"finding, acceptance too good: {arm.name} accepts {sampled:.3f} of its drafts of {kind} at "
                f"temperature 1{beside}; look at output_law before any claim"
            )


def law_findings(plan: Plan, boots: Sequence[BootEvidence]) -> Iterator[str]:
    """A baseline that fails the output law is nothing to be compared with."""
    mine = [boot for boot in boots if boot.planned.arm == plan.baseline.name]
    failed = [o for boot in mine for o in boot.readings.get("output_law", ()) if o.value == 0]
    if failed:
        yield (
            f"finding, the baseline itself fails output_law ({failed[0].item}: {failed[0].text}): "
            "an equivalent candidate fails it too"
        )


def _pooled(boots: Sequence[BootEvidence], metric: str, item: str) -> float | None:
    raws = [o.raw for boot in boots for o in boot.readings.get(metric, ()) if o.item == item and o.raw]
    below = sum(raw[1] for raw in raws)
    return sum(raw[0] for raw in raws) / below if below else None
