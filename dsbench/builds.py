"""Arms that are builds: what `--arm NAME='python=VENV;speculative=dspark;toggles=a,b;args=--eager'` says."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsbench.errors import InputError
from impl.dims import Dims

METHODS = ("none", "mtp", "dspark")
KEYS = ("python", "speculative", "args", "toggles", "env")

SHARED_FLAGS = {f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(Dims)} | {
    "--dims", "--seed", "--load-format", "--host", "--port", "--until", "--device", "--speculative",
}  # fmt: skip
"""Engine flags that an arm's `args` may not have: one value for all arms, or a key of its own."""

SOURCES = ("python", "torch", "vllm", "served_version", "impl_version", "impl_sources")

FOLLOWS = {
    "python": SOURCES,
    "PYTHONPATH": SOURCES,
    "speculative": ("speculative", "draft_tokens", "draft_weights", "draft_sample_method", "rejection_sample_method",
                    "synthetic_rates", "graph_mode", "capture"),
    "--eager": ("graph_mode", "capture"),
    "--capture": ("capture", "graph_mode"),
    "--enforce-eager": ("graph_mode", "capture_sizes"),
    "--speculative-config": ("speculative", "draft_tokens", "draft_sample_method", "rejection_sample_method",
                             "synthetic_acceptance_length", "synthetic_acceptance_rates", "capture_sizes"),
    "--enable-prefix-caching": ("prefix_caching", "served_prefix_caching"),
    "--no-enable-prefix-caching": ("prefix_caching", "served_prefix_caching"),
    "--rejection-sample-method": ("rejection_sample_method", "synthetic_rates"),
    "--synthetic-acceptance-rates": ("rejection_sample_method", "synthetic_rates"),
    "--synthetic-acceptance-length": ("rejection_sample_method", "synthetic_rates"),
    "--draft-load-format": ("draft_weights",),
    "--memory-budget": ("requested_bytes",),
    "--model": ("model", "served_model"),
    "--served-model-name": ("served_model",),
}  # fmt: skip
"""Conditions that a difference of a key or flag explains; a flag that is not named explains the one of its name.
An engine that captures its draft's passes has nothing to capture without one."""
ENDPOINTS_DIFFER = ("vllm", "tp", "pp", "dp", "cache_state")
"""Conditions that two running servers may differ in: which server it is, is the factor."""
DECLARABLE = ("served_model", "max_model_len", "prefix_caching", "kv_pinned")
"""What else running servers tell of themselves: the same in both arms, unless --declare names it."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,59}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class ArmSpec:
    """One arm as it was asked for."""

    name: str
    speculative: str | None = None
    toggles: tuple[str, ...] = ()
    """`name`, or `name=off`."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    python: str | None = None
    """Absolute path of the interpreter that runs the engine; None is the harness's own."""


def parse_arm(text: str) -> ArmSpec:
    """Read `NAME=key=value;key=value`. InputError names the part that is wrong and what is known."""
    name, equals, rest = text.partition("=")
    name = name.strip()
    if not equals or not _NAME.fullmatch(name):
        raise InputError(
            f"--arm '{text}': write NAME='speculative=dspark;args=--eager', the name in letters and digits"
        )
    values: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in _unquoted(rest.strip()).split(";"))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.5)
            raise InputError(f"--arm {name}: unknown key '{key}': {_hint(near, KEYS)}")
        if key in values:
            raise InputError(f"--arm {name}: '{key}' stands there twice; give it once")
        if not equals or not value:
            raise InputError(f"--arm {name}: '{key}' has no value; leave it out, or write {key}=VALUE")
        values[key] = value
    return ArmSpec(
        name=name,
        speculative=_method(name, values.get("speculative")),
        toggles=tuple(filter(None, (part.strip() for part in values.get("toggles", "").split(",")))),
        args=_args(name, values.get("args", "")),
        env=_env(name, values.get("env", "")),
        python=interpreter(f"--arm {name}: python", values["python"]) if "python" in values else None,
    )


