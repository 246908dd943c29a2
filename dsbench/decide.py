"""Where the words improved, regressed, equivalent, inconclusive and void are decided, for plans and for tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dsbench.records import Word
from dsbench.stats.samples import Interval

Better = Literal["up", "down", "same"]
"""same: the value is asked for, so that any change is a fault."""

SEVERITY: tuple[Word, ...] = ("void", "regressed", "inconclusive", "improved", "equivalent")
"""Anything bad or open wins; improved needs one improvement and nothing open."""


def direction(change: float, better: Better) -> Word:
    """What a change means that is real and large enough to matter."""
    if better == "same":
        return "regressed"
    return "improved" if (change > 0) == (better == "up") else "regressed"


def decide_exact(change: float, margin: float, better: Better) -> Word:
    """For values that repeat to the last bit: equal up to the margin, or not."""
    return direction(change, better) if abs(change) > margin else "equivalent"


def decide(
    effect: float,
    *,
    margin: float,
    better: Better,
    p: float | None,
    interval: Interval | None,
    alpha: float,
    parted: str = "",
) -> Word:
    """For values with noise. `effect`, `margin` and the 90 % `interval` are in the same terms.

    improved and regressed need p <= alpha and an effect beyond the margin; equivalent needs the whole interval
    inside the margin. `p` is None where no test was made, or where it could not have fired at this n. `parted` says
    why a test's direction is not that of the effect; then there is none to claim.
    """
    if p is not None and p <= alpha and abs(effect) > margin and not parted:
        return direction(effect, better)
    if interval is not None and interval.inside(margin):
        return "equivalent"
    return "inconclusive"


def worst(words: Sequence[Word]) -> Word:
    """One word for several. A row that was not run passes nothing, and neither do no rows at all."""
    plain: list[Word] = ["void" if word == "not-run" else word for word in words]
    return next((word for word in SEVERITY if word in plain), "void")


def overall(primary: Sequence[Word], guards: Sequence[Word], void: bool) -> Word:
    """Any void reason: void; else a regressed primary or guard: regressed; else the primary's word."""
    if void:
        return "void"
    if "regressed" in (*primary, *guards):
        return "regressed"
    return worst(primary)
