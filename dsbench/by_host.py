"""Effects host by host: whether a toggle does the same on every machine of a pool, and what that makes of a row."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from dsbench.fingerprint import Fingerprint, Host

if TYPE_CHECKING:
    from dsbench.evidence import BootEvidence
    from dsbench.records import Verdict, VoidReason

Values = Mapping[int, float]
"""By boot."""
OF_A_MACHINE = {"device", "threads", "python", "torch", "cache_state"}
"""Conditions that tell of the machine. Hosts of a pool may differ in them, since each block lies on one of them."""


class ByHost(BaseModel):
    """One row's difference on each host of a pool."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    effects: dict[str, float]
    """By host: of samples the mean over its blocks, in the terms of the row's interval; of exact metrics the delta."""
    blocks: dict[str, int]
    """By host."""
    levels: dict[str, float] = {}
    """By host: what the baseline reads there, of samples the mean over its blocks."""
    p: float | None = None
    """Of the hypothesis that the difference does not depend on the host; None if no test could have said otherwise."""
    smallest_p: float | None = None
    differs: bool
    """p at most alpha; for exact metrics, whether two hosts read different differences."""


# --- samples --------------------------------------------------------------------------------------------------------


def samples_by_host(row: Verdict, a: Values, b: Values, boots: Sequence[BootEvidence], alpha: float) -> Verdict:
    """The row with its effect on each host, and the test of toggle by host over the blocks.

    A pooled effect that differs by host is nobody's: it is not claimed as an improvement, and as equivalence only
    where each host's own effect is inside the margin. A loss stays one.
    """
    logs = row.interval_of == "relative"
    pairs = _pairs(a, b, boots)
    if len(pairs) < 2:
        return row
    steps = {host: [math.log(y / x) if logs else y - x for x, y in of_host] for host, of_host in pairs.items()}
    from dsbench.stats.interaction import interaction_p, smallest_interaction_p

    tested = [values for values in steps.values() if len(values) > 1]
    least = smallest_interaction_p([len(values) for values in tested])
    p = interaction_p(tested) if least <= alpha else None
    effects = {host: math.expm1(fmean(values)) if logs else fmean(values) for host, values in steps.items()}
    differs = p is not None and p <= alpha
    found = ByHost(
        effects=effects,
        blocks={host: len(values) for host, values in steps.items()},
        levels={host: fmean(x for x, _ in of_host) for host, of_host in pairs.items()},
        p=p,
        smallest_p=least,
        differs=differs,
    )
    row = row.model_copy(update={"by_host": found})
    if not differs:
        return row
    note = f"the effect differs by host: {told(row)}, p={p:.2g}"
    margin = row.margin if logs or row.margin_absolute else row.margin * abs(row.baseline or 0.0)
    inside = all(abs(effect) < margin for effect in effects.values())
    if row.word == "improved" or (row.word == "equivalent" and not inside):
        note += f"; one {row.word} for all of them is not claimed"
        return row.model_copy(update={"word": "inconclusive", "notes": [*row.notes, note]})
    return row.model_copy(update={"notes": [*row.notes, note]})


def _pairs(a: Values, b: Values, boots: Sequence[BootEvidence]) -> dict[str, list[tuple[float, float]]]:
    """Baseline and candidate of the blocks that have both arms, by host."""
    blocks: dict[int, dict[str, float]] = {}
    hosts: dict[int, str] = {}
    for boot in boots:
        block = boot.planned.block
        if block is not None and boot.host is not None:
            hosts[block] = boot.host
            for arm, values in (("a", a), ("b", b)):
                if boot.number in values:
                    blocks.setdefault(block, {})[arm] = values[boot.number]
    found: dict[str, list[tuple[float, float]]] = {}
    for block, pair in sorted(blocks.items(), key=lambda entry: (hosts[entry[0]], entry[0])):
        if len(pair) == 2:
            found.setdefault(hosts[block], []).append((pair["a"], pair["b"]))
    return found


# --- exact ----------------------------------------------------------------------------------------------------------