def _unquoted(text: str) -> str:
    """`text` without a pair of quotes around the whole; a quote that closes a value's own stays."""
    paired = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if paired else text


def two_environments(a: str | None, b: str | None) -> list[ArmSpec]:
    """Arms `a`, the baseline, and `b`: the same engine from two environments, say before and after a merge."""
    return [
        ArmSpec("a", python=None if a is None else interpreter("--a-python", a)),
        ArmSpec("b", python=None if b is None else interpreter("--b-python", b)),
    ]


def interpreter(asked_as: str, text: str) -> str:
    """The interpreter of an environment, from its folder or itself. Links are kept, since a venv's is one.

    InputError, which says what it was asked as, if there is none.
    """
    if not text:
        raise InputError(f"{asked_as} is empty: name an environment's folder or its python")
    path = Path(text).expanduser()
    path = path / "bin" / "python" if path.is_dir() else path
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InputError(f"{asked_as} {text}: no interpreter at {path}; name an environment's folder or its python")
    return str(path.absolute())


def declared_differences(baseline: ArmSpec, arm: ArmSpec) -> list[str]:
    """Conditions that may differ from the baseline's, since the two arms say so; toggles apart."""
    conditions: list[str] = []
    if arm.python != baseline.python:
        conditions += FOLLOWS["python"]
    if arm.speculative != baseline.speculative:
        conditions += FOLLOWS["speculative"]
    ours, theirs = _flags(arm.args), _flags(baseline.args)
    for flag in sorted(ours.keys() | theirs.keys()):
        if ours.get(flag) != theirs.get(flag):
            name = flag.partition(".")[0].replace("_", "-")  # as vLLM reads --speculative_config and --flag.key
            conditions += FOLLOWS.get(name, (name.removeprefix("--").replace("-", "_"),))
    for key in sorted(arm.env.keys() | baseline.env.keys()):
        if arm.env.get(key) != baseline.env.get(key):
            conditions += [f"env.{key}", *FOLLOWS.get(key, ())]
    return list(dict.fromkeys(conditions))


def declare_it(condition: str) -> str:
    """How running servers may differ in a condition; one model is often served under two names."""
    under = " where one model has two names" if condition == "served_model" else " where it is meant to differ"
    return f"add --declare {condition}{under}"


def _method(arm: str, method: str | None) -> str | None:
    if method is not None and method not in METHODS:
        near = difflib.get_close_matches(method, METHODS, n=1, cutoff=0.5)
        raise InputError(f"--arm {arm}: unknown speculative method '{method}': {_hint(near, METHODS)}")
    return method


def _args(arm: str, text: str) -> tuple[str, ...]:
    try:
        args = tuple(shlex.split(text))
    except ValueError as error:
        raise InputError(f"--arm {arm}: args '{text}': {error}") from None
    if args and not args[0].startswith("--"):
        raise InputError(f"--arm {arm}: args begin with '{args[0]}', which is no flag; write args=--flag value")
    for flag in _flags(args):
        if flag == "--speculative":
            raise InputError(f"--arm {arm}: give speculative=METHOD as a key, not in args")
        if flag in SHARED_FLAGS:
            raise InputError(f"--arm {arm}: {flag} must be the same in every arm; give it to dsbench ab itself")
    return args


def _flags(args: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Values by flag, with `--flag=value` taken apart."""
    found: dict[str, tuple[str, ...]] = {}
    flag = ""
    for part in args:
        if part.startswith("--"):
            flag, _, value = part.partition("=")
            found[flag] = (value,) if value else ()
        else:
            found[flag] = (*found.get(flag, ()), part)
    return found


def _env(arm: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not _VARIABLE.fullmatch(key):
            raise InputError(f"--arm {arm}: env '{part}' is no assignment; write env=NAME=value,OTHER=value")
        if key.startswith("DSBENCH_"):
            raise InputError(f"--arm {arm}: {key} is set by dsbench; use toggles=, or leave it out")
        found[key] = value
    return found


def _hint(near: Sequence[str], known: Sequence[str]) -> str:
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
