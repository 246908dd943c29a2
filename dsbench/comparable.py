"""Whether arms of two results may be compared: the same machine, build apart from versions, and suite settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dsbench.evidence import BootEvidence
from dsbench.floors import build_of, probe_digest
from dsbench.records import Arm, Plan

VERSIONS = ("python", "torch")
"""Parts of a machine's fingerprint that an environment brings: they may differ, and are told."""
OF_A_BOOT = ("schema", "rank", "pid", "tp_rank", "toggles")
"""Conditions that differ by nature; toggles are compared with the arm."""


def apart(plan: Plan, arm: Arm, other: Plan, other_arm: Arm, *, one_seed: bool = True) -> list[str]:
    """Why the other arm's boots are not like this one's ("here"), in words; empty where they are.

    Without `one_seed` the plans may differ in it.
    """
    said = []
    if plan.fingerprint is None or other.fingerprint is None:
        said += [f"{known.id} does not say which machine it ran on" for known in (other, plan) if not known.fingerprint]
    else:
        changes = other.fingerprint.changes(plan.fingerprint)
        said += [f"another machine ({change})" for change in changes if change.partition(" ")[0] not in VERSIONS]
    mine, theirs = build_of(plan, arm).model_dump(), build_of(other, other_arm).model_dump()
    if differs := [key for key in mine if mine[key] != theirs[key]]:
        said.append(f"another build ({', '.join(differs)})")
    if arm.environment != other_arm.environment:
        said.append(f"other toggles on ({other_arm.environment or 'none'}, here {arm.environment or 'none'})")
    if one_seed and plan.seed != other.seed:
        said.append(f"another seed ({other.seed}, here {plan.seed})")
    if plan.until != other.until:
        said.append(f"its boots end at {other.until}, here at {plan.until}")
    return said


def settings_apart(plan: Plan, other: Plan, metric: str) -> str:
    """Why a metric of two plans is not the same measurement; '' where it is."""
    mine, theirs = probe_digest(plan, metric), probe_digest(other, metric)
    if not mine or not theirs:
        return "one of them has no probe for it"
    return "" if mine == theirs else "its probe has other settings"


def conditions_of(plan: Plan, boots: Sequence[BootEvidence], arm: str) -> dict[str, Any]:
    """What rank 0 of the arm's first boot read back, and the harness's version; a shape is one entry a key."""
    read = next((boot.conditions[0] for boot in boots if boot.planned.arm == arm and 0 in boot.conditions), {})
    found: dict[str, Any] = {"dsbench": plan.harness_version}
    for key, value in read.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{inner}": part for inner, part in value.items()}
        elif key not in OF_A_BOOT:
            found[key] = value
    return found


def differing(*read: Mapping[str, Any]) -> dict[str, list[str]]:
    """Conditions that are not the same everywhere, each as texts in the order given."""
    keys = dict.fromkeys(key for values in read for key in values)
    return {key: [short(values.get(key)) for values in read] for key in keys
            if any(values.get(key) != read[0].get(key) for values in read)}  # fmt: skip


def short(value: Any) -> str:
    """A condition as text: digests by their first 8 digits, nothing as `unknown`."""
    text = "unknown" if value is None else str(value)
    digest = len(text) >= 40 and all(sign in "0123456789abcdef" for sign in text)
    return text[:8] if digest else text if len(text) <= 48 else f"{text[:47]}…"
