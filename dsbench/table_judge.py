"""From a table of readings to its verdict, by the rules that judge an experiment. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, stdev
from typing import Any

from dsbench.decide import decide, direction, overall
from dsbench.records import VoidReason, Word
from dsbench.stats.holm import holm
from dsbench.stats.power import (
    blocks_equivalent,
    blocks_needed,
    boots_equivalent_unblocked,
    boots_needed_unblocked,
    boots_normal,
    boots_to_fire,
    smallest_effect,
    smallest_effect_unblocked,
)
from dsbench.stats.proportions import compare_proportions
from dsbench.stats.samples import Interval, blocks_to_fire, interval, sign_flip_p, subset_means
from dsbench.stats.samples import smallest_p as smallest_sign_flip_p
from dsbench.stats.tost import tost_p
from dsbench.stats.unblocked import compare_unblocked, pooled_sd, swap_differences, welch
from dsbench.table_input import Table, TableArm
from dsbench.table_steps import judge_builds, judge_steps
from dsbench.table_void import companions, table_void

CONFIDENCE = 0.90
EQUIVALENT = "boots_per_arm_to_call_equivalent"
WITHIN = "no number of {} calls a change that is within the margin"
CLAIMED_GIB = (1.07, 0.5, 0.25, 0.06)
"""Claims of the source document's memory ladder: all steps, half of them, one 256 MiB buffer, input reuse."""


@dataclass(frozen=True)
class TableVerdict:
    """A table's answer; `figures` are the keys that `--json` prints beside it."""

    word: Word
    detail: str | None
    figures: dict[str, Any]
    void: list[VoidReason]
    lines: list[str]
    """What a person reads of each comparison."""

    def to_json(self) -> dict[str, Any]:
        """The answer as plain values, with the figures as they are printed."""
        reasons = [reason.model_dump(exclude={"boots"}) for reason in self.void]
        detail = {"verdict_detail": self.detail} if self.detail else {}
        return {"verdict": self.word, **detail, **self.figures, "void": reasons, "why": " ".join(self.lines)}


@dataclass(frozen=True)
class Compared:
    """One candidate arm against the baseline."""

    arm: str
    word: Word
    effect: float | None
    p: float | None
    """None where no test was made or it could not have fired."""
    figures: dict[str, Any]
    line: str = ""
    notes: list[str] = field(default_factory=list)


def judge_table(table: Table) -> TableVerdict:
    """Judge readings by arm, by single build or by step of a ladder."""
    void = table_void(table)
    if table.arms is None:
        judged = judge_steps(table) if table.steps else judge_builds(table, effects(table, None))
        word, detail = overall([judged.word], [], bool(void)), None if void else judged.detail
        return TableVerdict(word, detail, judged.figures, void, _void_lines(void) or judged.lines)
    baseline, *candidates = table.arms
    used = {name: _used(arm) for name, arm in table.arms.items()}
    compared = _corrected(table, [_compare(table, used, baseline, name) for name in candidates])
    word = overall([one.word for one in compared], [], bool(void))
    excluded = any(len(used[name]) < len(arm.readings) for name, arm in table.arms.items())
    detail = ("underpowered after exclusion" if excluded else "underpowered") if word == "inconclusive" else None
    figures = {**_arm_figures(table, used), **_companion_figures(table)}
    if len(compared) == 1:
        figures |= compared[0].figures
    else:
        figures["comparisons"] = {one.arm: {"verdict": one.word, **one.figures} for one in compared}
    if excluded:
        figures |= _exclusion_figures(table, used, word)
    lines = _void_lines(void) or [" ".join([one.line, *one.notes]) for one in compared]
    return TableVerdict(word, detail, figures, void, lines)


def _void_lines(void: Sequence[VoidReason]) -> list[str]:
    return [f"Void, reason {reason.code}: {reason.text}. Mend: {reason.mend}." for reason in void]


def effects(table: Table, seen: float | None) -> list[float]:
    """Effects for which the boots needed are told: those asked for, the margin, the claims, or the effect seen."""
    if table.effects:
        return table.effects
    if table.practical_margin:
        return [table.practical_margin]
    if table.is_kv and table.unit.lower() == "gib":
        return list(CLAIMED_GIB)
    return [abs(seen)] if seen else []


