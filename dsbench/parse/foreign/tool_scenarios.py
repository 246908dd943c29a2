"""Results of tool-call scenarios, repeated over thinking modes and rounds: a summary, and rows of some or all cases."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Input
from dsbench.parse.foreign.records import Count, Figure, Record, Tool, flat_or_rows, quotient, read_each

NAME = "tool-call scenarios"
SCORE_AGREES = 0.5
"""Percentage points between a printed score and the points: it is printed as a whole number."""


class _Summary(Input):
    scenario_sets: list[str] = Field(default=["en"], min_length=1)
    thinking_modes: list[str] = Field(min_length=1)
    rounds: int = Field(ge=1)
    total_cases: int = Field(ge=1, le=10**9)
    points: Figure
    max_points: Figure
    score_percent: Figure = None
    temperature: Figure = None
    top_p: Figure = None
    failures: Count = None


class _Case(Input):
    id: str
    category: str | None = None
    points: float = Field(ge=0, le=1e6)
    round: int | None = None
    thinking_mode: str | None = None


class _File(Input):
    summary: _Summary
    results: list[_Case]


def _is_mine(record: Record) -> bool:
    summary = record.get("summary")
    return isinstance(summary, dict) and {"total_cases", "points", "max_points"} <= summary.keys()


def _read(records: Sequence[Record]) -> dict[str, Any]:
    rows = [_row(file) for file in read_each(_File, records)]
    return flat_or_rows(rows[0].pop("name"), rows) if len(rows) == 1 else {"tool": NAME, "rows": rows}


def _row(file: _File) -> dict[str, Any]:
    summary, cases = file.summary, file.results
    full = quotient(summary.max_points, summary.total_cases)
    lost = [case for case in cases if full is not None and case.points < full]
    percent = quotient(summary.points, summary.max_points)
    partial = len(cases) < summary.total_cases
    return {
        "name": _name(summary),
        "points": summary.points,
        "max_points": summary.max_points,
        "score_percent": None if percent is None else 100 * percent,
        "score_percent_printed": summary.score_percent,
        "temperature": summary.temperature,
        "top_p": summary.top_p,
        "cases_total": summary.total_cases,
        # The file's "failures": every case without full points, half ones too.
        "cases_not_full": summary.failures,
        "rows_present": len(cases),
        "rows_not_full_present": None if full is None else len(lost),
        "partial_excerpt": partial,
        "category_score_from_rows": None if partial or full is None else _category_score(cases, full),
        # The program exits with 1 as soon as one case lost a point.
        "exit_code_1_is_normal": None if summary.failures is None else summary.failures > 0,
        "failures_by_scenario_in_rows": dict(sorted(Counter(case.id for case in lost).items())),
        "flags": _flags(file, lost, None if percent is None else 100 * percent),
    }


def _name(summary: _Summary) -> str:
    modes, rounds = len(summary.thinking_modes), summary.rounds
    scenarios, rest = divmod(summary.total_cases, modes * rounds * len(summary.scenario_sets))
    return NAME if rest else f"{NAME} ({scenarios} x {modes} modes x {rounds} rounds)"


def _category_score(cases: Sequence[_Case], full: float) -> float | None:
    """Mean of the categories' percentages."""
    points: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        if case.category is None:
            return None
        points[case.category].append(case.points)
    return fmean(100 * fmean(of) / full for of in points.values())


def _flags(file: _File, lost: Sequence[_Case], percent: float | None) -> list[str]:
    summary, present = file.summary, len(file.results)
    flags = []
    if present < summary.total_cases:
        flags.append(f"{present} of {summary.total_cases} cases have a row: no score by category")
    elif present > summary.total_cases:
        flags.append(f"{present} rows for {summary.total_cases} cases")
    elif summary.failures is not None and summary.failures != len(lost):
        flags.append(f"{len(lost)} rows lost points, but {summary.failures} are counted")
    printed = summary.score_percent
    if percent is not None and printed is not None and abs(printed - percent) > SCORE_AGREES:
        flags.append(f"the score is printed as {printed:g} %, but the points give {percent:.2f} %")
    return flags


TOOL = Tool(NAME, _is_mine, _read)
