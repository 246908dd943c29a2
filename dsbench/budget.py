"""What a budget of time buys: boots, blocks, and the smallest changes that they could show."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pydantic import ValidationError

from dsbench.errors import InputError
from dsbench.fingerprint import Fingerprint
from dsbench.floors import build_of
from dsbench.records import BootEnded, Plan, PlannedBoot
from dsbench.store import PLAN, load_plan, load_records

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}


@dataclass(frozen=True)
class BootTime:
    """How long one boot takes, from its start to the end of its process group."""

    seconds: float
    boots: int
    """Boots whose median it is."""
    source: str


@dataclass(frozen=True)
class Bought:
    """So many blocks, what they cost, and what they could show."""

    blocks: int
    boots: int
    seconds: float | None
    """None without a measured boot time."""
    visible: dict[str, float | None]
    """Smallest change seen with 80 % power by sample metric, as a fraction; None where no change could be."""


def duration(text: str) -> float:
    """Seconds of `2h`, `90m`, `1h30m` or `5400`. InputError otherwise."""
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([hms]?)", text.strip())
    if not parts or not re.fullmatch(r"(\s*\d+(\.\d+)?\s*[hms]?)+\s*", text):
        raise InputError(f"--budget '{text}' is no time; write 2h, 90m, 1h30m or 5400s")
    return sum(float(figure) * UNITS[unit] for figure, unit in parts)


def boots_of(plan: Plan, blocks: int) -> int:
    """Boots of so many blocks, warm-ups included and reused ones not."""
    return sum(boot.phase == "warm-up" for boot in plan.boots) + _arms_that_run(plan) * blocks


def _arms_that_run(plan: Plan) -> int:
    return len(plan.arms) - (plan.reused_from is not None)


def blocks_within(plan: Plan, boot_seconds: float, budget: float) -> int:
    """Most blocks that end within a budget in seconds; 0 if not even one does."""
    warmups = boots_of(plan, 0)
    return max(0, int((budget / boot_seconds - warmups + 1e-9) // _arms_that_run(plan)))


def bought(plan: Plan, blocks: int, time: BootTime | None) -> Bought:
    """The price of so many blocks of a plan, and what its floors say could be seen with them."""
    boots = boots_of(plan, blocks)
    margins = {m.key: m.margin for m in plan.metrics if m.kind == "sample" and not m.absolute}
    visible = {
        f.metric: f.visible(blocks, plan.alpha, margins[f.metric])
        for f in plan.floors
        if f.metric in margins and f.relative
    }
    return Bought(blocks, boots, boots * time.seconds if time else None, visible)


def stored_time(plan: Plan, machine: Fingerprint, out: Path) -> BootTime | None:
    """Median over measured boots of the same probes and build on this machine, from all results under `out`."""
    build = build_of(plan, plan.baseline)
    seconds: list[float] = []
    results = []
    for path in sorted(out.glob(f"*/{PLAN}")):
        try:
            other = load_plan(path.parent)
            same = (other.probes, other.until, other.fingerprint) == (plan.probes, plan.until, machine)
            arms = {arm.name for arm in other.arms if same and build_of(other, arm) == build}
            records = load_records(path.parent)[0] if arms else []
        except (InputError, OSError, ValidationError):
            continue  # not readable by this version: no source of times
        boots = {boot.number for boot in other.boots if boot.arm in arms and boot.phase == "measured"}
        found = [r.seconds for r in records if isinstance(r, BootEnded) and r.boot in boots and r.status == "ok"]
        if found:
            results.append(path.parent.name)
            seconds += found
    if not seconds:
        return None
    several = f"{len(results)} results" if len(results) > 1 else results[0]
    return BootTime(median(seconds), len(seconds), f"measured boots of {several}")


def measured_time(plan: Plan) -> BootTime:
    """Run one boot of the baseline now, keep nothing of it. InputError with the reason if it fails."""
    from dsbench.execute import execute

    one = PlannedBoot(number=1, arm=plan.baseline.name, block=1, phase="measured")
    with tempfile.TemporaryDirectory(prefix="dsbench-") as folder:
        (Path(folder) / "boots").mkdir()
        execute(plan.model_copy(update={"boots": [one], "blocks": 1}), Path(folder), quiet=True)
        (ended,) = _ends(load_records(Path(folder))[0])
    if ended.status != "ok":
        raise InputError(f"the boot to be timed {ended.status}: {ended.reason}")
    return BootTime(ended.seconds, 1, "one boot just now")


def _ends(records: Sequence[object]) -> list[BootEnded]:
    return [record for record in records if isinstance(record, BootEnded)]
