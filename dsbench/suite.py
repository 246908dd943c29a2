"""Suites: TOML files that say which probes run, how often, and what guards the verdict."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dsbench.errors import InputError
from dsbench.metrics import check_pattern

Until = Literal["profile", "ready"]
Count = Annotated[int, Field(ge=1)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class KvProbe(_Table):
    """Reads the KV profile the engine wrote; sends nothing."""


class DecodeProbe(_Table):
    """Streams greedy completions of a fixed length and times them from the first token to the last."""

    streams: list[Count] = Field(min_length=1)
    """Numbers of concurrent streams; one metric `decode.tps.cN` each."""
    tokens: int = Field(ge=8)
    """Tokens generated per stream; the end token is ignored."""
    prompt_tokens: Count = 16
    repeats: Count = 3
    """Readings inside a boot; their median is the boot's value."""
    latency: bool = False
    """Whether times are reported too: `decode.ttft_ms.cN`, `decode.itl_ms.cN`, `decode.tpot_ms.cN`, and
    `decode.step_ms.cN`."""


class PrefillProbe(_Table):
    """Times prompts of fresh random token ids with one token of output."""

    lengths: list[Annotated[int, Field(ge=8)]] = Field(min_length=1)
    """Prompt lengths in tokens; one metric `prefill.tps.N` each."""
    repeats: Count = 3


class SmokeItem(_Table):
    """One question with one right answer, asked greedily."""

    prompt: str | None = None
    """Text to complete; or `chat` instead."""
    chat: str | None = None
    """One user message."""
    answer: int
    """The first whole number of the reply must be this."""
    max_tokens: Count = 8

    @model_validator(mode="after")
    def _one_question(self) -> SmokeItem:
        if (self.prompt is None) == (self.chat is None):
            raise ValueError("give either prompt or chat")
        return self

    @property
    def name(self) -> str:
        return f"chat {self.chat}" if self.prompt is None else self.prompt


class SmokeProbe(_Table):
    """Asks short questions; one item each."""

    items: list[SmokeItem] = Field(min_length=1)


class IdentityProbe(_Table):
    """Records the greedy token ids of fixed prompts, alone and `together` at a time."""

    prompts: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    tokens: Count = 32
    together: Annotated[int, Field(ge=2)] = 4


class AcceptanceProbe(_Table):
    """Counts what the drafts did on fixed prompts, prose and structured text apart, greedy and sampled."""

    prose: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    structured: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    tokens: Annotated[int, Field(ge=2)] = 48
    """Most tokens of a request; the first comes without a draft."""
    samples: Count = 4
    """Requests a prompt at temperature 1, each with its own seed; one at temperature 0."""
    together: Count = 4
    """Requests at one time."""


class OutputLawProbe(_Table):
    """Compares short sampled outputs with the target's own law."""

    prompts: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)
    requests: Annotated[int, Field(ge=50)] = 2000
    """Requests in a boot, shared out over the prompts; each has its own seed."""
    tokens: Annotated[int, Field(ge=2, le=8)] = 4
    """Tokens of a request; the first comes without a draft."""
    together: list[Annotated[int, Field(ge=2)]] = Field(default=[3, 6], min_length=2)
    """Requests at one time, in parts of equal size. A stale buffer hides at the batch size captured last,
    so there are at least two sizes."""
    contexts: Count = 12
    """Beginnings of an output that are followed, the most frequent ones at each position."""


class Probes(_Table):
    """The probes of a suite, in the order they run."""

    kv: KvProbe | None = None
    smoke: SmokeProbe | None = None
    identity: IdentityProbe | None = None
    acceptance: AcceptanceProbe | None = None
    output_law: OutputLawProbe | None = None
    prefill: PrefillProbe | None = None
    decode: DecodeProbe | None = None

    def names(self) -> list[str]:
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    def warmup_names(self) -> list[str]:
        """What a discarded boot runs: all but what is counted and not timed, which a cold cache cannot change."""
        return [name for name in self.names() if name not in ("acceptance", "output_law")]

    def items(self, name: str) -> int:
        """Number of items that one probe of this suite asks; 0 for probes without items."""
        if name == "smoke" and self.smoke:
            return len({item.name for item in self.smoke.items})
        if name == "identity" and self.identity:
            return 2 * len(self.identity.prompts)
        return 0

    def metrics(self, name: str) -> list[str]:
        """Metric keys that one probe of this suite reports when it has run."""
        if name == "kv":
            return ["kv.available_bytes", "kv.weights_bytes", "kv.persistent_bytes", "kv.workspace_bytes",
                    "kv.peak_activation_bytes", "kv.runtime_peak_bytes", "kv.resident_bytes",
                    "kv.index_maps_per_step", "kv.non_torch_bytes", "kv.blocks", "kv.tokens",
                    "kv.max_concurrency"]  # fmt: skip
        if name == "decode" and self.decode:
            kinds = ["tps", *(("ttft_ms", "itl_ms", "tpot_ms", "step_ms") if self.decode.latency else ())]
            return [f"decode.{kind}.c{streams}" for streams in self.decode.streams for kind in kinds]
        if name == "prefill" and self.prefill:
            return [f"prefill.tps.{length}" for length in self.prefill.lengths]
        if name == "acceptance":
            return ["accept.rate", "accept.length", "accept.per_position", "accept.conditional"]
        return {"smoke": ["smoke.correct"], "identity": ["identity.tokens"], "output_law": ["output_law"]}[name]

    def without(self, *names: str) -> Probes:
        """The same probes, less those named."""
        return self.model_copy(update=dict.fromkeys(names))


class Timeouts(_Table):
    """Deadlines in seconds."""

    boot: float = Field(default=120.0, gt=0)
    """From process start to a healthy server, or to the exit with `until = "profile"`."""
    probe: float = Field(default=120.0, gt=0)
    """One probe of one boot."""
    stop: float = Field(default=10.0, gt=0)
    """From the polite signal to the end of the whole process group, before it is killed."""


class Suite(_Table):
    """What one experiment measures."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    summary: str
    blocks: Count
    """Blocks; each holds one boot of every arm."""
    warmup_boots: Annotated[int, Field(ge=0)] = 1
    """Boots an arm that run first and are discarded."""
    until: Until = "ready"
    """`profile`: the engine stops after the memory profile, without serving; only exact KV metrics."""
    guards: list[str] = []
    """Metrics, with `*` for families, whose regression is the experiment's. The primary comes from the toggle."""
    drift_controls: list[str] = []
    """Metrics a toggle of this suite cannot touch: if one moves beyond its margin the experiment is void."""
    probes: Probes
    timeouts: Timeouts = Timeouts()

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
        return self

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
            return parse_suite(path.read_text(encoding="utf-8"), name_or_path)
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
        content = tomllib.loads(text)
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
    path = [part for part in first["loc"] if part not in ("function-after",)]
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        known = _known_keys(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=2, cutoff=0.5)
        message = f"unknown key; {'did you mean ' + ' or '.join(near) + '?' if near else 'known: ' + ', '.join(known)}"
    elif first["type"] == "missing":
        message = "is missing"
    else:
        message = message[0].lower() + message[1:]
        if not isinstance(first["input"], dict | list):
            message += f", got {first['input']!r}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    key = ".".join(str(part) for part in path)
    return f"{source}:{line_of(text, path)}: {key}{' ' if key else ''}{message}{more}"


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
        if len(here) > best_depth and list(path[: len(here)]) == here:
            best, best_depth = number, len(here)
    return best


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]
