"""KV readings of several boots: which were cold, and whether one more boot says anything."""

from __future__ import annotations

from statistics import fmean
from typing import Any, Literal

from dsbench.checks.answer import Answer, Input, Share, Some, read
from dsbench.decide import decide
from dsbench.errors import InputError
from dsbench.stats.unblocked import compare_unblocked, smallest_p
from dsbench.table_steps import BOOTS_TO_SEE_SPREAD

CacheState = Literal["cold", "warm", "unknown"]
COLD = ("torch.compile takes", "compiling a graph", "graph compiled in")
WARM = ("load aot compilation", "directly load", "loaded from", "cache hit")
ALPHA = 0.05


def cache_state(log_line: str | None) -> CacheState:
    """Cold if a graph was compiled, warm if it was loaded, unknown if neither was printed."""
    text = (log_line or "").lower()
    if any(mark in text for mark in WARM):
        return "warm"
    return "cold" if any(mark.lower() in text for mark in COLD) else "unknown"


class _Boot(Input):
    arm: str
    available_kv_gib: float
    log_line: str | None = None


class _Boots(Input):
    boots: Some[_Boot]
    rank_peaks_gib: dict[str, float] | None = None
    kv_tokens_before_after: Share | None = None


def first_boot_reads_less_kv(content: Any) -> Answer:
    """Cold boots left out, the verdict of what remains, and the rank whose peak stands out."""
    given = read(_Boots, content)
    states = [cache_state(boot.log_line) for boot in given.boots]
    cold = [index for index, state in enumerate(states) if state == "cold"]
    used: dict[str, list[float]] = {boot.arm: [] for boot in given.boots}
    for index, boot in enumerate(given.boots):
        if index not in cold:
            used[boot.arm].append(boot.available_kv_gib)
    figures: dict[str, Any] = {"cache_state": states, "boots_excluded_indices": cold, "verdict": _verdict(used)}
    found = [f"boot {index} is cold: compilation is booked as activation peak, so it is left out" for index in cold]
    if peaks := given.rank_peaks_gib:
        top, usual = max(peaks, key=peaks.__getitem__), min(peaks.values())
        stands_out = peaks[top] > usual
        figures["rank_with_excess_peak"] = top if stands_out else None
        figures["excess_peak_gib"] = peaks[top] - usual
        found += [f"rank {top} peaks {peaks[top] - usual:.2f} GiB above the others"] if stands_out else []
    if given.kv_tokens_before_after:
        before, after = given.kv_tokens_before_after
        if before <= 0 or after < 0:
            raise InputError(
                f"kv_tokens_before_after: should be tokens before, above 0, and after; got {before}, {after}"
            )
        figures["token_loss_percent"] = 100 * (before - after) / before
    return Answer(figures, found)


def _verdict(used: dict[str, list[float]]) -> str:
    arms = list(used.values())
    if len(arms) != 2 or not all(arms):
        return "inconclusive"
    tests = compare_unblocked(arms[0], arms[1], 0.90)
    p = tests.p_if_it_fires(ALPHA)
    return decide(
        tests.difference, margin=0.0, better="up", p=p, interval=tests.interval, alpha=ALPHA, parted=tests.parted(ALPHA)
    )


class _Swing(Input):
    A: Some[float]
    B: Some[float]


def kv_swing_between_boots(content: Any) -> Answer:
    """The boots of B against the range of A's."""
    given = read(_Swing, content)
    low, high = min(given.A), max(given.A)
    inside = all(low <= value <= high for value in given.B)
    tests = compare_unblocked(given.A, given.B, 0.90)
    p = tests.p_if_it_fires(ALPHA)
    delta = fmean(given.B) - fmean(given.A)
    word = decide(delta, margin=0.0, better="up", p=p, interval=tests.interval, alpha=ALPHA, parted=tests.parted(ALPHA))
    figures = {
        "range_gib": high - low,
        "b_inside_range_of_a": inside,
        "verdict": word,
        "boots_per_arm_to_see_spread": BOOTS_TO_SEE_SPREAD,
        "smallest_p_reachable_exact": smallest_p(len(given.A), len(given.B)),
    }
    told = f"A alone spans {high - low:.2f} GiB: {len(given.A)}+{len(given.B)} boots say nothing of B"
    return Answer(figures, [told] if word == "inconclusive" else [])
