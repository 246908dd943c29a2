"""A prefix cache that never hits: a fault only where a hit was due."""

from __future__ import annotations

from statistics import fmean
from typing import Annotated, Any

from pydantic import Field

from dsbench.checks.answer import Answer, Input, Some, read

NEVER_HITS = "prefix cache never hits"


class _Case(Input):
    queries: int = Field(ge=0)
    hits: int = Field(ge=0)
    prompts_share_prefix: bool


class _Acceptance(Input):
    cold_prefix: Some[Annotated[float, Field(gt=0)]]
    hot_prefix: Some[float]


class _Cases(Input):
    cases: Some[_Case]
    acceptance: _Acceptance | None = None


def prefix_cache_vetoed_by_draft(content: Any) -> Answer:
    """Hit fractions, null where nothing was asked; and acceptance after hits against acceptance without."""
    given = read(_Cases, content)
    fractions = [case.hits / case.queries if case.queries else None for case in given.cases]
    flags = [
        NEVER_HITS if case.queries and not case.hits and case.prompts_share_prefix else None for case in given.cases
    ]
    figures: dict[str, Any] = {"hit_fraction": fractions, "flag": flags}
    if given.acceptance:
        figures["acceptance_hot_over_cold"] = fmean(given.acceptance.hot_prefix) / fmean(given.acceptance.cold_prefix)
    return Answer(figures, [f"case {n}: {flag}" for n, flag in enumerate(flags, start=1) if flag])
