"""Gates: a verdict and a policy give an outcome. Pure: what was judged is looked at, nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Literal

from dsbench.claims import is_unproven_gain
from dsbench.errors import InputError
from dsbench.judge import judge
from dsbench.metrics import Metric
from dsbench.policy import Amount, Open, Policy, Rule
from dsbench.records import ExperimentVerdict, Plan, Record, Verdict, VoidReason

TELL = {
    "change": "would see the change",
    "equivalence": "would call equal arms equivalent",
    "claim": "could claim it",
}
"""What blocks, boots or items that a row needs are for."""

Status = Literal["passed", "failed", "rerun", "missing", "not-checked"]
Word = Literal["passed", "failed", "rerun", "void", "nothing-checked"]

EXIT_CODES: dict[Word, int] = {"passed": 0, "failed": 1, "rerun": 3, "void": 4, "nothing-checked": 4}

STORED = " vs stored"
"""Follows the name of an arm that was held against a stored one."""
BY_DEFAULT = Rule.model_construct(metric="*", arm="*", must="not-regress", by=None, margin=None, inconclusive=None)


@dataclass(frozen=True)
class Check:
    """One row of the verdict, or a metric that it lacks, under the rule that holds for it."""

    arm: str
    metric: str
    must: str
    """In words: `not regress`, `improve by 2 %`."""
    status: Status
    why: str
    mend: str = ""
    """What to do; empty where it passed."""
    row: Verdict | None = None
    """None where the metric is missing."""


@dataclass(frozen=True)
class Outcome:
    """What a gate says of one experiment."""

    word: Word
    exit_code: int
    sentence: str
    checks: list[Check]
    void: list[VoidReason]


def under(plan: Plan, policy: Policy) -> Plan:
    """The plan with the policy's margins and guards, so that rule 4 counts what the gate looks at.

    What share of a baseline a margin in the metric's own unit is, each row says (`Comparison.margin`). A metric with
    `must = "nothing"` is no guard. InputError for a rule that a metric cannot meet, before anything runs.
    """
    for metric in plan.metrics:
        for rule in policy.rule:
            if fnmatchcase(metric.key, rule.metric) and rule.must == "improve":
                _can_improve(metric, rule)
    metrics = [_with_margin(metric, policy.margin_of(metric.key)) for metric in plan.metrics]
    guards = [metric.key for metric in plan.metrics if _guards(plan, policy, metric)]
    return plan.model_copy(update={"policy": policy, "metrics": metrics, "guards": guards})


def judged_under(plan: Plan, records: Sequence[Record], policy: Policy) -> ExperimentVerdict:
    """Judge the records by the policy's margins and guards."""
    return judge(under(plan, policy), records)


