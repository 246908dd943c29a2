"""What a check says (torch-free): findings, the figures it rests on, or why it could not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["clean", "findings", "not-run"]
Figure = int | float | str


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it must be."""

    code: str
    what: str
    where: str
    """file:line, or the figure that shows it"""
    mend: str


@dataclass(frozen=True)
class Outcome:
    """What a check found, and what it looked at."""

    findings: tuple[Finding, ...] = ()
    evidence: Mapping[str, Figure] = field(default_factory=dict)


class NotRun(Exception):
    """The check could not look; the message says why."""


@dataclass(frozen=True)
class Report:
    """One check's line of the audit."""

    check: str
    question: str
    status: Status
    findings: tuple[Finding, ...]
    evidence: Mapping[str, Figure]
    reason: str
    """Why it could not run; empty when it did."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
