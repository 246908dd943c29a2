"""From toggles and a suite to a plan: arms, their order in time, and everything the judge will need."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from dsbench import __version__
from dsbench.builds import METHODS, ArmSpec, declared_differences
from dsbench.engines.vllm import synthetic_drafts
from dsbench.errors import InputError
from dsbench.fit import CHECKOUT, Fitted, fit
from dsbench.matrices import BASELINE, Kind, Matrix, design, name_of
from dsbench.metrics import metric
from dsbench.probe_settings import Probes
from dsbench.pytest_run import places
from dsbench.pytest_settings import PytestProbe
from dsbench.records import ALPHA, EQUIVALENCE_CONFIDENCE, Arm, EngineName, Look, Plan, PlannedBoot
from dsbench.suite import Suite
from impl.dims import Dims
from impl.toggles import REGISTRY, ToggleError, ToggleSet, find

SYNTHETIC = "--synthetic-acceptance"
MOST_BOOTS = 100_000
"""Of a plan; at one a minute they take ten weeks."""


def plan_experiment(
    toggles: Sequence[str],
    suite: Suite,
    dims: Dims,
    *,
    arms: Sequence[ArmSpec] = (),
    matrix: Kind | None = None,
    alike: bool = False,
    speculative: str | None = None,
    engine: EngineName = "embedded",
    engine_args: Sequence[str] = (),
    blocks: int | None = None,
    until_resolved: int | None = None,
    seed: int = 0,
    controls: bool = False,
    now: datetime | None = None,
    here: bool = True,
) -> Plan:
    """Baseline against the arms of a `matrix` of toggles, or the given `arms`.

    Without a matrix each toggle runs alone and, if there are several, all of them together. `toggles` are names, or
    `name=off` for a correctness toggle. `alike` lets arms be the same, as an A/A experiment needs. `engine_args` are
    given to every boot, and so is `speculative`, the method of arms that name none (by default the suite's).
    `until_resolved` is the most blocks of an experiment that stops at the first look with an answer. `here`: boots run
    on this machine, so that the tests that probes select are looked for. Raises InputError for a combination that
    cannot be run.
    """
    now = now or datetime.now().astimezone()
    usual = suite.speculative if engine == "embedded" else None
    if arms:
        if toggles:
            raise InputError(f"--arm and --toggle {toggles[0]}: give an arm its toggles as toggles={toggles[0]}")
        if matrix:
            raise InputError(f"--matrix {matrix} is made of toggles: name them with --toggle, without --arm")
        planned = _built(arms, speculative or usual, dims, controls, alike, engine)
        notes: list[str] = []
        chosen: Matrix | None = None
    else:
        factors = _factors(toggles, controls, engine)
        made = design(factors, matrix or "alone-and-together")
        chosen, notes = made.matrix, made.notes
        planned = [_arm(BASELINE, [], made.common, dims)]
        planned += [_arm(cell.name, cell.factors, made.common, dims) for cell in made.cells]
        method, why = _method(factors, speculative, usual)
        planned = [arm.model_copy(update={"speculative": method}) for arm in planned]
        notes += why
    blocks = blocks if until_resolved is None else until_resolved
    n_blocks = suite.blocks if blocks is None else blocks
    if n_blocks < 1:
        raise InputError(f"blocks must be at least 1, got {n_blocks}")
    if (boots := len(planned) * (n_blocks + suite.warmup_boots)) > MOST_BOOTS:
        raise InputError(
            f"{len(planned)} arms in {n_blocks:,} blocks and {suite.warmup_boots:,} warm-ups are {boots:,} boots, and "
            f"a plan has at most {MOST_BOOTS:,}: take fewer blocks, or fewer toggles"
        )
    if blocks is not None and blocks != suite.blocks:
        notes.append(f"{blocks} blocks instead of the suite's {suite.blocks}")
    fitted = fit(suite, planned, synthetic=any(_synthetic(arm, engine_args) for arm in planned))
    _check_lengths(suite.name, fitted.probes, dims)
    if here:
        for arm in planned:
            _check_tests(fitted.probes, arm, engine)
    planned = [planned[0], *(_with_primary(arm, fitted) for arm in planned[1:])]
    _check_primary(suite, planned, fitted)
    return Plan(
        id=_identity(now, planned, suite, dims, seed, engine_args),
        created=now.isoformat(timespec="seconds"),
        harness_version=__version__,
        suite=suite.name,
        engine=engine,
        engine_args=list(engine_args),
        dims=_plain(dims.to_json()),
        seed=seed,
        until=suite.until,
        arms=planned,
        matrix=chosen,
        boots=_order([arm.name for arm in planned], n_blocks, suite.warmup_boots, seed),
        blocks=n_blocks,
        probes=fitted.probes.pinned(),
        metrics=fitted.metrics,
        guards=fitted.guards,
        drift_controls=fitted.drift_controls,
        timeouts=suite.timeouts,
        looks=_looks(until_resolved),
        notes=[*notes, *fitted.notes],
    )


def _synthetic(arm: Arm, engine_args: Sequence[str]) -> bool:
    """Whether drafts of the arm are accepted at rates: by flags of our engine, or by vLLM's --speculative-config."""
    args = [*engine_args, *arm.args]
    if not any(part.startswith(SYNTHETIC) for part in args):
        return synthetic_drafts(args)
    if not arm.speculates:
        raise InputError(f"{SYNTHETIC}-*: {arm.name} has no drafts to accept; add --speculative dspark")
    return True


def _factors(toggles: Sequence[str], controls: bool, engine: EngineName) -> list[str]:
    """The declared toggles, once each, checked against the registry."""
    if not toggles:
        raise InputError("nothing to compare: name at least one --toggle ('dsbench toggles' lists them), or two --arm")
    return list(dict.fromkeys(_checked(text, controls, engine) for text in toggles))


def _checked(text: str, controls: bool, engine: EngineName) -> str:
    """One declared toggle as `name` or `name=off`."""
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
    # A rig runs what its commands start: what that engine refuses, it says itself.
    if engine != "command" and engine not in toggle.engines:
        raise InputError(f"toggle '{name}' does not run on the {engine} engine, only on {', '.join(toggle.engines)}")
    return spec


def _method(factors: list[str], asked: str | None, usual: str | None) -> tuple[str | None, list[str]]:
    """The speculative method of every arm: the one asked for, the suite's, or the first under which all factors act."""
    needs = [(name, find(name).speculative) for name in map(name_of, factors) if find(name).speculative]
    if asked is not None:
        for name, methods in needs:
            if asked not in methods:
                raise InputError(
                    f"toggle '{name}' does nothing with --speculative {asked}; take {' or '.join(methods)}"
                )
        return asked, []
    shared = [method for method in METHODS if all(method in methods for _, methods in needs)]
    if usual in shared:
        return usual, [f"speculative is {usual} in every arm, as the suite says"]
    if not needs:
        return None, []
    if not shared:
        raise InputError(f"toggles {', '.join(name for name, _ in needs)} act under different methods: run them apart")
    method = "dspark" if "dspark" in shared else shared[0]
    return method, [f"speculative is {method} in every arm: {needs[0][0]} acts only with a draft"]


def _arm(name: str, factors: list[str], common: list[str], dims: Dims) -> Arm:
    state = _state([*common, *factors])
    return Arm(
        name=name,
        toggles=factors,
        environment=str(state),
        on=list(state.names()),
        takes=[on for on in state.names() if not REGISTRY[on].default_on],
        primary=list(dict.fromkeys(find(name_of(factor)).primary for factor in factors)),
        expected=_expected(factors, dims),
        declared=["toggles"] if factors else [],
    )


def _state(toggles: Sequence[str]) -> ToggleSet:
    try:
        return ToggleSet.parse(",".join(toggles))
    except ToggleError as error:
        raise InputError(str(error)) from None


PART_OF = {"kv.persistent_bytes": "kv.resident_bytes"}
"""Metrics whose bytes another metric counts, too."""


def _expected(factors: Sequence[str], dims: Dims) -> dict[str, int]:
    """Change of the primary metrics that the registry expects, in bytes."""
    expected: dict[str, int] = {}
    toggles = [find(name_of(factor)) for factor in factors]
    primaries = {toggle.primary for toggle in toggles}
    for toggle in toggles:
        if toggle.expected_bytes is None:
            continue
        saved = toggle.expected_bytes(dims)
        for key in filter(primaries.__contains__, (toggle.primary, PART_OF.get(toggle.primary, ""))):
            expected[key] = expected.get(key, 0) + (saved if metric(key).better == "up" else -saved)
    return expected


def _built(
    specs: Sequence[ArmSpec], speculative: str | None, dims: Dims, controls: bool, alike: bool, engine: EngineName
) -> list[Arm]:
    """Arms that are builds; the first is the baseline, and what another does differently is declared."""
    if len(specs) < 2:
        raise InputError(f"--arm {specs[0].name}: one arm compares with nothing; give a second --arm")
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--arm {name} is there twice: give every arm its own name")
    specs = [replace(spec, speculative=spec.speculative or speculative or "none") for spec in specs]
    checked = [[_checked(text, controls, engine) for text in spec.toggles] for spec in specs]
    base = specs[0]
    arms = [_arm(spec.name, toggles, [], dims) for spec, toggles in zip(specs, checked, strict=True)]
    built = []
    for spec, toggles, arm in zip(specs, checked, arms, strict=True):
        differs = [*(t for t in toggles if t not in checked[0]), *(t for t in checked[0] if t not in toggles)]
        other = declared_differences(base, spec)
        if spec is not base and not differs and not other and not alike:
            raise InputError(f"--arm {spec.name} is the same as {base.name}: there is nothing to compare")
        # The registry knows what a toggle saves if nothing else differs and the baseline goes without it.
        known = not other and all(toggle in toggles for toggle in differs)
        built.append(
            arm.model_copy(
                update={
                    "toggles": [] if spec is base else differs,
                    "primary": list(dict.fromkeys(find(name_of(toggle)).primary for toggle in differs)),
                    "expected": _expected(differs, dims) if known else {},
                    "declared": [*(["toggles"] if differs else []), *other],
                    "speculative": spec.speculative,
                    "args": list(spec.args),
                    "env": spec.env,
                    "python": spec.python,
                }
            )
        )
    return built


PRIMARY_OF_BUILDS = ("decode.tps.*", "kv.available_bytes", "accept.length", "output_law", "identity.tokens")
"""What arms without a toggle between them are judged by: the first that the suite measures."""


def _with_primary(arm: Arm, fitted: Fitted) -> Arm:
    if arm.primary:
        return arm
    keys = [m.key for m in fitted.metrics]
    found = next((key for pattern in PRIMARY_OF_BUILDS for key in keys if fnmatchcase(key, pattern)), None)
    return arm.model_copy(update={"primary": [found] if found else []})


def _check_primary(suite: Suite, arms: Sequence[Arm], fitted: Fitted) -> None:
    keys = [m.key for m in fitted.metrics]
    dropped = {key: why for name, why in fitted.not_run.items() for key in suite.probes.metrics(name)}
    for arm in arms[1:]:
        for key in arm.primary:
            if key in dropped:
                raise InputError(f"{key}, the primary metric of {arm.name}, cannot be measured: {dropped[key]}")
            if key not in keys:
                raise InputError(
                    f"suite '{suite.name}' does not measure {key}, the primary metric of {arm.name}: take another suite"
                )
        if not arm.primary:
            raise InputError(
                f"suite '{suite.name}' measures nothing that builds are judged by ({', '.join(PRIMARY_OF_BUILDS)}): "
                "add [probes.identity] or [probes.decode] to it, or take another suite, such as quick"
            )


def _order(arms: list[str], blocks: int, warmups: int, seed: int) -> list[PlannedBoot]:
    """Warm-ups first, then blocks, each in a random order of its own: what makes the sign-flip test exact."""
    rng = random.Random(seed)
    sequence: list[tuple[str, int | None]] = [(arm, None) for _ in range(warmups) for arm in arms]
    for block in range(1, blocks + 1):
        sequence += [(arm, block) for arm in rng.sample(arms, len(arms))]
    return [
        PlannedBoot(number=number, arm=arm, block=block, phase="warm-up" if block is None else "measured")
        for number, (arm, block) in enumerate(sequence, start=1)
    ]


def _looks(most: int | None) -> list[Look]:
    if most is None:
        return []
    from dsbench.looks import plan_looks

    looks = plan_looks(most, ALPHA, EQUIVALENCE_CONFIDENCE)
    if not looks:
        raise InputError(f"--until-resolved {most}: no test of so few blocks could say improved or regressed; take 6")
    return looks


def _check_lengths(suite: str, probes: Probes, dims: Dims) -> None:
    """Requests of a suite must fit the model length that flags may have changed."""
    longest = {probe: probes.table(probe).longest() for probe in probes.names()}
    for probe, tokens in longest.items():
        if tokens > dims.max_model_len:
            raise InputError(
                f"suite '{suite}': the {probe} probe needs {tokens} tokens, "
                f"max_model_len is {dims.max_model_len}: raise it, or use a suite with shorter prompts and answers"
            )


def _check_tests(probes: Probes, arm: Arm, engine: EngineName) -> None:
    """A checkout that is named must be there, and something of what is selected in it."""
    for name in probes.names():
        table = probes.table(name)
        if not isinstance(table, PytestProbe):
            continue
        folder = table.folder(arm.name)
        if folder is None and engine == "embedded" and arm.python is None:
            folder = CHECKOUT
        if folder is None:
            continue  # it is where the arm's interpreter finds the engine
        if not folder.is_dir():
            raise InputError(f"probes.{name}.checkout {folder} of arm {arm.name}: no such folder; name a checkout")
        asked = places(table.chosen(engine))
        if asked and not any((folder / place).exists() for place in asked):
            raise InputError(f"probes.{name}.selection {', '.join(asked)}: nothing of it is in {folder}; mend the path")


def _identity(now: datetime, arms: Sequence[Arm], suite: Suite, dims: Dims, seed: int, args: Sequence[str]) -> str:
    """Date-time, toggles or arms, and a short hash of what is run, so that two plans of one second differ."""
    content = repr((now.isoformat(), arms, suite.model_dump_json(), dims.to_json(), seed, list(args)))
    factors = list(dict.fromkeys(toggle for arm in arms for toggle in arm.toggles))
    names = "+".join(re.sub("[=:]", "-", factor) for factor in factors) or "+".join(arm.name for arm in arms)
    label = names if len(names) <= 60 else f"{names[:50].rstrip('+')}+more"
    return f"{now:%Y%m%d-%H%M%S}-{label}-{hashlib.sha256(content.encode()).hexdigest()[:6]}"


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tuples as lists, the way JSON gives them back."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
