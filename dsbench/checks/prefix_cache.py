"""A prefix cache that never hits: a fault only where a hit was due."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from dsbench.checks.answer import Answer, Input, read

NEVER_HITS = "prefix cache never hits"


class _Case(Input):
    queries: int
    hits: int
    prompts_share_prefix: bool


class _Acceptance(Input):
    cold_prefix: list[float]
    hot_prefix: list[float]


class _Cases(Input):
    cases: list[_Case]
    acceptance: _Acceptance | None = None


def prefix_cache_vetoed_by_draft(content: Any) -> Answer:
    """Hit fractions, null where nothing was asked; and acceptance after hits against acceptance without."""
    given = read(_Cases, content)
    fractions = [case.hits / case.queries if case.queries else None for case in given.cases]
    flags = [
        NEVER_HITS if case.queries and not case.hits and case.prompts_share_prefix else None for case in given.cases
    ]
    figures: dict[str, Any] = {"hit_fraction": fractions, "flag": flags}
    if given.acceptance and given.acceptance.cold_prefix and given.acceptance.hot_prefix:
        figures["acceptance_hot_over_cold"] = fmean(given.acceptance.hot_prefix) / fmean(given.acceptance.cold_prefix)
    return Answer(figures, [f"case {n}: {flag}" for n, flag in enumerate(flags, start=1) if flag])