# --- one comparison -------------------------------------------------------------------------------------------------


def _compare(table: Table, used: Mapping[str, Sequence[tuple[int, float]]], first: str, second: str) -> Compared:
    arms = table.arms or {}
    a, b = [value for _, value in used[first]], [value for _, value in used[second]]
    if not a or not b:
        line = f"{second} against {first}: inconclusive, no usable boot in {second if a else first}."
        return Compared(second, "inconclusive", None, None, {"n_a": len(a), "n_b": len(b)}, line)
    totals = [_total(table, arm) for arm in (arms[first], arms[second])]
    if totals[0] and totals[1]:
        return _proportions(table, first, second, totals[0], totals[1])
    by_block = [_by_block(arm, used[name]) for name, arm in ((first, arms[first]), (second, arms[second]))]
    if by_block[0] and by_block[1] and (blocks := sorted(by_block[0].keys() & by_block[1].keys())):
        steps = [by_block[1][block] - by_block[0][block] for block in blocks]
        a, b = ([of[block] for block in blocks] for of in by_block)
        return _blocked(table, first, second, a, b, steps)
    return _unblocked(table, first, second, a, b)


def _unblocked(table: Table, first: str, second: str, a: Sequence[float], b: Sequence[float]) -> Compared:
    tests = compare_unblocked(a, b, CONFIDENCE, table.test or "")
    margin = table.practical_margin or 0.0
    p = tests.p_if_it_fires(table.alpha)
    parted = tests.parted(table.alpha)
    word = decide(
        tests.difference,
        margin=margin,
        better=table.better,
        p=p,
        interval=tests.interval,
        alpha=table.alpha,
        parted=parted,
    )
    beside = welch(a, b)
    sd = pooled_sd(a, b)
    wanted = effects(table, tests.difference)
    figures = {
        **_means(table, a, b),
        "mann_whitney_u_a": tests.u_a,
        "mann_whitney_u_min": min(tests.u_a, tests.u_b),
        "mann_whitney_p_exact": tests.mann_whitney_p,
        "permutation_p_exact": tests.permutation_p,
        "smallest_p_reachable_exact": tests.smallest_p,
        "test": tests.test,
        "p": p,
        "ties": tests.ties,
        **_interval_figures(table, tests.interval, tost_p(swap_differences(a, b), margin)),
        "welch_p": beside.p if beside else None,
        "welch_ci95": list(beside.ci95) if beside else None,
        "welch_ci90": list(beside.ci90) if beside else None,
        "smallest_effect_visible": smallest_effect_unblocked(sd, len(a), len(b), table.alpha, margin)
        if sd is not None
        else None,
        "boots_per_arm_needed_for_this_test": boots_to_fire(table.alpha),
        "boots_per_arm_for_80_percent_power": {
            f"{effect:g}": boots_needed_unblocked(effect, sd, table.alpha, margin=margin)
            for effect in wanted
            if sd and effect > margin
        },
        **({EQUIVALENT: boots_equivalent_unblocked(margin, sd, CONFIDENCE)} if sd and margin else {}),
        "boots_per_arm_for_80_percent_power_normal_approximation": {
            f"{effect:g}": boots_normal(effect, sd, table.alpha) for effect in wanted if sd
        },
    }
    n = f"{len(a)}+{len(b)} {table.replicate}s"
    line = _line(table, second, first, word, figures, tests.interval, n)
    return Compared(second, word, tests.difference, p, figures, line, [f"Not claimed: {parted}."] if parted else [])


