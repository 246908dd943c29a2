"""Tables of single boots: builds beside each other, and ladders of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from dsbench.decide import decide, decide_exact, direction, worst
from dsbench.records import Word
from dsbench.stats.power import boots_normal, boots_to_fire
from dsbench.stats.unblocked import smallest_p
from dsbench.table_input import SingleBoot, Step, Table

MIB_IN_GIB = 1024
BOOTS_TO_SEE_SPREAD = 3
"""Boots an arm from which there is a spread to speak of."""
ROUNDING = 1e-9


@dataclass(frozen=True)
class Judged:
    """What a table of single boots says."""

    word: Word
    detail: str | None
    figures: dict[str, Any]
    lines: list[str]


def judge_builds(table: Table, effects: Sequence[float]) -> Judged:
    """One boot a build: the builds are the declared difference, and no test can fire at 1 + 1."""
    boots = table.boots or []
    gib = [boot.available_kv_gib for boot in boots]
    deltas = _deltas(gib)
    words = [_one_boot_each(table, delta) for delta in deltas]
    sd, spread = stdev(gib), max(gib) - min(gib)
    needed = {f"{effect:g}": boots_normal(effect, sd, table.alpha) for effect in effects if sd}
    figures = {
        "verdict_each_step": words,
        "deltas_gib": deltas,
        "range_gib": spread,
        "range_percent_of_smallest": 100 * spread / min(gib) if min(gib) else None,
        "range_percent_of_mean": 100 * spread / fmean(gib) if fmean(gib) else None,
        "sd_gib": sd,
        **_token_figures(boots),
        "claims_forbidden": _forbidden(table, boots, deltas, words),
        "smallest_p_reachable_exact": smallest_p(1, 1),
        "smallest_effect_visible": None,
        "boots_per_arm_to_see_spread": BOOTS_TO_SEE_SPREAD,
        "boots_per_arm_needed_for_this_test": boots_to_fire(table.alpha),
        "boots_per_arm_for_80_percent_power_normal_approximation": needed,
    }
    word = worst(words)
    told = ", ".join(f"{n:,} for {effect} {table.unit}" for effect, n in needed.items() if n)
    lines = [
        f"{len(boots)} builds, one boot each: {word}. They span {spread:.2f} {table.unit} (sd {sd:.2f}), and a change "
        f"of build cannot be told from one of boot: no test can fire at 1+1 boots, it needs "
        f"{boots_to_fire(table.alpha)} an arm.",
        f"With this spread 80 % power needs, in boots an arm by normal approximation: {told}." if told else "",
    ]
    return Judged(word, "underpowered" if word == "inconclusive" else None, figures, [line for line in lines if line])


def judge_steps(table: Table) -> Judged:
    """A ladder: each step against the one before."""
    steps = table.steps or []
    gib = [step.available_kv_gib for step in steps]
    deltas = _deltas(gib)
    exact = table.repeats_to_the_byte
    total = gib[-1] - gib[0]
    # Many steps inside the margin can be far beyond it together.
    judged = [_exact(table, delta) if exact else _one_boot_each(table, delta) for delta in (*deltas, total)]
    words = judged[:-1]
    figures: dict[str, Any] = {
        "verdict_each_step": words,
        "deltas_gib": deltas,
        "total_delta_gib": total,
        "total_delta_percent": 100 * total / gib[0] if gib[0] else None,
        **_ladder_tokens(steps),
        **(_attribution(table, deltas) if table.predicted_released_mib else {}),
    }
    word = worst(judged)
    if exact:
        margin = table.practical_margin
        within = f" within {margin:g} {table.unit}" if margin and word == "equivalent" else ""
        lines = [
            f"{len(deltas)} steps: {word}{within}, {total:+.2f} GiB in all; exact, repeats identical, so one boot is "
            "enough."
        ]
        if figures.get("attribution_holds") is False:
            lines.append(
                f"Warning: a step differs from its prediction by {figures['largest_difference_mib']:.4g} MiB, more "
                f"than rounding ({figures['rounding_limit_mib']:.4g} MiB): look for what else was released or taken."
            )
        return Judged(word, None, figures, lines)
    if all(delta > 0 for delta in deltas) or all(delta < 0 for delta in deltas):
        figures["suggestive"] = f"only the cumulative {total:+.2f} {table.unit}"
    floor = table.noise_floor_gib
    if floor is not None:
        figures["steps_beyond_floor"] = [abs(delta) > floor for delta in deltas]
    known = f"the floor of this machine is {floor:g} GiB" if floor is not None else "no floor was measured here"
    lines = [
        f"{len(deltas)} steps, one boot each: {word}; {total:+.2f} {table.unit} in all. {known.capitalize()}; no test "
        f"can fire at 1+1 boots, it needs {boots_to_fire(table.alpha)} an arm. One direction in all steps is a hint, "
        "not a test: ask the bytes by component, which are exact."
    ]
    return Judged(word, "underpowered" if word == "inconclusive" else None, figures, lines)


def _one_boot_each(table: Table, delta: float) -> Word:
    p = None if smallest_p(1, 1) > table.alpha else 1.0
    margin = table.practical_margin or 0.0
    return decide(delta, margin=margin, better=table.better, p=p, interval=None, alpha=table.alpha)


def _exact(table: Table, delta: float) -> Word:
    """A change counts beyond the margin, and beyond what printing rounds away."""
    least = max(table.practical_margin or 0.0, table.printed_resolution_gib or 0.0)
    return decide_exact(delta, least + ROUNDING, table.better)


def _deltas(values: Sequence[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(values)]


def _forbidden(table: Table, boots: Sequence[SingleBoot], deltas: Sequence[float], words: Sequence[Word]) -> list[str]:
    """What a reader would take from the figures, and may not: unresolved steps larger than their last printed digit."""
    resolution = table.printed_resolution_gib
    if resolution is None:
        resolution = min(10.0 ** -_decimals(boot.available_kv_gib) for boot in boots)
    claims = []
    for boot, delta, word in zip(boots[1:], deltas, words, strict=True):
        if word == "inconclusive" and abs(delta) > resolution * 1.5:
            what = "gain" if direction(delta, table.better) == "improved" else "regression"
            claims.append(f"{delta:+.2f} {table.unit} {what} of build {boot.build}")
    return claims


def _decimals(value: float) -> int:
    return len(repr(value).partition(".")[2])


def _bytes_per_token(rows: Sequence[SingleBoot | Step]) -> list[float | None]:
    return [row.available_kv_gib * 2**30 / row.kv_tokens if row.kv_tokens else None for row in rows]


def _token_figures(boots: Sequence[SingleBoot]) -> dict[str, Any]:
    tokens = [boot.kv_tokens for boot in boots if boot.kv_tokens is not None]
    if len(tokens) != len(boots):
        return {}
    spread = max(tokens) - min(tokens)
    return {
        "token_range": spread,
        "token_range_percent_of_smallest": 100 * spread / min(tokens),
        "token_range_percent_of_mean": 100 * spread / fmean(tokens),
        "bytes_per_token": _bytes_per_token(boots),
    }


def _ladder_tokens(steps: Sequence[Step]) -> dict[str, Any]:
    tokens = [step.kv_tokens for step in steps if step.kv_tokens is not None]
    if len(tokens) != len(steps):
        return {}
    return {
        "token_delta": tokens[-1] - tokens[0],
        "token_delta_percent": 100 * (tokens[-1] - tokens[0]) / tokens[0],
        "token_deltas": [later - earlier for earlier, later in pairwise(tokens)],
        "bytes_per_token": _bytes_per_token(steps),
        "tokens_over_max_model_len": [
            step.kv_tokens / step.max_model_len if step.kv_tokens and step.max_model_len else None for step in steps
        ],
    }


def _attribution(table: Table, deltas: Sequence[float]) -> dict[str, Any]:
    """Each step against the buffer it releases; two rounded readings are off by one unit of the last digit."""
    predicted = table.predicted_released_mib or []
    observed = [delta * MIB_IN_GIB for delta in deltas]
    largest = max(abs(seen - said) for seen, said in zip(observed, predicted, strict=True))
    limit = (table.printed_resolution_gib or 0.0) * MIB_IN_GIB
    return {
        "observed_mib": observed,
        "predicted_mib": predicted,
        "largest_difference_mib": largest,
        "rounding_limit_mib": limit,
        "attribution_holds": largest <= limit + ROUNDING * MIB_IN_GIB,
        "predicted_total_gib": sum(predicted) / MIB_IN_GIB,
    }
