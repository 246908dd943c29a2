"""Floors: how far a metric moves when nothing changes, for one machine, one build and one metric."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dsbench.fingerprint import Fingerprint, fingerprint

if TYPE_CHECKING:
    from dsbench.evidence import BootEvidence
    from dsbench.metrics import Metric
    from dsbench.records import Arm, Plan

FOLDER = "floors"
FEWEST = 3
"""Boots, or blocks, from which a spread is worth storing."""


class _Noun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Build(_Noun):
    """What the measured engine was made of. Toggles are no part of it, nor is the seed; the versions of its
    environment stand in the fingerprint."""

    engine: str
    dims: dict[str, Any]
    args: list[str]
    speculative: str | None
    env: dict[str, str]
    """Digests of the values, which may be paths: all that matters is whether they are the same."""
    place: str = ""
    """Digest of the commands or the URL of an engine that somebody else starts."""


class Floor(_Noun):
    """The A/A spread of one metric. Fractions of the metric, or in its unit where `relative` is false."""

    metric: str
    unit: str
    rank: int | None
    probe: str
    """Digest of the settings of the probe that read it: other settings, other noise."""
    boots: int
    blocks: int
    centre: float
    """Median over the boots, in the unit."""
    relative: bool
    between: float
    """Standard deviation between boots."""
    within: float | None = None
    """Pooled standard deviation of the readings inside a boot, where there are several."""
    drift: float
    """Change over the whole run, by the straight line through the boots in order of time."""
    drift_p: float | None = None
    """Of Kendall's test that there is no trend; None if all boots read the same."""
    paired: float
    """Root mean square of the differences between the two boots of a block: what a comparison is up against. Their
    true mean is known to be 0, so what they are off by counts as noise."""
    smallest_effect: float | None = None
    """Smallest change beyond the metric's margin called with 80 % power at this many blocks, where it is tested alone;
    None if so few could call none, 0 if any would show."""

    def noise(self, blocks: int) -> float:
        """What 95 % of A/A experiments of so many blocks stay below; no claim is made below it."""
        from scipy.stats import t as student

        return float(student.isf(0.025, self.blocks) * self.paired / math.sqrt(blocks)) if self.paired else 0.0

    def visible(self, blocks: int, alpha: float, margin: float) -> float | None:
        """Smallest change called with 80 % power by a test of this metric alone; None if none could be, the margin
        where all boots read the same. The margin is a fraction where `relative`, else in the unit."""
        from dsbench.stats.power import smallest_effect

        least = math.log1p(margin) if self.relative else margin
        return smallest_effect(self.paired, blocks, alpha, max(least, self.noise(blocks))) if self.paired else least


class Floors(_Noun):
    """One A/A run, as stored."""

    version: int = 1
    id: str
    """Of the experiment it was taken from."""
    created: str
    suite: str
    fingerprint: Fingerprint
    build: Build
    boot_seconds: float
    """Median of its measured boots, from start to the end of the process group."""
    floors: list[Floor]


def build_of(plan: Plan, arm: Arm) -> Build:
    """The build of one arm of a plan."""
    args = list(plan.engine_args)
    if "--seed" in args:
        at = args.index("--seed")
        del args[at : at + 2]
    return Build(
        engine=plan.engine,
        dims=plan.dims,
        args=[*args, *arm.args],
        speculative=arm.speculative or "none",
        env={name: _digest(value) for name, value in sorted(arm.env.items())},
        place=_digest(f"{plan.rig.model_dump_json() if plan.rig else ''} {arm.url}") if plan.rig or arm.url else "",
    )


def probe_digest(plan: Plan, key: str) -> str:
    """Digest of the settings of the probe that reports a metric; '' if the plan has none that does."""
    for name in plan.probes.names():
        if key in plan.probes.metrics(name):
            settings = getattr(plan.probes, name).model_dump_json()
            return _digest(f"{name} {settings}")
    return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


# --- measuring ------------------------------------------------------------------------------------------------------


def measure(plan: Plan, boots: Sequence[BootEvidence], machine: Fingerprint) -> Floors:
    """Floors from the measured boots of an A/A plan that ended well.

    Metrics that are no number at every boot have none, and so have items and counter-ratios.
    """
    read_back = next((boot.conditions[0] for boot in boots if 0 in boot.conditions), {})
    found = [_floor(plan, boots, metric, rank) for metric in plan.metrics for rank in _ranks(boots, metric.key)]
    return Floors(
        id=plan.id,
        created=plan.created,
        suite=plan.suite,
        fingerprint=machine.read_back(read_back),
        build=build_of(plan, plan.baseline),
        boot_seconds=median(boot.ended.seconds for boot in boots if boot.ended),
        floors=[floor for floor in found if floor],
    )


def _ranks(boots: Sequence[BootEvidence], key: str) -> list[int | None]:
    ranks = {o.rank for boot in boots for o in boot.readings.get(key, ())}
    return sorted(ranks, key=lambda rank: -1 if rank is None else rank)


