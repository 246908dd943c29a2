"""Records grouped by boot: what the judge looks at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dsbench.fingerprint import Host
from dsbench.killed import RAN_COLD
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
    host: str | None = None
    """Machine of a pool; None for the harness's own."""
    repeated: bool = False
    """Whether an earlier attempt was interrupted."""
    ran_cold: bool = False
    """Whether an earlier attempt ran cold: the engine of its warm-up had been killed."""
    killed_by: int | None = None
    """Signal that killed the engine of an earlier attempt."""

    @cached_property
    def readings(self) -> dict[str, list[Observation]]:
        """Observations by metric, in order of time; there may be a million of them."""
        found: dict[str, list[Observation]] = {}
        for o in self.observations:
            found.setdefault(o.metric, []).append(o)
        return found

    @cached_property
    def ranks(self) -> dict[str, set[int | None]]:
        """Ranks that have a reading, by metric."""
        return {metric: {o.rank for o in readings} for metric, readings in self.readings.items()}

    @property
    def number(self) -> int:
        return self.planned.number

    @property
    def ok(self) -> bool:
        return self.ended is not None and self.ended.status == "ok"

    def last_markers(self) -> dict[int, Markers]:
        return {rank: seen[-1] for rank, seen in self.markers.items()}


def gather(plan: Plan, records: Sequence[Record]) -> list[BootEvidence]:
    """One entry a planned boot, in planned order; attempts before the last are left out.

    In a pool every host has warm-ups of its own: one entry for each host whose boots are measured.
    """
    planned = {boot.number: boot for boot in plan.boots}
    events = [record for record in records if not isinstance(record, Observation)]
    tries: dict[int, dict[int, str | None]] = {number: {} for number in planned}
    interrupted: set[tuple[int, str | None]] = set()
    cold: set[tuple[int, str | None]] = set()
    killed: dict[tuple[int, str | None], int] = {}
    for record in events:
        if isinstance(record, BootStarted) and record.boot in tries:
            tries[record.boot][record.attempt] = record.host
        elif isinstance(record, BootEnded) and record.status == "interrupted" and record.boot in tries:
            place = record.boot, tries[record.boot].get(record.attempt)
            if record.killed_by is not None:
                killed[place] = record.killed_by
            else:
                (cold if record.reason == RAN_COLD else interrupted).add(place)
    last = {number: max(hosts) for number, hosts in tries.items() if hosts}
    measuring = {tries[n][last[n]] for n in last if planned[n].phase == "measured"}
    found: dict[tuple[int, int], BootEvidence] = {}
    for number, boot in planned.items():
        of_host = {host: attempt for attempt, host in sorted(tries[number].items())}
        chosen: dict[str | None, int] = {None: 0}
        if boot.phase != "measured" and any(measuring):
            chosen = {host: of_host.get(host, 0) for host in sorted(measuring, key=str)}
        elif number in last:
            chosen = {tries[number][last[number]]: last[number]}
        for host, attempt in chosen.items():
            # An earlier attempt at a measured boot may have run on another host; warm-ups have a host of their own.
            places = [p for p in (*interrupted, *cold, *killed) if p[0] == number]
            seen = [p for p in places if boot.phase == "measured" or p[1] == host]
            again = seen if attempt > 1 else []
            # An attempt that never was gets a place of its own, where no record will find it.
            found[number, attempt or -len(found)] = BootEvidence(
                boot,
                host=host,
                repeated=any(place in interrupted for place in again),
                ran_cold=any(place in cold for place in again),
                killed_by=next((killed[place] for place in again if place in killed), None),
            )
    for record in events:
        evidence = None if isinstance(record, Run) else found.get((record.boot, record.attempt))
        if evidence is not None:
            _add(evidence, record)
    _add_readings(found, records)
    return list(found.values())


def hosts_of(boots: Sequence[BootEvidence], records: Sequence[Record]) -> list[Host]:
    """The machines of a pool that measured boots ran on; empty without a pool."""
    used = {boot.host for boot in boots if boot.planned.phase == "measured" and boot.host is not None}
    if not used:
        return []
    known = {host.name: host for record in records if isinstance(record, Run) for host in record.hosts}
    return [host for name, host in known.items() if name in used]


def _add_readings(found: Mapping[tuple[int, int], BootEvidence], records: Sequence[Record]) -> None:
    """Give every reading to its boot. Those of one boot mostly come together, so that few look-ups find a million."""
    boot = attempt = None
    take: Callable[[Observation], None] | None = None
    for record in records:
        if isinstance(record, Observation):
            if record.boot != boot or record.attempt != attempt:
                boot, attempt = record.boot, record.attempt
                evidence = found.get((boot, attempt))
                take = evidence.observations.append if evidence else None
            if take is not None:
                take(record)


def _add(boot: BootEvidence, record: Record) -> None:
    if isinstance(record, BootEnded):
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
