"""The memory ladder three ways: projected at full size, measured on the embedded engine, and as it was published."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

from dsbench import published
from dsbench.builds import ArmSpec
from dsbench.errors import InputError
from dsbench.evidence import gather
from dsbench.projection import ProjectedStep, Projection
from dsbench.records import Plan, Record
from impl.dims import FLASH, Dims
from impl.kv_geometry import Capacity, KvGeometry
from impl.toggles import REGISTRY

ROWS = tuple(state.toggle for state in published.STATES if state.toggle)
"""Toggles with a row in the source document's table, in its order."""
APART = ("c128a_topk_shared", "dflash_staging_skip")
"""Memory toggles without one."""
METHOD = "dspark"
"""The source document's table is of DSpark; the draft's staging is there with it only."""
COMPONENTS = {"persistent_bytes": "", "peak_activation_bytes": "profile", "runtime_peak_bytes": "serve"}
"""Figures of a measured profile, and the phase whose bytes they are; persistent ones have the toggle's own."""
NEEDED = ("available_bytes", *COMPONENTS, "resident_bytes", "workspace_bytes", "weights_bytes", "index_maps_per_step")


@dataclass(frozen=True)
class LadderRow:
    """One state of the table; each has the changes of those above it."""

    state: str
    toggle: str | None
    step_bytes: int
    """By how much the bytes available for KV pages grew."""
    capacity: Capacity
    phases: Mapping[str, int] = field(default_factory=dict)
    """Bytes that are gone, by the phase where they lived."""
    index_maps: int = 0
    """Index maps a step fewer."""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "toggle": self.toggle,
            "step_bytes": self.step_bytes,
            "available_bytes": self.capacity.available_bytes,
            "blocks": self.capacity.blocks,
            "tokens": self.capacity.tokens,
            "max_concurrency": self.capacity.max_concurrency,
            "phases": dict(self.phases),
            "index_maps": self.index_maps,
            "note": self.note,
        }


@dataclass(frozen=True)
class Distance:
    """How far one row is from the published one of the same state."""

    state: str
    step_bytes: int
    """This row's step less the published one, which is known to a block."""
    blocks: int
    tokens: int

    @classmethod
    def of(cls, row: LadderRow, other: LadderRow) -> Distance:
        mine, its = row.capacity, other.capacity
        return cls(row.state, row.step_bytes - other.step_bytes, mine.blocks - its.blocks, mine.tokens - its.tokens)


# --- published ------------------------------------------------------------------------------------------------------


def published_rows(tokens: int, max_model_len: int) -> list[LadderRow]:
    """The source document's table; its steps are whole blocks, as block counts are all it tells."""
    rows: list[LadderRow] = []
    for state, row in zip(published.STATES, published.rows(tokens, max_model_len), strict=True):
        before = rows[-1].capacity.used_bytes if rows else row.capacity.used_bytes
        rows.append(LadderRow(state.name, state.toggle, row.capacity.used_bytes - before, row.capacity))
    return rows


def published_budget() -> int:
    """KV bytes of the published table's first row."""
    return published.STATES[0].blocks * KvGeometry.of(FLASH).block_bytes(published.SOURCE_RULE)


def comparable(projection: Projection) -> str:
    """Why a projection does not stand beside the published table; empty where it does."""
    here = (projection.dims["max_num_batched_tokens"], projection.dims["max_model_len"])
    if projection.dims["name"] != FLASH.name:
        return f"the published table is of {FLASH.name}, this is {projection.dims['name']}"
    if (projection.platform, projection.tp) != ("sm120", published.SOURCE_TP):
        return f"the published table is of sm120 at TP={published.SOURCE_TP}"
    if here != (FLASH.max_num_batched_tokens, FLASH.max_model_len):
        return f"the published table is of T={FLASH.max_num_batched_tokens:,} and {FLASH.max_model_len:,} tokens"
    return ""


# --- projected ------------------------------------------------------------------------------------------------------


def projected_rows(projection: Projection, budget: int) -> list[LadderRow]:
    """The table from a baseline with `budget` bytes of KV memory; tokens and concurrency by the source's rule."""
    dims = Dims.from_json(projection.dims)
    rows = [LadderRow(_state(None), None, 0, _worth(dims, dims.n_draft_layers, budget))]
    for step in projection.cumulative:
        available = rows[-1].capacity.available_bytes + step.line_bytes
        rows.append(_projected(step, _worth(dims, dims.n_draft_layers, available)))
    return rows


def projected_apart(projection: Projection, budget: int) -> list[LadderRow]:
    """Toggles without a published row, each against the baseline."""
    dims = Dims.from_json(projection.dims)
    return [_projected(step, _worth(dims, dims.n_draft_layers, budget + step.line_bytes)) for step in projection.apart]


def _projected(step: ProjectedStep, capacity: Capacity) -> LadderRow:
    unverified = REGISTRY[step.toggle].unverified_on
    note = f"unverified on {unverified}" if unverified else ""
    if step.refused:
        note = f"refused: {'; '.join(step.refused)}"
    if step.modelled:
        note = "modelled reservation"
    return LadderRow(_state(step.toggle), step.toggle, step.line_bytes, capacity, step.phases, step.index_maps, note)


