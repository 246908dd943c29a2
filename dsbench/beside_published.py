"""A stored result beside the source document's figures: never pooled, with every difference of condition named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from dsbench import published
from dsbench.arm_figures import Measured, by_arm
from dsbench.evidence import BootEvidence, gather
from dsbench.published_figures import FIGURES, GB10, SM120, Figure, Rig
from dsbench.records import Arm, Plan, Record
from impl.dims import FLASH
from impl.kv_geometry import KvGeometry

UNKNOWN = "unknown"
LINE = "kv.available_bytes"
KV = ((LINE, "B"), ("kv.tokens", "tokens"), ("kv.max_concurrency", "requests"))


@dataclass(frozen=True)
class Row:
    """One published figure, and what each arm of the result read of the same metric."""

    figure: Figure
    ours: dict[str, Measured]
    """By arm."""


@dataclass(frozen=True)
class Step:
    """What an arm's toggles changed of the KV line, here and in the published table."""

    arm: str
    toggles: list[str]
    ours_bytes: float | None
    published_bytes: int
    """In whole blocks of the published geometry, of those toggles that have a row there."""
    without_row: list[str]
    """Toggles of the arm that have none: their part of our figure has no counterpart."""


@dataclass(frozen=True)
class Beside:
    """Everything that is printed."""

    rows: list[Row]
    steps: list[Step]
    conditions: dict[str, dict[str, str]]
    """Those that differ or are unknown, by name: ours, and each rig's."""
    not_measured: list[str]
    """Published metrics that the result does not have."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def beside_published(plan: Plan, records: Sequence[Record], model: Mapping[str, Any]) -> Beside:
    """`model` is the served model's config.json, empty where it was not kept."""
    boots = [boot for boot in gather(plan, records) if boot.ok and boot.planned.phase == "measured"]
    figures = [*kv_figures(), *FIGURES]
    found = {key: by_arm(plan, boots, key) for key in dict.fromkeys(figure.metric for figure in figures)}
    rows = [Row(figure, found[figure.metric]) for figure in figures if found[figure.metric]]
    line = by_arm(plan, boots, LINE)
    steps = [_step(arm, line, plan.baseline.name) for arm in plan.arms[1:]] if line else []
    rigs = list(dict.fromkeys([*(row.figure.rig for row in rows), *([SM120] if steps else [])])) or [SM120, GB10]
    return Beside(
        rows=rows,
        steps=[step for step in steps if step.toggles],
        conditions=_differences(_ours(plan, boots, model), rigs),
        not_measured=[key for key, arms in found.items() if not arms],
    )


# --- the KV line ------------------------------------------------------------------------------------------------------


def _step(arm: Arm, line: Mapping[str, Measured], baseline: str) -> Step:
    known = arm.name in line and baseline in line
    blocks = published_blocks()
    return Step(
        arm=arm.name,
        toggles=arm.toggles,
        ours_bytes=line[arm.name].value - line[baseline].value if known else None,
        published_bytes=sum(blocks.get(toggle, 0) for toggle in arm.toggles) * _block_bytes(),
        without_row=[toggle for toggle in arm.toggles if toggle not in blocks],
    )


def kv_figures() -> list[Figure]:
    """The published table's first and last state: bytes are those of its whole blocks."""
    table = published.rows(FLASH.max_num_batched_tokens, FLASH.max_model_len)
    figures = []
    for row in (table[0], table[-1]):
        values = (row.capacity.used_bytes, row.capacity.tokens, round(row.capacity.max_concurrency, 2))
        for (key, unit), value in zip(KV, values, strict=True):
            figures.append(Figure(key, value, unit, SM120, "3", row.state))
    return sorted(figures, key=lambda figure: [key for key, _ in KV].index(figure.metric))


def published_blocks() -> dict[str, int]:
    """Blocks that each row of the published table gained on the one before it, by toggle."""
    states = published.STATES
    return {b.toggle: b.blocks - a.blocks for a, b in pairwise(states) if b.toggle}


def _block_bytes() -> int:
    return KvGeometry.of(FLASH).block_bytes(published.SOURCE_RULE)


# --- conditions -------------------------------------------------------------------------------------------------------


def _ours(plan: Plan, boots: Sequence[BootEvidence], model: Mapping[str, Any]) -> dict[str, object]:
    """The baseline's conditions, under the names of a rig's."""
    read = [boot.conditions for boot in boots if boot.planned.arm == plan.baseline.name and boot.conditions]
    facts: Mapping[str, Any] = read[0].get(0, {}) if read else {}
    ranks = max((len(conditions) for conditions in read), default=0)
    told = facts.get("dims")
    dims = told if told and isinstance(told, dict) else plan.dims  # a rank may write anything
    gpus = plan.fingerprint.gpus if plan.fingerprint else []
    ratios = dims.get("compress_ratios")
    layers = model.get("num_hidden_layers") or (len(ratios) if ratios and isinstance(ratios, list | tuple) else None)
    graphs = facts.get("graph_mode")
    rejection = facts.get("rejection_sample_method")
    dummy = facts.get("load_format") == "dummy" or facts.get("weights") == "dummy"
    cpu = plan.fingerprint.cpu if plan.fingerprint else None
    return {
        "card": facts.get("device") or (gpus[0].partition(",")[0] if gpus else cpu),
        "cards": ranks or None,
        "engine": plan.engine,
        "version": facts.get("vllm") or facts.get("impl_version"),
        "graphs": graphs and ("none, eager" if graphs == "eager" else "captured"),
        "rejection": rejection and ("synthetic" if rejection == "synthetic" else "by the target"),
        "target layers": layers,
        "weights": "random" if dummy else dims.get("name") if plan.engine == "embedded" else facts.get("load_format"),
        **{key: _of(key, facts, dims) for key in SM120.conditions() if key not in OWN},
    }


OWN = ("card", "cards", "engine", "version", "graphs", "rejection", "target layers", "weights")
"""Conditions that are worked out; the others are read back by name."""


def _of(key: str, facts: Mapping[str, Any], dims: Mapping[str, Any]) -> object:
    return facts.get(key, dims.get(key))


def _differences(ours: Mapping[str, object], rigs: Sequence[Rig]) -> dict[str, dict[str, str]]:
    found = {}
    for key, mine in ours.items():
        theirs = {rig.name: rig.conditions()[key] for rig in rigs}
        if any(not _same(key, mine, value) for value in theirs.values()):
            found[key] = {"ours": _text(mine), **{name: _text(value) for name, value in theirs.items()}}
    return found


def _same(key: str, mine: object, theirs: object) -> bool:
    """An unknown condition is the same as nothing."""
    if mine is None or theirs is None:
        return False
    if key in ("card", "kv_cache_dtype"):
        return str(theirs).lower() in str(mine).lower()
    if key == "weights":
        return mine in ("auto", "trained", "safetensors")
    return mine == theirs


def _text(value: object) -> str:
    return UNKNOWN if value is None else f"{value:,}" if isinstance(value, int) else str(value)
