"""Memory in a report: KV memory by arm as the source document's table has it, and bytes through a boot by component."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsbench.evidence import BootEvidence
from dsbench.records import Arm, Plan
from dsbench.report.readings import measured

SITES_SHOWN = 12

COMPONENTS = {
    "weights_bytes": "weights",
    "persistent_bytes": "persistent buffers",
    "workspace_bytes": "workspace",
    "peak_activation_bytes": "activations at the peak",
    "runtime_peak_bytes": "serving operations, beside the profile",
    "resident_bytes": "all that stays, no KV pages",
    "non_torch_bytes": "outside the allocator",
    "available_bytes": "left for the KV cache",
}


@dataclass(frozen=True)
class KvRow:
    """One arm of the memory table."""

    arm: str
    state: str
    """Its name, and what is on in it where that does not say so."""
    available_bytes: int
    tokens: float | None
    concurrency: float | None
    gain_bytes: int
    """Against the baseline."""
    step_bytes: int | None
    """Against the row before, in a ladder; None in its first row and elsewhere."""
    step_tokens: float | None


@dataclass(frozen=True)
class Component:
    name: str
    baseline: int | None
    candidate: int | None


@dataclass(frozen=True)
class Moment:
    """Bytes alive at one moment of the boot, KV pages apart."""

    name: str
    baseline: int
    candidate: int


@dataclass(frozen=True)
class Site:
    """Tensors alive at the peak that one place of the code allocated."""

    place: str
    tensor: str
    """dtype and shape"""
    baseline: int
    candidate: int
    baseline_count: int
    candidate_count: int


@dataclass(frozen=True)
class Memory:
    """One candidate's boot against the baseline's, rank 0 of the first measured boots."""

    arm: str
    rank: int
    components: list[Component]
    moments: list[Moment]
    sites: list[Site]
    other_sites: int
    """Sites that are not shown, all alike in both arms unless `sites` is full."""
    other_bytes: tuple[int, int]


def kv_rows(plan: Plan, boots: Sequence[BootEvidence]) -> list[KvRow]:
    """One row an arm that says what it leaves for the KV cache, in the plan's order; [] where no arm does."""
    rows: list[KvRow] = []
    ladder = plan.matrix is not None and plan.matrix.kind == "ladder"
    base: int | None = None
    for arm in plan.arms:
        profile = _tightest(boots, arm.name)
        available = profile.get("available_bytes")
        if not isinstance(available, int):
            continue
        if arm is plan.baseline:
            base = available
        if base is None:
            continue
        tokens, before = profile.get("tokens"), rows[-1] if rows and ladder else None
        step = tokens - before.tokens if before and before.tokens is not None and tokens is not None else None
        rows.append(
            KvRow(
                arm=arm.name,
                state=_state(arm, plan.arm(before.arm) if before else None),
                available_bytes=available,
                tokens=tokens,
                concurrency=profile.get("max_concurrency"),
                gain_bytes=available - base,
                step_bytes=available - before.available_bytes if before else None,
                step_tokens=step,
            )
        )
    return rows


def _state(arm: Arm, before: Arm | None) -> str:
    """Of a step of a ladder what it adds, as the source document writes it; else the arm with what is on in it."""
    if before is not None:
        return f"after {' + '.join(toggle for toggle in arm.toggles if toggle not in before.toggles) or arm.name}"
    on = " + ".join(arm.toggles)
    return arm.name if arm.name == "+".join(arm.toggles) or not on else f"{arm.name}: {on}"


def compare_memory(plan: Plan, boots: Sequence[BootEvidence], arm: str) -> Memory | None:
    """Bytes by component and through the boot, and the tensors at the peak; None where an arm has no profile."""
    a, b = _profile(boots, plan.baseline.name), _profile(boots, arm)
    components = [
        Component(name, _bytes(a, key), _bytes(b, key))
        for key, name in COMPONENTS.items()
        if _bytes(a, key) is not None or _bytes(b, key) is not None
    ]
    if not a or not b or not components:
        return None
    sites = _sites(a, b)
    shown, rest = sites[:SITES_SHOWN], sites[SITES_SHOWN:]
    return Memory(
        arm=arm,
        rank=int(a.get("rank", 0)),
        components=components,
        moments=_moments(a, b),
        sites=shown,
        other_sites=len(rest),
        other_bytes=(sum(site.baseline for site in rest), sum(site.candidate for site in rest)),
    )


def _tightest(boots: Sequence[BootEvidence], arm: str) -> dict[str, Any]:
    """Of the rank that leaves least for the KV cache, which is what all ranks then use."""
    for boot in measured(boots, arm):
        known = [p for p in boot.kv_profiles.values() if isinstance(p.get("available_bytes"), int)]
        if known:
            return min(known, key=lambda profile: int(profile["available_bytes"]))
    return {}


def _profile(boots: Sequence[BootEvidence], arm: str) -> dict[str, Any]:
    """Of the lowest rank of the first measured boot that has one."""
    for boot in measured(boots, arm):
        if boot.kv_profiles:
            return boot.kv_profiles[min(boot.kv_profiles)]
    return {}


def _bytes(profile: dict[str, Any], key: str) -> int | None:
    value = profile.get(key)
    return value if isinstance(value, int) else None


def _moments(a: dict[str, Any], b: dict[str, Any]) -> list[Moment]:
    """Sums of components in the order in which a boot allocates them; moments that an arm does not know are left out.

    The profile's step adds its activations and gives them back; what comes later stays, and serving adds its own peak.
    """
    loaded = ["weights_bytes", "persistent_bytes", "workspace_bytes"]
    sums = {
        "weights": loaded[:1],
        "buffers": loaded[:2],
        "workspace": loaded,
        "profile": [*loaded, "peak_activation_bytes"],
        "ready": ["resident_bytes"],
        "serving": ["resident_bytes", "runtime_peak_bytes"],
    }
    moments = []
    for name, keys in sums.items():
        totals = []
        for profile in (a, b):
            parts = [_bytes(profile, key) for key in keys]
            known = [part for part in parts if part is not None]
            totals.append(sum(known) if len(known) == len(parts) else None)
        if totals[0] is not None and totals[1] is not None:
            moments.append(Moment(name, totals[0], totals[1]))
    return moments


def _sites(a: dict[str, Any], b: dict[str, Any]) -> list[Site]:
    """Tensors at the peak by place, type and shape: first what differs between the arms, then the largest."""
    sizes: list[Counter[tuple[str, str]]] = []
    counts: list[Counter[tuple[str, str]]] = []
    for profile in (a, b):
        size: Counter[tuple[str, str]] = Counter()
        count: Counter[tuple[str, str]] = Counter()
        for tensor in profile.get("peak") or []:
            key = (str(tensor["site"]), f"{tensor['dtype']} {list(tensor['shape'])}")
            size[key] += tensor["bytes"]
            count[key] += 1
        sizes.append(size)
        counts.append(count)
    sites = [
        Site(*key, sizes[0][key], sizes[1][key], counts[0][key], counts[1][key]) for key in {**sizes[0], **sizes[1]}
    ]
    return sorted(sites, key=lambda s: (s.baseline == s.candidate, -max(s.baseline, s.candidate), s.place, s.tensor))