def _worth(dims: Dims, draft_layers: int, available: int) -> Capacity:
    geometry = KvGeometry.of(dims, n_draft_layers=draft_layers)
    return geometry.capacity(available, dims.max_num_batched_tokens, dims.max_model_len, published.SOURCE_RULE)


# --- measured -------------------------------------------------------------------------------------------------------


def ladder_arms() -> list[ArmSpec]:
    """The states of the table as arms, then each toggle without a row alone."""
    prefixes = [(state.toggle or "baseline", ROWS[:i]) for i, state in enumerate(published.STATES)]
    return [ArmSpec(name, METHOD, toggles) for name, toggles in [*prefixes, *((name, (name,)) for name in APART)]]


def measured_rows(plan: Plan, records: Sequence[Record]) -> tuple[list[LadderRow], list[LadderRow]]:
    """The table, and the rows apart, from a stored experiment's memory profiles.

    Each step is the difference of two arms that differ in that toggle only. Raises InputError where the experiment has
    no such arms, or an arm's boots disagree.
    """
    arms = _profiles(plan, records)
    dims = Dims.from_json(plan.dims)
    drafts = {"dspark": dims.n_draft_layers, "mtp": 1}.get(plan.baseline.speculative or "none", 0)
    start: frozenset[str] = frozenset()
    if start not in arms:
        raise InputError(f"{plan.id} has no arm without toggles: a ladder starts from one")
    rows = [LadderRow(_state(None), None, 0, _worth(dims, drafts, arms[start]["available_bytes"]))]
    done = start
    for toggle in ROWS:
        step = _measured(toggle, arms, done)
        available = rows[-1].capacity.available_bytes + step["available_bytes"]
        rows.append(_measured_row(toggle, step, _worth(dims, drafts, available)))
        done |= {toggle}
    apart = [(name, _measured(name, arms, start)) for name in APART if any(name in arm for arm in arms)]
    base = rows[0].capacity.available_bytes
    return rows, [_measured_row(name, s, _worth(dims, drafts, base + s["available_bytes"])) for name, s in apart]


def _profiles(plan: Plan, records: Sequence[Record]) -> dict[frozenset[str], dict[str, int]]:
    """By the optimizations that are on: the figures that all boots and ranks of an arm agree on."""
    found: dict[frozenset[str], dict[str, int]] = {}
    for arm in plan.arms:
        boots = [b for b in gather(plan, records) if b.planned.arm == arm.name and b.ok and b.planned.block is not None]
        values = [profile for boot in boots for profile in boot.kv_profiles.values()]
        if not values:
            raise InputError(f"{plan.id}: no boot of arm '{arm.name}' has a memory profile")
        for name in NEEDED:
            seen = sorted({str(value.get(name)) for value in values})
            if len(seen) > 1 or seen == ["None"]:
                raise InputError(f"{plan.id}: {name} of arm '{arm.name}' is {' or '.join(seen)}: boot it again")
        found[frozenset(arm.takes)] = {name: int(values[0][name]) for name in NEEDED}
    return found


def _measured(toggle: str, arms: Mapping[frozenset[str], dict[str, int]], done: frozenset[str]) -> dict[str, int]:
    """What turning on `toggle` changed, by figure: against the states before it, or else between any two arms."""
    pairs = [(a, b) for a, b in permutations(arms, 2) if b - a == {toggle} and a < b]
    if not pairs:
        raise InputError(f"no two arms differ in {toggle} alone: run 'dsbench ladder --measured'")
    before, after = min(pairs, key=lambda pair: pair[0] != done)
    return {name: arms[after][name] - arms[before][name] for name in NEEDED}


def _measured_row(toggle: str, step: Mapping[str, int], capacity: Capacity) -> LadderRow:
    freed = {phase or REGISTRY[toggle].phase: -step[name] for name, phase in COMPONENTS.items()}
    # What is resident counts load and init too; the rest of its change came after the profile.
    earlier = step["persistent_bytes"] + step["workspace_bytes"] + step["weights_bytes"]
    freed["after profile"] = freed.get("after profile", 0) + earlier - step["resident_bytes"]
    return LadderRow(
        _state(toggle), toggle, step["available_bytes"], capacity, {k: v for k, v in freed.items() if v},
        -step["index_maps_per_step"],
    )  # fmt: skip


def expected_step(toggle: str | None, dims: Dims) -> int:
    """Bytes by which a toggle should move this engine's own line at `dims`, by the registry's formula."""
    known = REGISTRY[toggle] if toggle else None
    return known.expected_bytes(dims) if known and known.moves_line and known.expected_bytes else 0


def _state(toggle: str | None) -> str:
    names: Iterable[str] = (state.name for state in published.STATES if state.toggle == toggle)
    return next(iter(names), toggle or "")
