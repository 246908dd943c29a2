"""What replies to long prompts show that a share hides: texts that are not sound, and needles lost one at a time.

One reply in fifty with a leaked control token is inside the margin of the share, and a fault all the same. A needle
that is lost by a request alone is no effect of the batch (measurement.md section 6.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from dsbench.evidence import BootEvidence
from dsbench.probes.coherence import UNSEEN
from dsbench.records import Observation, Plan

CLEAN = "coherence.clean"
NOT_ALIKE = "not asked alike"
"""How a row says that its arms were asked for different things; no number of blocks mends that."""
ALONE = "c1 "
"""Beginning of the items that were asked one at a time."""
LEAST_RECALL = 0.5
"""Share of needles below which a baseline has too little to lose."""


def asked_apart(arms: Sequence[str], observed: Sequence[Mapping[int, Sequence[Observation]]]) -> str:
    """Why replies of two arms say nothing of leaks: control tokens are shown in some, and hidden in others; '' where
    all are alike. `observed` holds the readings of `coherence.clean` of each arm, by boot."""
    shown = [[not _hidden(o) for seen in boots.values() for o in seen] for boots in observed]
    if len({*shown[0], *shown[1]}) < 2:
        return ""
    told = " and ".join(f"{sum(of)} of {len(of)} replies of {arm}" for arm, of in zip(arms, shown, strict=True))
    return (
        f"{NOT_ALIKE}: control tokens are shown in {told}; elsewhere the server refused skip_special_tokens=false, so "
        "that a leak would not be seen"
    )


def _hidden(reply: Observation) -> bool:
    return (reply.text or "").startswith(f"{UNSEEN}: ")


def coherence_findings(plan: Plan, boots: Sequence[BootEvidence]) -> Iterator[str]:
    """Lines for each arm that wrote unsound text or whose server hides control tokens, for each candidate that loses
    alone what the baseline recalls, and for a baseline that recalls too little to show a loss."""
    for arm in plan.arms:
        replies = [o for b in boots if b.planned.arm == arm.name for o in b.readings.get(CLEAN, ())]
        hidden = sum(map(_hidden, replies))
        if hidden:
            yield (
                f"leaked control tokens cannot be seen in {hidden} of {len(replies)} replies of {arm.name}: its server "
                "refuses skip_special_tokens and takes them out of the text"
            )
        unsound = Counter((o.text or "").removeprefix(f"{UNSEEN}: ").partition(":")[0] for o in replies if o.value == 0)
        if unsound:
            told = ", ".join(f"{reason} {count}" for reason, count in unsound.most_common())
            yield f"finding, incoherent text: {arm.name} in {unsound.total()} of {len(replies)} replies: {told}"
    needles = [
        o.value == 1
        for b in boots
        if b.planned.arm == plan.baseline.name
        for o in b.readings.get("coherence.recall", ())
    ]
    if needles and sum(needles) < LEAST_RECALL * len(needles):
        yield (
            f"finding, the baseline itself recalls {sum(needles)} of {len(needles)} needles: little is left to lose, "
            "so take shorter prompts or another model"
        )
    steady = _always(boots, plan.baseline.name)[1]
    for arm in plan.arms[1:]:
        asked, recalled = _always(boots, arm.name)
        both = steady & asked
        lost = sorted(both - recalled)
        if lost:
            yield (
                f"finding, needles lost alone: {arm.name} loses {len(lost)} of {len(both)} that "
                f"{plan.baseline.name} recalls with one request at a time, the first is {lost[0]}"
            )


def _always(boots: Sequence[BootEvidence], arm: str) -> tuple[set[str], set[str]]:
    """Needles asked for alone that an arm has answers for, and those that every boot recalled."""
    mine = [o for b in boots if b.planned.arm == arm for o in b.readings.get("coherence.recall", ())]
    alone = [o for o in mine if o.item and o.item.startswith(ALONE)]
    asked = {str(o.item) for o in alone}
    return asked, asked - {str(o.item) for o in alone if o.value != 1}
