"""How to run an experiment again: the command that makes its plan anew, from the plan alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from dsbench.builds import DECLARABLE
from dsbench.matrices import name_of
from dsbench.records import Arm, Plan
from dsbench.suite import shipped
from impl.toggles import REGISTRY

OWN_FLAGS = ("--rejection-sample-method",)
"""Flags of the embedded engine that follow from another option."""


def command(plan: Plan) -> list[str]:
    """Arguments of `dsbench` from `ab` or `aa` on. What a plan does not keep is named by `caveats`."""
    if _is_aa(plan):
        return ["aa", "--suite", plan.suite, "--boots", str(2 * plan.blocks), *_interpreter(plan), *_engine(plan)]
    pool = ["--pool", plan.pool] if plan.pool else []
    return ["ab", *_arms(plan), *_suite(plan), *_engine(plan), *pool]


def line(plan: Plan) -> str:
    """The command as a shell takes it."""
    return shlex.join(["dsbench", *command(plan)])


def caveats(plan: Plan) -> list[str]:
    """What the command cannot say."""
    told = []
    if plan.suite not in shipped():
        told.append(f"{plan.suite} is no suite of this version: name its TOML file; its settings are in plan.json")
    if plan.rig is not None:
        told.append("RIG.toml: the commands are in plan.json, under `rig`")
    if plan.reused_from:
        told.append(f"the baseline's boots came from {plan.reused_from}; the command boots them anew")
    return told


def _is_aa(plan: Plan) -> bool:
    base = plan.baseline
    alike = all((arm.build, arm.environment) == (base.build, base.environment) for arm in plan.arms)
    return alike and [arm.name for arm in plan.arms] == ["a", "b"] and plan.engine != "endpoint"


def _interpreter(plan: Plan) -> list[str]:
    own = plan.baseline.python
    return ["--python", own] if own and plan.engine == "embedded" else []


def _suite(plan: Plan) -> list[str]:
    blocks = "--until-resolved" if plan.looks else "--blocks"
    until = ["--until", "profile"] if plan.until == "profile" else []
    return ["--suite", plan.suite, blocks, str(plan.blocks), *until]


def _arms(plan: Plan) -> list[str]:
    if plan.engine == "endpoint":
        urls = [part for arm in plan.arms for part in ("--endpoint", f"{arm.name}={arm.url}")]
        meant = [name for name in plan.baseline.declared if name in DECLARABLE]
        return [*urls, *(part for name in meant for part in ("--declare", name))]
    if plan.matrix is not None:
        return [*_toggles(plan.matrix.factors, plan.matrix.kind), *_method(plan)]
    specs = [part for arm in plan.arms for part in ("--arm", _spec(plan, arm))]
    return [*specs, *_controls([toggle for arm in plan.arms for toggle in _on(plan, arm)])]


def _toggles(factors: Sequence[str], kind: str) -> list[str]:
    matrix = [] if kind == "alone-and-together" else ["--matrix", kind]
    return [*(part for factor in factors for part in ("--toggle", factor)), *matrix, *_controls(factors)]


def _controls(toggles: Sequence[str]) -> list[str]:
    planted = any(REGISTRY[name].kind != "optimization" for name in map(name_of, toggles) if name in REGISTRY)
    return ["--controls"] if planted else []


def _method(plan: Plan) -> list[str]:
    method = plan.baseline.speculative
    return ["--speculative", method] if method and plan.engine == "embedded" else []


def _spec(plan: Plan, arm: Arm) -> str:
    """`NAME=key=value;...` as `--arm` takes it."""
    own = {name: value for name, value in arm.env.items() if name not in _shared_env(plan)}
    parts = {
        "python": arm.python if arm.python != _shared_python(plan) else None,
        "speculative": arm.speculative if plan.engine == "embedded" else None,
        "args": shlex.join(arm.args),
        "toggles": ",".join(_on(plan, arm)),
        "env": ",".join(f"{name}={value}" for name, value in own.items()),
    }
    return f"{arm.name}=" + ";".join(f"{key}={value}" for key, value in parts.items() if value)


def _on(plan: Plan, arm: Arm) -> list[str]:
    """The toggles that an arm was given: the baseline's own, with what the arm declares as its difference."""
    base = [part for part in plan.baseline.environment.split(",") if part]
    if arm is plan.baseline:
        return base
    kept = [toggle for toggle in base if toggle not in arm.toggles]
    return [*kept, *(toggle for toggle in arm.toggles if toggle not in base)]


def _engine(plan: Plan) -> Iterator[str]:
    """Options of the build that all arms share."""
    if plan.engine == "embedded":
        yield from _embedded(plan.engine_args)
        return
    yield from () if plan.engine == "endpoint" else ("--engine", plan.engine)
    if plan.engine == "vllm":
        yield from ("--vllm-python", _shared_python(plan) or "PYTHON", "--serve-args", shlex.join(plan.engine_args))
    if plan.rig is not None:
        yield from ("--rig", "RIG.toml")
    for name, value in _shared_env(plan).items():
        yield from ("--env", f"{name}={value}")
    yield from ("--seed", str(plan.seed))


def _embedded(args: Sequence[str]) -> Iterator[str]:
    """The engine's flags are options of the same names."""
    skip = False
    for part in args:
        if part in OWN_FLAGS:
            skip = True
        elif skip:
            skip = False
        else:
            yield part


def _shared_env(plan: Plan) -> dict[str, str]:
    """Variables that every arm has alike."""
    return {
        name: value for name, value in plan.baseline.env.items() if all(arm.env.get(name) == value for arm in plan.arms)
    }


def _shared_python(plan: Plan) -> str | None:
    """The interpreter of the engine in all arms, or in the baseline where they differ."""
    return plan.baseline.python if plan.engine == "vllm" else None
