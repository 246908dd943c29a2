"""From toggles and a suite to a plan: arms, their order in time, and everything the judge will need."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from dsbench import __version__
from dsbench.errors import InputError
from dsbench.metrics import Metric, metric
from dsbench.records import Arm, Plan, PlannedBoot
from dsbench.suite import Suite
from impl.dims import Dims
from impl.toggles import REGISTRY, ToggleError, ToggleSet, find

BASELINE = "baseline"
ALL = "all"


def plan_experiment(
    toggles: Sequence[str],
    suite: Suite,
    dims: Dims,
    *,
    engine_args: Sequence[str] = (),
    blocks: int | None = None,
    seed: int = 0,
    controls: bool = False,
    now: datetime | None = None,
) -> Plan:
    """Baseline against each toggle alone and, if there are several, all of them together.

    `toggles` are names, or `name=off` for a correctness toggle. `engine_args` are given to every boot.
    Raises InputError for a combination that cannot be run.
    """
    factors = _factors(toggles, controls)
    _check_lengths(suite, dims)
    now = now or datetime.now().astimezone()
    arms, notes = _arms(factors, dims)
    n_blocks = suite.blocks if blocks is None else blocks
    if n_blocks < 1:
        raise InputError(f"blocks must be at least 1, got {n_blocks}")
    if blocks is not None and blocks != suite.blocks:
        notes.append(f"{blocks} blocks instead of the suite's {suite.blocks}")
    metrics = [metric(key) for name in suite.probes.names() for key in suite.probes.metrics(name)]
    keys = [m.key for m in metrics]
    for arm in arms[1:]:
        for key in arm.primary:
            if key not in keys:
                raise InputError(
                    f"suite '{suite.name}' does not measure {key}, the primary metric of {arm.name}: take another suite"
                )
    return Plan(
        id=_identity(now, factors, suite, dims, seed, engine_args),
        created=now.isoformat(timespec="seconds"),
        harness_version=__version__,
        suite=suite.name,
        engine="embedded",
        engine_args=list(engine_args),
        dims=_plain(dims.to_json()),
        seed=seed,
        until=suite.until,
        arms=arms,
        boots=_order([arm.name for arm in arms], n_blocks, suite.warmup_boots, seed),
        blocks=n_blocks,
        probes=suite.probes,
        metrics=metrics,
        guards=_expand(suite.guards, metrics),
        drift_controls=_expand(suite.drift_controls, metrics),
        timeouts=suite.timeouts,
        notes=notes,
    )


def _factors(toggles: Sequence[str], controls: bool) -> list[str]:
    """The declared toggles, once each, checked against the registry."""
    if not toggles:
        raise InputError("nothing to compare: name at least one --toggle ('dsbench toggles' lists them)")
    factors: list[str] = []
    for text in toggles:
        name, _, state = text.strip().partition("=")
        try:
            toggle = find(name)
            spec = str(ToggleSet.parse(f"{text},{','.join(toggle.requires)}")) if state else name
        except ToggleError as error:
            raise InputError(str(error)) from None
        spec = name if state in ("", "on") else spec
        if toggle.default_on and spec == name:
            raise InputError(
                f"toggle '{name}' is on in every arm; its off state is a control: --toggle {name}=off --controls"
            )
        if toggle.kind != "optimization" and not controls:
            raise InputError(
                f"'{text}' is a planted defect (control), not an optimization: add --controls to run it on purpose"
            )
        if "embedded" not in toggle.engines:
            raise InputError(
                f"toggle '{name}' does not run on the embedded engine, only on {', '.join(toggle.engines)}"
            )
        if spec not in factors:
            factors.append(spec)
    for name in map(_name, factors):
        for other in map(_name, factors):
            if other in find(name).conflicts:
                raise InputError(f"toggles '{name}' and '{other}' cannot be on together: run them apart")
    return factors


def _arms(factors: list[str], dims: Dims) -> tuple[list[Arm], list[str]]:
    """Baseline, each factor alone, and all together; what a factor requires and is no factor itself is on in all."""
    notes: list[str] = []
    names = [_name(factor) for factor in factors]
    common = [need for name in names for need in _needs(name) if need not in names]
    common = list(dict.fromkeys(common))
    for name in names:
        for need in _needs(name):
            if need in common:
                notes.append(f"{need} is on in every arm: {name} requires it")
    sets: dict[str, list[str]] = {}
    for factor, name in zip(factors, names, strict=True):
        needed = [other for other, its in zip(factors, names, strict=True) if its in _needs(name)]
        members = [*needed, factor]
        if needed and len(members) < len(factors):
            notes.append(f"{name} runs together with {', '.join(needed)}, which it requires")
        sets["+".join(members).replace("=", "-")] = members
    if len(factors) > 1:
        sets = {name: members for name, members in sets.items() if len(members) < len(factors)}
        sets[ALL] = factors
    arms = [_arm(BASELINE, [], common, dims)]
    arms += [_arm(name, members, common, dims) for name, members in sets.items()]
    return arms, notes


def _arm(name: str, factors: list[str], common: list[str], dims: Dims) -> Arm:
    try:
        state = ToggleSet.parse(",".join([*common, *factors]))
    except ToggleError as error:
        raise InputError(str(error)) from None
    expected: dict[str, int] = {}
    for toggle in (find(_name(factor)) for factor in factors):
        if toggle.expected_bytes is not None:
            better = metric(toggle.primary).better
            saved = toggle.expected_bytes(dims)
            expected[toggle.primary] = expected.get(toggle.primary, 0) + (saved if better == "up" else -saved)
    return Arm(
        name=name,
        toggles=factors,
        environment=str(state),
        on=list(state.names()),
        takes=[on for on in state.names() if not REGISTRY[on].default_on],
        primary=list(dict.fromkeys(find(_name(factor)).primary for factor in factors)),
        expected=expected,
        declared=["toggles"] if factors else [],
    )


def _order(arms: list[str], blocks: int, warmups: int, seed: int) -> list[PlannedBoot]:
    """Warm-ups first, then blocks; a random order and its mirror image fill each two blocks (AB BA, ABC CBA)."""
    rng = random.Random(seed)
    sequence: list[tuple[str, int | None]] = [(arm, None) for _ in range(warmups) for arm in arms]
    order: list[str] = []
    for block in range(1, blocks + 1):
        order = rng.sample(arms, len(arms)) if block % 2 else order[::-1]
        sequence += [(arm, block) for arm in order]
    return [
        PlannedBoot(number=number, arm=arm, block=block, phase="warm-up" if block is None else "measured")
        for number, (arm, block) in enumerate(sequence, start=1)
    ]


def _name(factor: str) -> str:
    return factor.partition("=")[0]


def _needs(name: str) -> list[str]:
    """What a toggle requires, and what that requires in turn."""
    found: list[str] = []
    queue = list(find(name).requires)
    while queue:
        need = queue.pop(0)
        if need not in found:
            found.append(need)
            queue += find(need).requires
    return found


def _check_lengths(suite: Suite, dims: Dims) -> None:
    """Prompts of a suite must fit the model length that flags may have changed."""
    longest = {"prefill": 0, "decode": 0}
    if suite.probes.prefill:
        longest["prefill"] = max(suite.probes.prefill.lengths) + 1
    if suite.probes.decode:
        longest["decode"] = suite.probes.decode.prompt_tokens + suite.probes.decode.tokens
    for probe, tokens in longest.items():
        if tokens > dims.max_model_len:
            raise InputError(
                f"suite '{suite.name}': the {probe} probe needs {tokens} tokens, "
                f"max_model_len is {dims.max_model_len}: raise it, or use a suite with shorter prompts"
            )


def _expand(patterns: list[str], metrics: list[Metric]) -> list[str]:
    return [m.key for m in metrics if any(fnmatchcase(m.key, pattern) for pattern in patterns)]


def _identity(now: datetime, factors: list[str], suite: Suite, dims: Dims, seed: int, args: Sequence[str]) -> str:
    """Date-time, toggles, and a short hash of what is run, so that two plans of one second differ."""
    content = repr((now.isoformat(), factors, suite.model_dump_json(), dims.to_json(), seed, list(args)))
    names = "+".join(factor.replace("=", "-") for factor in factors)
    label = names if len(names) <= 60 else f"{names[:50].rstrip('+')}+more"
    return f"{now:%Y%m%d-%H%M%S}-{label}-{hashlib.sha256(content.encode()).hexdigest()[:6]}"


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tuples as lists, the way JSON gives them back."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