def _floor(plan: Plan, boots: Sequence[BootEvidence], metric: Metric, rank: int | None) -> Floor | None:
    if metric.kind not in ("exact", "sample"):
        return None
    values: list[float] = []
    blocks: dict[int, dict[str, float]] = {}
    raws: list[list[float]] = []
    for boot in boots:
        seen = [o for o in boot.readings.get(metric.key, ()) if o.rank == rank]
        value = seen[0].value if len(seen) == 1 else None
        if not isinstance(value, int | float):
            return None
        values.append(float(value))
        if boot.planned.block is not None:
            blocks.setdefault(boot.planned.block, {})[boot.planned.arm] = float(value)
        if metric.clock and seen[0].raw and len(seen[0].raw) > 1:
            raws.append(seen[0].raw)
    a, b = plan.arms[0].name, plan.arms[1].name
    pairs = [(of_arm[a], of_arm[b]) for of_arm in blocks.values() if {a, b} <= of_arm.keys()]
    if len(values) < FEWEST or len(pairs) < FEWEST:
        return None
    relative = min(values) > 0 and not metric.absolute
    steps = [_step(x, y, relative) for x, y in pairs]
    from_first = [_step(values[0], value, relative) for value in values]
    drift, p = _trend(from_first)
    floor = Floor(
        metric=metric.key,
        unit=metric.unit,
        rank=rank,
        probe=probe_digest(plan, metric.key),
        boots=len(values),
        blocks=len(pairs),
        centre=median(values),
        relative=relative,
        between=stdev(from_first),
        within=_within(raws, relative),
        drift=drift,
        drift_p=p,
        paired=math.sqrt(fmean(step * step for step in steps)),
    )
    margin = metric.margin if relative or metric.absolute else metric.margin * abs(floor.centre)
    return floor.model_copy(update={"smallest_effect": floor.visible(len(pairs), plan.alpha, margin)})


def _step(x: float, y: float, relative: bool) -> float:
    return math.log(y / x) if relative else y - x


def _within(raws: Sequence[Sequence[float]], relative: bool) -> float | None:
    """Pooled over boots; readings of a boot share its mean."""
    if not raws:
        return None
    spreads = [stdev([_step(fmean(raw), value, relative) for value in raw]) for raw in raws]
    weights = [len(raw) - 1 for raw in raws]
    return math.sqrt(sum(w * s * s for w, s in zip(weights, spreads, strict=True)) / sum(weights))


def _trend(values: Sequence[float]) -> tuple[float, float | None]:
    """Change along the least-squares line from the first boot to the last, and Kendall's p."""
    if len(set(values)) == 1:
        return 0.0, None
    from scipy.stats import kendalltau, linregress

    order = range(len(values))
    return float(linregress(order, values).slope) * (len(values) - 1), float(kendalltau(order, values).pvalue)


# --- storing and matching -------------------------------------------------------------------------------------------


def save(floors: Floors, out: Path) -> Path:
    """Write one file a run under `out`/floors."""
    from dsbench.store import write_text

    path = out / FOLDER / f"{floors.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, floors.model_dump_json(indent=1) + "\n")
    return path


def stored(out: Path) -> tuple[list[Floors], list[str]]:
    """All floors under `out`, newest first, and a notice for each file that this version does not read."""
    found, notices = [], []
    for path in sorted((out / FOLDER).glob("*.json"), reverse=True):
        try:
            found.append(Floors.model_validate_json(path.read_bytes()))
        except (OSError, ValidationError):
            notices.append(f"{path} holds no floors that this version reads: measure them again with dsbench aa")
    return found, notices


def match(plan: Plan, known: Sequence[Floors], machine: Fingerprint) -> tuple[list[Floor], list[str]]:
    """The newest floors of the baseline's build on this machine, one a metric; and what a reader should know.

    Floors of another fingerprint are expired: they are not given, and the notice says what changed.
    """
    build = build_of(plan, plan.baseline)
    of_build = [floors for floors in known if floors.build == build]
    valid = [floors for floors in of_build if floors.fingerprint == machine]
    found: dict[tuple[str, int | None], Floor] = {}
    for floors in valid:
        for floor in floors.floors:
            if floor.probe == probe_digest(plan, floor.metric):
                found.setdefault((floor.metric, floor.rank), floor)
    if found:
        return list(found.values()), []
    if of_build and not valid:
        changed = ", ".join(of_build[0].fingerprint.changes(machine))
        return [], [f"floors of {of_build[0].created[:10]} expired ({changed}): measure them again with dsbench aa"]
    return [], ["no floors of this build on this machine: dsbench aa measures what moves when nothing changes"]


def snapshot(plan: Plan, out: Path, *, told: bool = True, machine: Fingerprint | None = None) -> Plan:
    """The plan with its machine's fingerprint and the floors that hold there; notes say what is missing if `told`.

    `machine` is that of all hosts of a pool; this one without it.
    """
    machine = machine or fingerprint(plan.baseline.python)
    known, notices = stored(out)
    found, more = match(plan, known, machine)
    noisy = any(metric.kind == "sample" for metric in plan.metrics)
    notes = [*plan.notes, *notices, *more] if told and noisy else plan.notes
    return plan.model_copy(update={"fingerprint": machine, "floors": found, "notes": notes})