def _blocked(
    table: Table, first: str, second: str, a: Sequence[float], b: Sequence[float], steps: Sequence[float]
) -> Compared:
    span, least = interval(steps, CONFIDENCE), smallest_sign_flip_p(len(steps))
    effect, margin = fmean(steps), table.practical_margin or 0.0
    p = sign_flip_p(steps) if least <= table.alpha else None
    word = decide(effect, margin=margin, better=table.better, p=p, interval=span, alpha=table.alpha)
    sd = stdev(steps) if len(steps) > 1 else None
    figures = {
        **_means(table, a, b),
        "n_blocks": len(steps),
        "sign_flip_p_exact": sign_flip_p(steps),
        "smallest_p_reachable_exact": least,
        "test": "sign-flip over blocks",
        "p": p,
        **_interval_figures(table, span, tost_p(subset_means(steps), margin)),
        "smallest_effect_visible": smallest_effect(sd, len(steps), table.alpha, margin) if sd is not None else None,
        "boots_per_arm_needed_for_this_test": blocks_to_fire(table.alpha),
        "boots_per_arm_for_80_percent_power": {
            f"{e:g}": blocks_needed(e, sd, table.alpha, margin=margin)
            for e in effects(table, effect)
            if sd and e > margin
        },
        **({EQUIVALENT: blocks_equivalent(margin, sd, CONFIDENCE)} if sd and margin else {}),
    }
    return Compared(
        second, word, effect, p, figures, _line(table, second, first, word, figures, span, f"{len(steps)} blocks")
    )


def _proportions(table: Table, first: str, second: str, a: tuple[int, int], b: tuple[int, int]) -> Compared:
    """One run an arm of which only the share is known; Fisher's exact test decides."""
    tests = compare_proportions(*a, *b, CONFIDENCE)
    margin = table.practical_margin or 0.0
    word = decide(
        tests.difference,
        margin=margin,
        better=table.better,
        p=tests.fisher_p,
        interval=tests.interval,
        alpha=table.alpha,
    )
    labels = _labels(first, second)
    wanted = table.effects or ([] if margin else [abs(tests.difference)])
    figures: dict[str, Any] = {
        f"correct_{labels[0]}": a[0],
        f"correct_{labels[1]}": b[0],
        "n_items_a": a[1],
        "n_items_b": b[1],
        "delta_b_minus_a": tests.difference,
        "delta_pp": 100 * tests.difference,
        "z_pooled": tests.z_pooled,
        "p_two_sided": tests.p_z,
        "fisher_p": tests.fisher_p,
        "test": "Fisher's exact test",
        "p": tests.fisher_p,
        "stderr_single_run_pp": 100 * tests.stderr_single,
        "interval_90": [tests.interval.low, tests.interval.high],
        "ci90_inside_margin": tests.interval.inside(margin) if table.practical_margin else None,
        "smallest_effect_visible": tests.visible(table.alpha, margin),
        "items_per_arm_for_80_percent_power_by_pp": {
            f"{100 * e:.3g}": n for e in wanted if (n := tests.items_needed(e, table.alpha, margin))
        },
        "items_per_arm_to_call_equivalent": tests.items_equivalent(margin, CONFIDENCE),
    }
    if a[1] != b[1]:
        figures["z_if_ignored"] = abs(tests.z_unpooled)
    told = [f"{n:,} items for {e} points" for e, n in figures["items_per_arm_for_80_percent_power_by_pp"].items()]
    if equivalent := figures["items_per_arm_to_call_equivalent"]:
        told.append(f"{equivalent:,} items to call equal arms equivalent within {100 * margin:.3g} points")
    within = f"; {WITHIN.format('items')}" if any(e <= margin for e in table.effects or ()) else ""
    line = (
        f"{second} against {first}: {word}, {a[0]}/{a[1]} -> {b[0]}/{b[1]}, {100 * tests.difference:+.2f} points, "
        f"90 % interval [{100 * tests.interval.low:+.2f}, {100 * tests.interval.high:+.2f}], Fisher p="
        f"{tests.fisher_p:.2g}, one run an arm; smallest change seen at this n "
        f"{100 * figures['smallest_effect_visible']:.2f} points; 80 % power needs "
        f"{', '.join(told) or 'an effect to look for'} an arm, fewer if items are kept and paired{within}."
    )
    return Compared(second, word, tests.difference, tests.fisher_p, figures, line)


