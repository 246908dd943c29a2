"""Reasons for void that lie in the ranks of one engine: one that is silent, two that disagree, markers of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dsbench.evidence import BootEvidence
from dsbench.records import Plan, VoidReason

Boots = Sequence[BootEvidence]

UNCOMPARED = {"schema", "rank", "pid", "toggles"}
"""Conditions that differ by nature; toggles are compared with the arm's own."""
OF_A_RANK = UNCOMPARED | {"tp_rank", "pp_rank", "device_index"}
"""Conditions that differ by nature between the ranks of one boot."""
OF_ALL_RANKS = ("blocks", "tokens", "max_concurrency", "source")
"""What of a KV profile is one figure for the whole engine; bytes are each rank's own."""
OF_A_STAGE = "block_bytes"
"""What of a KV profile is one figure for the ranks of a pipeline stage: stages may hold layers of other sizes."""
PARALLEL = ("tp", "pp", "dp")


def ranks_due(plan: Plan, boot: BootEvidence) -> list[int]:
    """Ranks that must have written what they did: as many as the engine says it has, or as the rig names.

    An engine that writes nothing itself is known by its log alone: then the ranks that were seen are all there are.
    """
    seen = {*boot.conditions, *boot.markers, *boot.kv_profiles}
    if _known_by_log(boot):
        return sorted(seen)
    sizes = [_world(values) for values in boot.conditions.values()]
    named = len([rank for rank in plan.rig.ranks if rank.conditions]) if plan.rig else 0
    return sorted({*seen, *range(max([*sizes, named], default=0))})


def _known_by_log(boot: BootEvidence) -> bool:
    return any("log" in str(values.get("source", "")) for values in boot.conditions.values())


def _world(values: dict[str, Any]) -> int:
    sizes = [values.get(name) for name in PARALLEL]
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)