def steady_by_host(a: Values, b: Values, boots: Sequence[BootEvidence]) -> dict[str, tuple[float, float, int]]:
    """What baseline and candidate read on each host, and in how many boots of the arm that has fewer.

    Empty with one host, where a host lacks an arm, and where an arm varies on a host.
    """
    found: dict[str, tuple[float, float, int]] = {}
    hosts = sorted({boot.host for boot in boots if boot.host is not None and (boot.number in a or boot.number in b)})
    for host in hosts:
        numbers = [boot.number for boot in boots if boot.host == host]
        of_a, of_b = [a[n] for n in numbers if n in a], [b[n] for n in numbers if n in b]
        if len(set(of_a)) != 1 or len(set(of_b)) != 1:
            return {}
        found[host] = of_a[0], of_b[0], min(len(of_a), len(of_b))
    return found if len(found) > 1 else {}


def exact_by_host(steady: Mapping[str, tuple[float, float, int]]) -> ByHost:
    """Differences of values that every boot of a host repeats."""
    effects = {host: candidate - baseline for host, (baseline, candidate, _) in steady.items()}
    return ByHost(
        effects=effects,
        blocks={host: boots for host, (_, _, boots) in steady.items()},
        levels={host: baseline for host, (baseline, _, _) in steady.items()},
        differs=len(set(effects.values())) > 1,
    )


def differs_reasons(rows: Sequence[Verdict]) -> Iterator[VoidReason]:
    """Bytes that a toggle moves by one number on one host and by another on the next: there is no one answer."""
    from dsbench.records import VoidReason

    for row in rows:
        if row.kind == "exact" and row.role != "shown" and row.by_host is not None and row.by_host.differs:
            yield VoidReason(
                code="host-differs",
                text=f"{row.metric} of {row.arm} differs by host: {told(row)}",
                mend="run each kind of machine as an experiment of its own, or take hosts that are alike",
                arm=row.arm,
            )


# --- conditions -----------------------------------------------------------------------------------------------------


def among_hosts(key: str, boots: Sequence[BootEvidence]) -> list[list[BootEvidence]]:
    """Boots that must read one value of a condition: those of each host where it tells of the machine, else all."""
    if key not in OF_A_MACHINE:
        return [list(boots)]
    hosts: dict[str | None, list[BootEvidence]] = {}
    for boot in boots:
        hosts.setdefault(boot.host, []).append(boot)
    return list(hosts.values())


def unequal(hosts: Sequence[Host], boots: Sequence[BootEvidence] = ()) -> list[str]:
    """How the hosts of a pool differ, one line each that is not like the first, and a line a condition read there."""
    found = []
    for host in hosts[1:]:
        if changes := hosts[0].fingerprint.changes(host.fingerprint):
            found.append(
                f"hosts differ: {hosts[0].name} -> {host.name}: {', '.join(changes)}; effects are those inside blocks, "
                "each on one host"
            )
    for key in sorted(OF_A_MACHINE - Fingerprint.model_fields.keys()):
        read: dict[str, set[str]] = {}
        for boot in boots:
            if boot.host is not None:
                read.setdefault(boot.host, set()).update(str(v[key]) for v in boot.conditions.values() if key in v)
        if len({frozenset(values) for values in read.values()}) > 1:
            told = ", ".join(f"{host} {' and '.join(sorted(values)) or 'unknown'}" for host, values in read.items())
            found.append(f"hosts read back different {key}: {told}; effects are those inside blocks, each on one host")
    return found


# --- words ----------------------------------------------------------------------------------------------------------


def told(row: Verdict) -> str:
    """`host1 +2.0 % of 98.3 tok/s, host2 -3.0 % of 49.1 tok/s`; bytes move by themselves, whatever they move from."""
    if row.by_host is None:
        return ""
    relative = row.kind != "exact" and row.interval_of == "relative"
    return ", ".join(
        f"{host} {effect * 100:+.1f} %{_of(row, host)}" if relative else f"{host} {effect:+,.10g} {row.unit}"
        for host, effect in row.by_host.effects.items()
    )


def _of(row: Verdict, host: str) -> str:
    level = row.by_host.levels.get(host) if row.by_host is not None else None
    return f" of {level:,.4g} {row.unit}" if level is not None else ""
