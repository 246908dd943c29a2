"""Conditions in a report: what was to differ, what did, what every boot read back alike, and what nobody knows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsbench.by_host import among_hosts
from dsbench.evidence import BootEvidence
from dsbench.records import Plan
from dsbench.report.table import declared_lines, ranges
from dsbench.void_ranks import UNCOMPARED


@dataclass(frozen=True)
class Differing:
    """A condition that not all boots read back alike."""

    name: str
    declared: bool
    """Whether an arm says that it may differ."""
    values: list[tuple[str, str]]
    """Value, and where it was read."""
    by_host: bool = False
    """Whether each host of a pool read one value, of a condition that tells of its machine."""

    @property
    def how(self) -> str:
        if self.by_host:
            return "differs by host"
        return "differs as declared" if self.declared else "differs, undeclared"


@dataclass(frozen=True)
class ConditionsRead:
    declared: list[str]
    differing: list[Differing]
    same: list[tuple[str, str]]
    unknown: list[str]


def conditions(plan: Plan, boots: Sequence[BootEvidence]) -> ConditionsRead:
    """Facts of all boots and ranks; toggles and build are told by the declared lines, process ids by no one."""
    read = [(boot, rank, values) for boot in boots for rank, values in boot.conditions.items()]
    differing, same, unknown = [], [], []
    for name in sorted({name for _, _, values in read for name in values} - UNCOMPARED):
        groups: dict[str, list[tuple[BootEvidence, int]]] = {}
        for boot, rank, values in read:
            groups.setdefault(text(values.get(name, "unknown")), []).append((boot, rank))
        if len(groups) > 1:
            may = any(name in arm.declared for arm in plan.arms)
            by_host = _by_host(name, read)
            where = _hosts if by_host else partial(_where, plan)
            differing.append(Differing(name, may, [(value, where(found)) for value, found in groups.items()], by_host))
        elif (value := next(iter(groups))) in ("null", "unknown"):
            unknown.append(name)
        else:
            same.append((name, value))
    return ConditionsRead(declared_lines(plan), differing, same, unknown)


def machine(plan: Plan, boots: Sequence[BootEvidence]) -> list[tuple[str, str]]:
    """The machine that the plan was made on; names of accelerators come from the conditions where it was not kept."""
    if plan.fingerprint is None:
        devices = sorted({str(v["device"]) for boot in boots for v in boot.conditions.values() if v.get("device")})
        return [("device", ", ".join(devices))] if devices else []
    known = plan.fingerprint.model_dump()
    return [(name, text(value)) for name, value in known.items() if value not in ([], None, "")]


def text(value: Any) -> str:
    """A value in one line; texts, and lists of them, without quotes."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _by_host(name: str, read: Sequence[tuple[BootEvidence, int, dict[str, Any]]]) -> bool:
    hosts = among_hosts(name, [boot for boot, _, _ in read])
    return len(hosts) > 1 and all(
        len({text(values.get(name, "unknown")) for boot in of_host for values in boot.conditions.values()}) == 1
        for of_host in hosts
    )


def _hosts(found: Sequence[tuple[BootEvidence, int]]) -> str:
    return ", ".join(sorted({str(boot.host) for boot, _ in found}))


def _where(plan: Plan, found: Sequence[tuple[BootEvidence, int]]) -> str:
    """`arm x`, or the boots where only some of an arm read it."""
    boots = {boot.number: boot.planned.arm for boot, _ in found}
    arms = sorted(set(boots.values()))
    whole = [arm for arm in arms if all(b.number in boots for b in plan.boots if b.arm == arm)]
    if whole == arms:
        return f"arm{'s' if len(arms) > 1 else ''} {', '.join(arms)}"
    return f"boot{'s' if len(boots) > 1 else ''} {ranges(list(boots))} ({', '.join(arms)})"
