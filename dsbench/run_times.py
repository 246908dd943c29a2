"""How long a suite takes: measured where a stored result ran it, else estimated from boots that ran its probes.

Either way it is a sum: starts of boots, and each probe as often as its own `blocks` let it run.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from dsbench.errors import InputError
from dsbench.records import Plan
from dsbench.store import PLAN, RECORDS, load_plan
from dsbench.suite import Suite

ARMS = 2
"""A run time is that of one candidate beside the baseline."""
KINDS = (b'"record":"boot_ended"', b'"record":"check"')


@dataclass(frozen=True)
class RunTime:
    """Time of one experiment of a suite with two arms."""

    seconds: float
    place: str
    """Engine, model and machine."""
    source: str
    """Results that it comes from."""
    estimated: bool
    missing: list[str] = field(default_factory=list)
    """Probes that its plan left out, since they do not fit the build: the time is without them."""


@dataclass
class Timed:
    """Seconds of the boots of one stored result."""

    plan: Plan
    name: str
    boots: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Whole boots, by phase."""
    starts: list[float] = field(default_factory=list)
    """Measured boots without their probes."""
    probes: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @property
    def place(self) -> str:
        machine = self.plan.fingerprint
        where = "unknown machine" if machine is None else _machine(machine.gpus, machine.cpu, machine.cores)
        return f"{self.plan.engine} {self.plan.dims.get('name', '?')}, {where}"


def stored_times(out: Path) -> list[Timed]:
    """Times of every result under a folder; what this version cannot read is no source of times."""
    found = []
    for path in sorted(out.rglob(PLAN)):
        try:
            timed = Timed(load_plan(path.parent), path.parent.name)
            _read(path.parent / RECORDS, timed)
        except (InputError, OSError, ValueError, KeyError):
            continue
        if timed.starts:
            found.append(timed)
    return found


def run_times(suite: Suite, stored: Sequence[Timed]) -> list[RunTime]:
    """One a place: measured where the suite has run as it is now, estimated elsewhere. A recipe is never estimated.

    Of several results of one place, one with as many blocks as the suite counts, and the latest of those.
    """
    probes = suite.probes.pinned()
    measured: dict[str, tuple[bool, RunTime]] = {}
    others: dict[str, list[Timed]] = defaultdict(list)
    for timed in stored:
        ran = timed.plan.probes
        same = timed.plan.suite == suite.name and timed.plan.until == suite.until
        asked = all(ran.table(name) == getattr(probes, name) and timed.probes[name] for name in ran.names())
        if same and ran.names() and asked:
            left_out = [name for name in probes.names() if name not in ran.names()]
            seconds = {name: median(timed.probes[name]) for name in ran.names()}
            total = _experiment(suite, seconds, median(timed.starts), timed.boots["warm-up"])
            whole = timed.plan.blocks == suite.blocks
            if whole or not measured.get(timed.place, (False,))[0]:
                measured[timed.place] = whole, RunTime(total, timed.place, timed.name, False, left_out)
        elif timed.plan.until == suite.until and suite.build is None:
            others[timed.place].append(timed)
    guesses = [_estimate(suite, place, runs) for place, runs in others.items() if place not in measured]
    return [*(time for _, time in measured.values()), *(guess for guess in guesses if guess is not None)]


def _experiment(suite: Suite, probes: dict[str, float], start: float, warmups: Sequence[float]) -> float:
    """Seconds of the boots of an experiment whose probes and starts take so long; warm-ups, too, if none was timed."""
    runs = {name: min(suite.blocks, suite.probes.table(name).blocks or suite.blocks) for name in probes}
    asked = sum(runs[name] * seconds for name, seconds in probes.items())
    return ARMS * (asked + suite.blocks * start + suite.warmup_boots * (median(warmups) if warmups else start))


def _estimate(suite: Suite, place: str, runs: Sequence[Timed]) -> RunTime | None:
    """From boots of the place that ran the probes with the same settings; None if one of them has not run there."""
    probes = suite.probes.pinned()
    known: dict[str, float] = {}
    for name in probes.names():
        same = [run for run in runs if getattr(run.plan.probes, name) == getattr(probes, name)]
        seconds = [s for run in same for s in run.probes.get(name, ())]
        if not seconds:
            return None
        known[name] = median(seconds)
    start = median(s for run in runs for s in run.starts)
    total = _experiment(suite, known, start, ())
    several = f"{len(runs)} results" if len(runs) > 1 else runs[0].name
    return RunTime(total, place, several, True)


def _read(path: Path, timed: Timed) -> None:
    phases = {boot.number: boot.phase for boot in timed.plan.boots}
    inside: dict[tuple[int, int], float] = defaultdict(float)
    for record in _lines(path):
        boot, attempt = int(record["boot"]), int(record["attempt"])
        if record["record"] == "check":
            inside[boot, attempt] += record["seconds"]
            if record["status"] == "done" and phases[boot] == "measured":
                timed.probes[record["probe"]].append(float(record["seconds"]))
        elif record["status"] == "ok":
            timed.boots[phases[boot]].append(float(record["seconds"]))
            if phases[boot] == "measured":
                timed.starts.append(float(record["seconds"]) - inside[boot, attempt])


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Ends of boots and checks; the other lines, which may be a million, are not parsed."""
    with path.open("rb") as file:
        for line in file:
            if any(kind in line for kind in KINDS):
                yield json.loads(line)


def _machine(gpus: Sequence[str], cpu: str, cores: int) -> str:
    if not gpus:
        return f"{cores} cores"
    name = gpus[0].partition(",")[0]
    return f"{len(gpus)}x {name}" if len(gpus) > 1 else name