def _corrected(table: Table, compared: list[Compared]) -> list[Compared]:
    """Holm over the claims of improvement of several candidate arms."""
    if len(compared) < 2:
        return compared
    tested = [one for one in compared if one.p is not None and one.effect is not None]
    good = [direction(one.effect or 0.0, table.better) == "improved" for one in tested]
    ps = [one.p if better and one.p is not None else 1.0 for one, better in zip(tested, good, strict=True)]
    adjusted = dict(zip((one.arm for one in tested), holm(ps), strict=True))
    result = []
    for one in compared:
        holm_p = adjusted.get(one.arm)
        figures = {**one.figures, "p_holm": holm_p}
        if one.word == "improved" and holm_p is not None and holm_p > table.alpha:
            note = f"Improved alone; Holm over {len(tested)} claims gives p={holm_p:.2g}, so inconclusive."
            result.append(replace(one, word="inconclusive", figures=figures, notes=[*one.notes, note]))
        else:
            alone = f"What was seen and is needed is told of one claim alone; Holm over {len(tested)} takes more."
            notes = [*one.notes, *([alone] if one.word == "inconclusive" and len(tested) > 1 else [])]
            result.append(replace(one, figures=figures, notes=notes))
    return result


# --- figures --------------------------------------------------------------------------------------------------------


def _means(table: Table, a: Sequence[float], b: Sequence[float]) -> dict[str, Any]:
    """Printed with two digits more than the readings have, and with four at least."""
    mean_a, mean_b = fmean(a), fmean(b)
    digits = max(4, 2 + max(len(repr(float(value)).partition(".")[2]) for value in (*a, *b)))
    rounded = {
        "mean_a": mean_a,
        "mean_b": mean_b,
        "median_a": median(a),
        "median_b": median(b),
        "sd_a": stdev(a) if len(a) > 1 else None,
        "sd_b": stdev(b) if len(b) > 1 else None,
        "delta_b_minus_a": mean_b - mean_a,
    }
    unit = "".join(c if c.isalnum() else "_" for c in table.unit.lower().replace("/s", "_per_second"))
    return {
        "n_a": len(a),
        "n_b": len(b),
        **{key: None if value is None else round(value, digits) for key, value in rounded.items()},
        f"delta_{unit}": round(mean_b - mean_a, digits),
        "delta_percent": round(100 * (mean_b - mean_a) / mean_a, 3) if mean_a else None,
        "practical_margin": table.practical_margin,
    }


def _interval_figures(table: Table, span: Interval, p: float) -> dict[str, Any]:
    bounded = math.isfinite(span.low)
    margin = table.practical_margin
    return {
        "interval_90": [span.low, span.high] if bounded else None,
        "interval_confidence_attained": span.attained if bounded else None,
        "tost_p": p if margin else None,
        "ci90_inside_margin": span.inside(margin) if margin else None,
    }


def _arm_figures(table: Table, used: Mapping[str, Sequence[tuple[int, float]]]) -> dict[str, Any]:
    """Boots by arm, where repeats inside a boot could be taken for boots."""
    arms = table.arms or {}
    figures: dict[str, Any] = {"n_boots": {name: len(values) for name, values in used.items()}}
    if any(arm.repeats for arm in arms.values()):
        figures["boot_means"] = {name: [value for _, value in values] for name, values in used.items()}
        figures["wrong_n_if_repeats_counted"] = {n: arm.repeats or len(arm.readings) for n, arm in arms.items()}
    return figures


def _companion_figures(table: Table) -> dict[str, Any]:
    """`gib_delta` for a companion reading in GiB, and so on: second arm minus first."""
    if table.arms is None or len(table.arms) != 2:
        return {}
    first, second = table.arms
    return {f"{key.rpartition('_')[2]}_delta": v[second] - v[first] for key, v in companions(table).items()}