def gate(
    verdict: ExperimentVerdict,
    policy: Policy,
    *,
    again: bool = False,
    against: Sequence[Verdict] = (),
    unmatched: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Outcome:
    """Hold every row against its rule. `again` is a rerun, whose open answers are final; `against` are rows that
    compare arms with those of stored results, `unmatched` says why an arm or a metric
    has none.
    """
    if verdict.word == "void":
        return Outcome("void", EXIT_CODES["void"], _void_sentence(verdict.void), [], verdict.void)
    checks = [check for row in verdict.rows if (check := _check(row, policy, again)) is not None]
    checks += [check for row in against if (check := _check_stored(row, policy, again)) is not None]
    checks += [
        Check(f"{arm}{STORED}", metric, "not regress", "not-checked", why) for (arm, metric), why in unmatched.items()
    ]
    checks += _missing(verdict.rows, policy)
    word = _word([check.status for check in checks])
    return Outcome(word, EXIT_CODES[word], _sentence(word, checks), checks, [])


# --- the plan under a policy ----------------------------------------------------------------------------------------


def _guards(plan: Plan, policy: Policy, metric: Metric) -> bool:
    """Drift controls stay what they are: if one moves, the experiment is void."""
    if metric.key in plan.drift_controls:
        return False
    named = [rule for rule in policy.rule if fnmatchcase(metric.key, rule.metric)]
    if named and named[0].arm == "*" and named[0].must == "nothing":
        return False
    return metric.key in plan.guards or any(rule.must == "not-regress" for rule in named)


def _can_improve(metric: Metric, rule: Rule) -> None:
    if metric.better == "same":
        raise InputError(f'policy: {metric.key} can only stay the same: must = "improve" cannot be met')
    if rule.by is not None:
        _in_terms_of("by", rule.by, metric)


def _in_terms_of(key: str, amount: Amount, metric: Metric) -> None:
    """InputError for an amount that is none of this metric: points are of shares, the rest of everything else."""
    share = metric.kind == "item" or metric.unit == "share"
    if (amount.of == "share") != share:
        right = '"1 point"' if share else '"2 %" or a number with its unit'
        raise InputError(f"policy: {key} = {amount} does not fit {metric.key}: write {right}")
    if amount.of == "unit" and amount.unit not in ("", metric.unit):
        raise InputError(f"policy: {key} = {amount} does not fit {metric.key}, whose unit is {metric.unit}")


def _with_margin(metric: Metric, amount: Amount | None) -> Metric:
    """The metric with the policy's margin. One in the unit is left to the rows, but for ratios of counters: each item
    has a baseline of its own, so that they are compared by their differences."""
    if amount is None:
        return metric
    _in_terms_of("margin", amount, metric)
    of_ratio = metric.kind == "counter-ratio"
    if amount.of == "unit" and not of_ratio:
        return metric
    absolute = of_ratio and amount.of != "baseline"
    return Metric.model_validate({**metric.model_dump(), "margin": amount.value, "absolute": absolute})


# --- rows -----------------------------------------------------------------------------------------------------------


def _check(row: Verdict, policy: Policy, again: bool) -> Check | None:
    rule = policy.rule_for(row.arm, row.metric)
    if rule is None and row.role not in ("primary", "guard"):
        return None
    asked = rule or BY_DEFAULT
    if asked.must == "nothing":
        return None
    status, why, mend = _status(row, asked)
    if status is None:
        setting: Open = asked.inconclusive or policy.inconclusive
        if rule is None and row.role == "guard" and not policy.guards_resolved:
            setting = "pass"
        status, why, mend = _open(row, setting, again, why)
    return Check(row.arm, row.metric, _must(asked), status, why, mend, row)


def _check_stored(row: Verdict, policy: Policy, again: bool) -> Check | None:
    """A row against a stored result: the clock decides nothing there, and an improvement on it is nobody's claim."""
    rules = [rule.model_copy(update={"must": "not-regress", "by": None}) if rule.must == "improve" else rule
             for rule in policy.rule]  # fmt: skip
    check = _check(row, policy.model_copy(update={"rule": rules}), again)
    if check is None:
        return None
    check = replace(check, arm=f"{row.arm}{STORED}")
    if row.kind != "sample":
        return check
    return replace(check, status="not-checked", why="read by the clock, at another time", mend="")


def _status(row: Verdict, rule: Rule) -> tuple[Status | None, str, str]:
    """Status, reason and mend; None where the row leaves it open."""
    if row.word == "regressed":
        accept = f'a rule for {row.metric}: a wider margin, or must = "nothing"'
        return "failed", "regressed", f"dsbench show tells more; mend the change, or accept the loss with {accept}"
    if rule.must == "not-regress":
        if row.word in ("improved", "equivalent"):
            return "passed", row.word, ""
        return ("passed", "no loss; the gain is not shown", "") if is_unproven_gain(row) else (None, "not resolved", "")
    if row.word == "equivalent":
        return "failed", "equivalent: no improvement beyond the margin", "the change does not do what it claims here"
    if row.word == "improved":
        return _by(row, rule.by)
    return None, "no improvement is shown", ""


def _by(row: Verdict, by: Amount | None) -> tuple[Status | None, str, str]:
    """Whether an improvement is shown to be large enough: by its whole interval, or by the difference if exact."""
    if by is None:
        return "passed", "improved", ""
    low, high = _gain(row, by)
    if low >= by.value:
        return "passed", f"improved by {by} or more", ""
    if high < by.value:
        return "failed", f"improved, but by less than {by}", "the change does less than it claims here"
    return None, f"improved, but {by} or more is not shown", ""


def _gain(row: Verdict, by: Amount) -> tuple[float, float]:
    """The improvement's interval in the terms of `by`; both ends are the same where it is exact."""
    assert row.delta is not None
    sign = 1.0 if row.better == "up" else -1.0
    wants_relative = by.of == "baseline"
    if wants_relative and row.relative is None:
        return 0.0, 0.0
    point = row.relative if wants_relative and row.relative is not None else row.delta
    ends = list(row.interval or ())
    base = abs(row.baseline or 0.0)
    if ends and wants_relative != (row.interval_of == "relative"):
        ends = [end / base if wants_relative else end * base for end in ends] if base else []
    if not ends and row.kind != "exact" and row.test not in ("equality", "equal counts"):
        return 0.0, float("inf")
    values = sorted(sign * end for end in (ends or [point]))
    return values[0], values[-1]


def _open(row: Verdict, setting: Open, again: bool, why: str) -> tuple[Status, str, str]:
    if setting == "pass":
        return "passed", f"{why}; the policy lets that pass", ""
    needs = (
        f"{row.blocks_needed:,} {row.needed_unit} {TELL[row.needed_for]}" if row.blocks_needed else "; ".join(row.notes)
    )
    mend = f"{needs or 'measure more'}: add --blocks or --until-resolved, or name another suite"
    if setting == "rerun" and not again:
        return "rerun", why, "run the experiment once more; what is open then has failed"
    return "failed", f"{why}{', in the rerun too' if setting == 'rerun' else ''}", mend


def _missing(rows: Sequence[Verdict], policy: Policy) -> Iterator[Check]:
    """A rule that finds nothing to look at has failed: nothing is inferred from silence."""
    for rule in policy.rule:
        if rule.must != "nothing" and not any(rule.names(row.arm, row.metric) for row in rows):
            yield Check(
                arm=rule.arm,
                metric=rule.metric,
                must=_must(rule),
                status="missing",
                why="no row of the verdict has it",
                mend="add the probe that reads it to the suite, or take the rule out of the policy",
            )


def without_baseline(folder: str, why: Mapping[tuple[str, str], str]) -> Outcome:
    """Void: nothing stored in the folder compares with any arm."""
    said = "; ".join(f"{arm}: {text}" for (arm, metric), text in why.items() if metric == "*")
    reason = VoidReason(
        code="no-baseline",
        text=f"no result in {folder} compares with this one ({said})",
        mend="store a result of the main branch there, of the same machine, suite and arms; or leave out --baseline",
    )
    return Outcome("void", EXIT_CODES["void"], _void_sentence([reason]), [], [reason])


# --- words ----------------------------------------------------------------------------------------------------------


def _word(statuses: Sequence[Status]) -> Word:
    seen = set(statuses)
    if not seen & {"passed", "failed", "rerun"}:
        return "nothing-checked"
    if seen & {"failed", "missing"}:
        return "failed"
    return "rerun" if "rerun" in seen else "passed"


def _must(rule: Rule) -> str:
    words = "not regress" if rule.must == "not-regress" else f"improve{f' by {rule.by}' if rule.by else ''}"
    return words + (f", margin {rule.margin}" if rule.margin else "")


def _sentence(word: Word, checks: Sequence[Check]) -> str:
    def some(*statuses: Status) -> str:
        found = [f"{check.arm} {check.metric}" for check in checks if check.status in statuses]
        return f"{', '.join(found[:4])}{f' and {len(found) - 4} more' if len(found) > 4 else ''}"

    count = sum(check.status == "passed" for check in checks)
    if word == "failed":
        return f"Gate failed: {some('failed', 'missing')}; {count} of {len(checks)} checks passed."
    if word == "rerun":
        return f"Gate open, run once more: {some('rerun')}; {count} of {len(checks)} checks passed."
    if word == "nothing-checked":
        return "Gate void: nothing was checked; the policy names no metric of this result, which has no guard either."
    return f"Gate passed: {count} check{'' if count == 1 else 's'}."


def _void_sentence(void: Sequence[VoidReason]) -> str:
    if not void:
        return "Gate void: the experiment compares nothing."
    more = f" (and {len(void) - 1} more)" if len(void) > 1 else ""
    return f"Gate void, reason {void[0].code}: {void[0].text}{more}. Mend: {void[0].mend}."
