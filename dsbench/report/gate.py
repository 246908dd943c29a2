"""A gate's outcome in the terminal: one line a check, then the sentence."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dsbench.gate import Check, Outcome
from dsbench.report.table import difference, how

MARKS = {"passed": "pass", "failed": "FAIL", "rerun": "RERUN", "missing": "MISSING", "not-checked": "not checked"}


def print_outcome(outcome: Outcome) -> None:
    from dsbench.cli.table import print_note, print_table

    if outcome.checks:
        print_table(
            "Gate",
            ("arm", "metric", "must", "difference", "judged", "outcome", "why"),
            [
                (check.arm, place(check), check.must, *_figures(check), MARKS[check.status], check.why)
                for check in outcome.checks
            ],
        )
    for check in outcome.checks:
        if check.mend:
            print_note(f"  {check.arm} {place(check)}: {check.mend}", 2)
    print_note(outcome.sentence, 2)


def place(check: Check) -> str:
    """The metric, with its rank where ranks differ."""
    row = check.row
    return check.metric if row is None or row.rank is None else f"{check.metric} rank {row.rank}"


def told(check: Check) -> str:
    """One line: metric, difference with its interval, and what was asked."""
    if check.row is None:
        return f"{check.metric}: {check.why}; it must {check.must}"
    change, judged = _figures(check)
    confidence = ", the same in every boot" if check.row.kind == "exact" and check.row.delta is not None else ""
    if check.row.confidence and check.row.interval:
        confidence = f", {check.row.confidence * 100:.0f} % interval"
    return f"{place(check)} {change}{confidence} {judged}: {check.why}; it must {check.must}".replace("  ", " ")


def to_json(outcome: Outcome) -> dict[str, Any]:
    checks = [
        {**asdict(check), "row": None if check.row is None else check.row.model_dump(mode="json")}
        for check in outcome.checks
    ]
    void = [reason.model_dump(mode="json") for reason in outcome.void]
    return {
        "word": outcome.word,
        "exit_code": outcome.exit_code,
        "sentence": outcome.sentence,
        "checks": checks,
        "void": void,
    }


def _figures(check: Check) -> tuple[str, str]:
    return ("-", "") if check.row is None else (difference(check.row), how(check.row))
