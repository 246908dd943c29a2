"""Suites: TOML files that say which probes run, how often, and what guards the verdict."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from dsbench.errors import InputError
from dsbench.metrics import check_pattern
from dsbench.probe_settings import SP_ACTIVE, Probes
from dsbench.probe_table import Count, Table
from dsbench.toml_text import read_toml, text_of

Until = Literal["profile", "ready"]
Seconds = Annotated[float, Field(gt=0, le=1e6)]
"""At most some days: clocks of the operating system end somewhere."""


class Timeouts(Table):
    """Deadlines in seconds."""

    boot: Seconds = 120.0
    """From process start to a healthy server, or to the exit with `until = "profile"`."""
    probe: Seconds = 120.0
    """One probe of one boot."""
    stop: Seconds = 10.0
    """From the polite signal to the end of the whole process group, before it is killed."""


class Build(Table):
    """What a recipe serves: the engine, its flags and variables, as its source states them."""

    engine: Literal["vllm"] = "vllm"
    """What serves it."""
    hardware: str
    """What the source measured on."""
    model: str | None = None
    """Name or folder; the command line's where it is left out."""
    serve_args: list[Annotated[str, Field(min_length=1)]] = Field(default=[])
    """Flags and values of `vllm serve`, each a string of its own."""
    env: dict[str, str] = Field(default={})
    """Variables of the server."""
    unknown: list[str] = Field(default=[])
    """Settings that the source does not state: left out, so the engine's own hold."""

    @field_validator("serve_args")
    @classmethod
    def _flags(cls, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-"):
            raise ValueError(f"begins with '{args[0]}', which is no flag; a model is `model`")
        return args


class Suite(Table):
    """What one experiment measures; with a build it is a recipe."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """Small letters, figures, `-` and `_`."""
    summary: str
    """One line for `dsbench suites`."""
    blocks: Count
    """Blocks; each holds one boot of every arm."""
    warmup_boots: Annotated[int, Field(ge=0, le=1000)] = 1
    """Boots an arm that run first and are discarded."""
    speculative: Literal["mtp", "dspark"] | None = None
    """Draft method of our own engine where the command line names none and no toggle acts under others only."""
    until: Until = "ready"
    """`profile`: the engine stops after the memory profile, without serving; only exact KV metrics."""
    guards: list[str] = Field(default=[])
    """Metrics, with `*` for families, whose regression is the experiment's. The primary comes from the toggle."""
    drift_controls: list[str] = Field(default=[])
    """Metrics a toggle of this suite cannot touch: if one moves beyond its margin the experiment is void."""
    probes: Probes
    """What is measured: the tables below."""
    timeouts: Timeouts = Timeouts()
    """Deadlines."""
    build: Build | None = None
    """What is served unless the command line says otherwise."""

    @field_validator("guards", "drift_controls")
    @classmethod
    def _known_metrics(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            check_pattern(pattern)
        return patterns

    @model_validator(mode="after")
    def _probes_fit(self) -> Suite:
        if not self.probes.names():
            raise ValueError("probes: a suite needs at least one probe")
        if self.until == "profile" and self.probes.names() != ["kv"]:
            raise ValueError("until: 'profile' stops before serving, so only the kv probe can run")
        self._names_what_it_measures()
        return self

    def _names_what_it_measures(self) -> None:
        """A guard or control of a probe that the suite lacks would guard nothing, and nobody would be told."""
        measured = [key for name in self.probes.names() for key in self.probes.metrics(name)]
        measured += [SP_ACTIVE] if self.probes.kv is not None else []  # plans ask for it where an arm needs it
        for name in ("guards", "drift_controls"):
            for pattern in getattr(self, name):
                if not any(fnmatchcase(key, pattern) for key in measured):
                    why = f"no probe of the suite measures {pattern}: add its probe, or leave it out"
                    raise ValueError(f"{name}: {why}")

    def with_until(self, until: Until) -> Suite:
        """The same suite, stopped earlier: probes that need a server are dropped."""
        if until != "profile" or self.until == "profile":
            return self.model_copy(update={"until": until})
        if self.probes.kv is None:
            raise InputError(f"suite '{self.name}' has no kv probe, so nothing is left with --until profile")
        return self.model_copy(update={"until": until, "probes": Probes(kv=self.probes.kv)})


def shipped() -> dict[str, Traversable | Path]:
    """Suites by name: from the installed package, or from the checkout's `suites/`."""
    installed = resources.files("dsbench") / "_suites"
    folder: Traversable | Path = installed
    if not installed.is_dir():
        folder = Path(__file__).resolve().parent.parent / "suites"
    if not folder.is_dir():
        return {}
    return {
        f.name.removesuffix(".toml"): f
        for f in sorted(folder.iterdir(), key=lambda f: f.name)
        if f.name.endswith(".toml")
    }


def load_suite(name_or_path: str) -> Suite:
    """A shipped suite by name, or one from a TOML file. InputError names file, line and key."""
    if name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        try:
            return parse_suite(text_of(path), name_or_path)
        except OSError as error:
            raise InputError(f"suite file {name_or_path}: {error.strerror or error}") from None
        except UnicodeDecodeError:
            raise InputError(f"suite file {name_or_path} is not UTF-8 text") from None
    known = shipped()
    if name_or_path not in known:
        near = difflib.get_close_matches(name_or_path, known, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known) or 'none found'}"
        raise InputError(f"unknown suite '{name_or_path}': {hint} (a file's name ends in .toml)")
    return parse_suite(known[name_or_path].read_text(encoding="utf-8"), f"suites/{name_or_path}.toml")


def parse_suite(text: str, source: str) -> Suite:
    """Validate a suite's text. InputError: `source:line: key problem`, one line."""
    try:
        content = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"^(.*?) \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int(at[2]) if at and at[2] else text.count("\n") + 1
        raise InputError(f"{source}:{line}: not valid TOML: {at[1] if at else error}") from None
    try:
        return Suite.model_validate(content)
    except ValidationError as error:
        raise InputError(_explain(error, text, source)) from None


def _explain(error: ValidationError, text: str, source: str) -> str:
    problems = error.errors(include_url=False)
    # A misspelled key shows as one unknown and one missing; the unknown one is what to mend.
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    path = _keys(first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    if not path and (told := message.partition(": ")) and told[0] in Suite.model_fields:
        path, message = [told[0]], told[2]  # of the whole suite, about one of its keys
    if first["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=2, cutoff=0.6)
        message = f"unknown key; {'did you mean ' + ' or '.join(near) + '?' if near else 'known: ' + ', '.join(known)}"
    elif first["type"] == "missing":
        message = "is missing"
    else:
        message = message[0].lower() + message[1:]
        if not isinstance(first["input"], dict | list):
            message += f", got {first['input']!r}"
    others = len({tuple(_keys(problem["loc"])) for problem in problems}) - 1
    more = f" (and {others} more)" if others else ""
    key = ".".join(str(part) for part in path)
    return f"{source}:{line_of(text, path)}: {key}{' ' if key else ''}{message}{more}"


def _keys(location: Sequence[int | str]) -> list[int | str]:
    """The keys of a place in a suite; a part of a union is named there by its type, which is none."""
    types = ("function-", "constrained-", "list[")
    return [part for part in location if not str(part).startswith(types)]


def _known_keys(path: Sequence[int | str]) -> list[str]:
    """Keys a table accepts, found by walking the models down the path."""
    model: type[BaseModel] = Suite
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            model = _inner_model(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _inner_model(part))), None)


_HEADER = re.compile(r"^\s*\[(\[)?\s*([^\[\]]+?)\s*\]?\]\s*(#.*)?$")
_KEY = re.compile(r"^\s*([A-Za-z0-9_.\"'-]+(?:\s*\.\s*[A-Za-z0-9_\"'-]+)*)\s*=")


def line_of(text: str, path: Sequence[int | str]) -> int:
    """The line, from 1, of the deepest part of a key path that the text names; 1 if it names none."""
    best, best_depth = 1, 0
    table: list[int | str] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header and not key:
            table = list(_parts(header[2]))
            if header[1]:
                seen[header[2]] = seen.get(header[2], -1) + 1
                table.append(seen[header[2]])
            here = table
        elif key:
            here = [*table, *_parts(key[1])]
        else:
            continue
        shared = min(len(here), len(path))
        if shared > best_depth and list(path[:shared]) == here[:shared]:
            best, best_depth = number, shared
    return best


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]