def ranks_speak(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """No rank is silent where others of its engine speak: what it did is unknown.

    Markers are due in the baseline too, where they say that no optimized branch was taken.
    """
    marked = any(boot.markers for boot in boots)
    silent: dict[tuple[str, int], list[int]] = defaultdict(list)
    of_arm: dict[str, set[int]] = defaultdict(set)
    for boot in boots:
        of_arm[boot.planned.arm] |= set(ranks_due(plan, boot))
    for boot in boots:
        written = [("conditions", set(boot.conditions))] if boot.conditions else []
        if plan.probes.kv is not None and boot.kv_profiles:
            written.append(("KV profile", set(boot.kv_profiles)))
        if marked and boot.conditions and not _known_by_log(boot):
            written.append(("markers", set(boot.markers)))
        for what, ranks in written:
            for rank in sorted(of_arm[boot.planned.arm] - ranks):
                silent[what, rank].append(boot.number)
    for (what, rank), numbers in silent.items():
        yield VoidReason(
            code="rank-silent",
            text=f"rank {rank} wrote no {what}: unknown",
            mend="every rank must write its files to DSBENCH_BOOT_DIR; is that folder the same on all of its hosts?",
            boots=numbers,
        )


def ranks_agree(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """The ranks of one boot ran one configuration, and share one number of blocks."""
    found: dict[str, list[int]] = defaultdict(list)
    for boot in boots:
        for what, ranks, keys in (
            ("", boot.conditions, {key for values in boot.conditions.values() for key in values} - OF_A_RANK),
            ("KV ", boot.kv_profiles, OF_ALL_RANKS),
        ):
            for key in sorted(keys):
                read = {rank: values[key] for rank, values in sorted(ranks.items()) if values.get(key) is not None}
                if told := _unlike(read):
                    found[f"{what}{key}: {told}"].append(boot.number)
        for ranks_of_stage in _stages(boot).values():
            profiles = {rank: boot.kv_profiles[rank].get(OF_A_STAGE) for rank in ranks_of_stage}
            if told := _unlike({rank: value for rank, value in profiles.items() if value is not None}):
                found[f"KV {OF_A_STAGE}: {told}"].append(boot.number)
    for told, numbers in found.items():
        yield VoidReason(
            code="ranks-disagree",
            text=f"the ranks of one engine read back different {told}",
            mend="start every rank with one configuration and one version, and look for a host that was left behind",
            boots=numbers,
        )


def _unlike(read: dict[int, Any]) -> str:
    """What each rank read, where they do not all read the same."""
    alike = len({repr(value) for value in read.values()}) <= 1
    return "" if alike else ", ".join(f"rank {rank} {str(value)[:60]}" for rank, value in read.items())


def _stages(boot: BootEvidence) -> dict[int, list[int]]:
    """Ranks with a KV profile by pipeline stage; those whose stage nobody tells are left out."""
    found: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(boot.kv_profiles):
        stage = _stage(rank, boot.conditions.get(rank, {}))
        if stage is not None:
            found[stage].append(rank)
    return found


def _stage(rank: int, values: dict[str, Any]) -> int | None:
    """As the rank tells it, or by the order of ranks in vLLM: those of a stage side by side, then stages."""
    tp, pp, told = (values.get(name) for name in ("tp", "pp", "pp_rank"))
    if pp in (None, 1) or isinstance(told, int):
        return told if isinstance(told, int) else 0
    if not (isinstance(tp, int) and isinstance(pp, int) and tp > 0 and pp > 0):
        return None
    return rank // tp % pp if values.get("world_size") == tp * pp else None


def markers_right(plan: Plan, boots: Boots) -> Iterator[VoidReason]:
    """In every boot and rank the arm's own toggles took their branch, and no other toggle did."""
    missing: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    partial: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    misplaced: dict[tuple[str, str], list[int]] = defaultdict(list)
    for boot in boots:
        arm = plan.arm(boot.planned.arm)
        last = boot.last_markers()
        for rank in ranks_due(plan, boot):
            taken = last[rank].taken if rank in last else {}
            for toggle in arm.takes:
                refused = last[rank].refused.get(toggle) if rank in last else None
                if taken.get(toggle, 0) < 1:
                    missing[arm.name, toggle, _refusals(refused)].append(boot.number)
                elif refused:
                    partial[arm.name, toggle, "; ".join(sorted(refused))].append(boot.number)
            for toggle, count in taken.items():
                if count and toggle not in arm.on:
                    misplaced[arm.name, toggle].append(boot.number)
    for (arm_name, toggle, why), numbers in missing.items():
        yield VoidReason(
            code="marker-missing",
            text=f"toggle {toggle} is on in {arm_name} but its branch was never taken{why}",
            mend="a toggle that did not act cannot be judged: meet its preconditions, or restore its branch",
            arm=arm_name,
            boots=sorted(set(numbers)),
        )
    for (arm_name, toggle, why), numbers in partial.items():
        yield VoidReason(
            code="marker-refused",
            text=f"toggle {toggle} took its branch in {arm_name} at some places and was refused at others: {why}",
            mend="the arm is only partly what it says: meet the precondition wherever the toggle is to act",
            arm=arm_name,
            boots=sorted(set(numbers)),
        )
    for (arm_name, toggle), numbers in misplaced.items():
        yield VoidReason(
            code="marker-misplaced",
            text=f"toggle {toggle} is off in {arm_name} but its branch was taken",
            mend="the arm is not what it says: look for a switch that is read from elsewhere than DSBENCH_TOGGLES",
            arm=arm_name,
            boots=sorted(set(numbers)),
        )


def _refusals(reasons: dict[str, int] | None) -> str:
    if not reasons:
        return " (no marker, no refusal)"
    return " (refused: " + ", ".join(f"{reason} x{count}" for reason, count in sorted(reasons.items())) + ")"


RANK_RULES: tuple[Callable[[Plan, Boots], Iterator[VoidReason]], ...] = (ranks_speak, ranks_agree, markers_right)
