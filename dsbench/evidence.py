"""Records grouped by boot: what the judge looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dsbench.records import (
    BootEnded,
    BootStarted,
    Check,
    Conditions,
    Counters,
    Finding,
    KvProfile,
    Markers,
    Observation,
    Plan,
    PlannedBoot,
    Record,
    Run,
)


@dataclass
class BootEvidence:
    """Everything recorded of the last attempt at one planned boot."""

    planned: PlannedBoot
    ended: BootEnded | None = None
    conditions: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By rank."""
    markers: dict[int, list[Markers]] = field(default_factory=dict)
    """By rank, in order of time."""
    kv_profiles: dict[int, dict[str, Any]] = field(default_factory=dict)
    counters: list[Counters] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)
    checks: dict[str, Check] = field(default_factory=dict)
    """By probe."""
    findings: list[Finding] = field(default_factory=list)

    @cached_property
    def readings(self) -> dict[str, list[Observation]]:
        """Observations by metric, in order of time; there may be a million of them."""
        found: dict[str, list[Observation]] = {}
        for o in self.observations:
            found.setdefault(o.metric, []).append(o)
        return found

    @property
    def number(self) -> int:
        return self.planned.number

    @property
    def ok(self) -> bool:
        return self.ended is not None and self.ended.status == "ok"

    def last_markers(self) -> dict[int, Markers]:
        return {rank: seen[-1] for rank, seen in self.markers.items()}


def gather(plan: Plan, records: Sequence[Record]) -> list[BootEvidence]:
    """One entry a planned boot, in planned order; attempts before the last are left out."""
    attempts: dict[int, int] = {}
    for record in records:
        if isinstance(record, BootStarted):
            attempts[record.boot] = record.attempt
    boots = {planned.number: BootEvidence(planned) for planned in plan.boots}
    for record in records:
        if isinstance(record, Run) or record.boot not in boots or record.attempt != attempts.get(record.boot):
            continue
        boot = boots[record.boot]
        if isinstance(record, Observation):
            boot.observations.append(record)
        elif isinstance(record, BootEnded):
            boot.ended = record
        elif isinstance(record, Conditions):
            boot.conditions[record.rank] = record.values
        elif isinstance(record, Markers):
            boot.markers.setdefault(record.rank, []).append(record)
        elif isinstance(record, KvProfile):
            boot.kv_profiles[record.rank] = record.values
        elif isinstance(record, Counters):
            boot.counters.append(record)
        elif isinstance(record, Finding):
            boot.findings.append(record)
        elif isinstance(record, Check):
            boot.checks[record.probe] = record
    return list(boots.values())