def _exclusion_figures(table: Table, used: Mapping[str, Sequence[tuple[int, float]]], word: Word) -> dict[str, Any]:
    arms = table.arms or {}
    out: dict[str, list[float | None]] = {}
    for name, arm in arms.items():
        kept = {index for index, _ in used[name]}
        if left := [value for index, value in enumerate(arm.readings) if index not in kept]:
            out[name] = left
    figures: dict[str, Any] = {
        "boots_used": {name: [value for _, value in values] for name, values in used.items()},
        "boots_excluded": out,
    }
    everything = [[value for value in arm.readings if value is not None] for arm in arms.values()]
    if len(everything) == 2 and all(everything):
        delta = fmean(everything[1]) - fmean(everything[0])
        tempting = direction(delta, table.better) if abs(delta) > (table.practical_margin or 0.0) else "equivalent"
        figures["delta_if_cold_boot_kept"] = delta
        figures["verdicts_forbidden"] = [tempting] if tempting != word else []
    return figures


def _line(table: Table, second: str, first: str, word: Word, figures: Mapping[str, Any], span: Interval, n: str) -> str:
    unit, least = table.unit, figures["smallest_p_reachable_exact"]
    percent = f" ({figures['delta_percent']:+.2f} %)" if figures["delta_percent"] is not None else ""
    ends = f"[{span.low:+.4g}, {span.high:+.4g}] {unit}" if math.isfinite(span.low) else "unbounded at this n"
    asked = f"p={figures['p']:.2g}" if figures["p"] is not None else f"cannot go below p={least:.2g} at this n"
    parts = [
        f"{second} against {first}: {word}, {figures['delta_b_minus_a']:+.4g} {unit}{percent}",
        f"{100 * (figures['interval_confidence_attained'] or CONFIDENCE):.0f} % interval {ends}",
        f"{figures['test']}, n={n}, {asked}",
    ]
    if table.practical_margin is None:
        parts.append("no practical margin was declared, so nothing can be called equivalent")
    if word == "inconclusive":
        seen = figures["smallest_effect_visible"]
        least_boots = figures["boots_per_arm_needed_for_this_test"]
        parts.append(f"smallest effect seen at this n {f'{seen:.3g} {unit}' if seen is not None else 'none'}")
        needed = figures["boots_per_arm_for_80_percent_power"]
        told = [f"{boots or 'more than a million':,} boots an arm for {effect} {unit}" if isinstance(boots, int)
                else f"more than a million boots for {effect} {unit}" for effect, boots in needed.items()]  # fmt: skip
        if EQUIVALENT in figures:
            many = f"{figures[EQUIVALENT]:,} boots an arm" if figures[EQUIVALENT] else "more than a million boots"
            told.append(f"{many} to call equal arms equivalent within {table.practical_margin:g} {unit}")
        told = told or [f"at least {least_boots} boots an arm for the test to fire; the spread is not known"]
        parts.append(f"80 % power needs {', '.join(told)}")
        if any(effect <= (table.practical_margin or 0.0) for effect in table.effects or ()):
            parts.append(WITHIN.format("boots"))
        if figures["p"] is None and (needed or EQUIVALENT in figures):
            parts.append(f"the test can fire from {least_boots} boots an arm")
    return "; ".join(parts) + "."


# --- readings -------------------------------------------------------------------------------------------------------


def _used(arm: TableArm) -> list[tuple[int, float]]:
    """Index and value of the boots that count: cold boots and boots without a reading are left out."""
    cold = arm.compile_cache or [None] * len(arm.readings)
    return [(i, value) for i, value in enumerate(arm.readings) if value is not None and cold[i] != "cold"]


def _by_block(arm: TableArm, used: Sequence[tuple[int, float]]) -> dict[int, float]:
    return {arm.blocks[index]: value for index, value in used} if arm.blocks else {}


def _total(table: Table, arm: TableArm) -> tuple[int, int] | None:
    """Right answers and items of a single run of a share; None if it is anything else."""
    n = table.items(arm)
    if arm.runs is None or len(arm.runs) != 1 or n is None or not 0 <= arm.runs[0] <= 1:
        return None
    return round(arm.runs[0] * n), n


def _labels(first: str, second: str) -> tuple[str, str]:
    """Names without what they share up to an underscore: `speculation_on` and `speculation_off` are `on` and `off`."""
    shared = 0
    for index, (x, y) in enumerate(zip(first, second, strict=False)):
        if x != y:
            break
        if x == "_":
            shared = index + 1
    return first[shared:], second[shared:]
