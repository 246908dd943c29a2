"""What may be stored as a plan: no secret in a text that came from outside, and nothing that cannot be read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from dsbench.engines.secrets import refuse_in_line, refuse_secret, refuse_variable
from dsbench.errors import InputError
from dsbench.records import Arm, Plan

OURS = frozenset(
    ("version", "created", "harness_version", "engine", "engine_args", "rig", "dims", "arms", "matrix", "boots",
     "probes", "metrics", "timeouts", "fingerprint", "floors", "looks", "policy")
)  # fmt: skip
"""Fields that hold none of a user's texts, or that are looked at by a name of their own."""


def plan_text(plan: Plan) -> str:
    """The plan as plan.json holds it. InputError for a secret in it, or a value that could not be read again."""
    refuse_secrets_in(plan)
    text = plan.model_dump_json(indent=1) + "\n"
    try:
        Plan.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"the plan could not be read again: {where} {first['msg']}, got {first['input']!r}") from None
    return text


def refuse_secrets_in(plan: Plan) -> None:
    """InputError for a secret in any text of a plan; it names the option and the variable, and not the value."""
    args = "an option of the engine" if plan.engine == "embedded" else "--serve-args"
    if plan.engine != "embedded":
        refuse_in_line(args, plan.engine_args)
    for part in plan.engine_args:
        refuse_secret(args, part, prose=True)
    for arm in plan.arms:
        _refuse_in_arm(arm)
    if plan.rig:
        for place, text in _texts("--rig", plan.rig.model_dump()):
            refuse_secret(place, text)
        for name in ("start", "stop", "health"):
            refuse_in_line(f"--rig.{name}", getattr(plan.rig, name))
    prose = {f"suite {plan.suite}: probes": plan.probes.model_dump(exclude_none=True)}
    prose |= {"--gate": plan.policy.model_dump(exclude_none=True)} if plan.policy else {}
    prose |= {"the plan": plan.model_dump(exclude=set(OURS))}
    for option, value in prose.items():
        for place, text in _texts(option, value):
            refuse_secret(place, text, prose=True)


def _refuse_in_arm(arm: Arm) -> None:
    option = f"--arm {arm.name}"
    for name, value in arm.env.items():
        refuse_variable(f"{option} or --env:", name, value)
    refuse_in_line(f"{option}: args", arm.args)
    refuse_secret(f"{option}: python", arm.python or "")
    refuse_secret(f"the URL of arm {arm.name} (--{arm.name} or --endpoint)", arm.url or "")
    for place, text in _texts(option, arm.model_dump(exclude={"env", "args", "python", "url"})):
        refuse_secret(place, text, prose=True)


def _texts(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every text in a value, names of its keys before what they stand for, each with its place."""
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _texts(f"{place}.{number}", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield place, str(key)
            yield from _texts(f"{place}.{key}", part)
