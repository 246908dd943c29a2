"""Readings in one JSON table, for `dsbench judge --from-table`: by arm, by single build, or by step of a ladder."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dsbench.errors import InputError
from dsbench.json_text import opens, read_json

Number = Annotated[float, Field(allow_inf_nan=False)]
MOST = 20_000
"""Readings in one list; nobody starts an engine so often."""
MOST_ITEMS = 1_000_000_000
"""Items of an arm; the exact test of far larger totals does not end."""
Repeats = Annotated[list[Number], Field(min_length=1, max_length=MOST)]
CacheState = Literal["cold", "warm", "unknown"]
LONGEST_KEY = 100
"""Characters of an unknown key that are compared with known ones: each one costs time."""
DEEPEST = 64
"""Levels of objects and lists in a file; no input needs more than a few."""
KINDS: dict[str, tuple[type, ...]] = {
    "toggle_marker_seen": (bool, int),
    "checks_planned": (int,),
    "checks_run": (int,),
}
"""Conditions that are flags or counts: the text "false" would be true."""
FREE_TEXT = ("name", "title", "note", "notes", "source", "why", "description")
"""Keys for people, which are read past."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class TableArm(BaseModel):
    """One arm. Any other key is a setting, which has to be the same in every arm unless it is declared."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    boots: list[Number | Repeats | None] | None = Field(default=None, min_length=1, max_length=MOST)
    """One reading a boot, or the repeats inside each boot; null is a boot without a reading."""
    runs: list[Number] | None = Field(default=None, min_length=1, max_length=MOST)
    """In place of boots, runs of a share of items."""
    blocks: list[int] | None = None
    """Block of each boot; with blocks the test pairs the arms inside them."""
    compile_cache: list[CacheState | None] | None = None
    """Cache state of each boot; cold boots are left out."""
    logs: list[str] | None = None
    """Log of each boot; no two boots share one."""
    n_items: int | None = Field(default=None, gt=0, le=MOST_ITEMS)

    @model_validator(mode="after")
    def _lengths(self) -> TableArm:
        if (self.boots is None) == (self.runs is None):
            raise ValueError("needs either boots or runs")
        for name in ("blocks", "compile_cache", "logs"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.readings):
                raise ValueError(f"{name} has {len(given)} entries for {len(self.readings)} readings")
        if self.blocks and len(set(self.blocks)) < len(self.blocks):
            raise ValueError(f"blocks names a block twice: {self.blocks}")
        return self

    @property
    def readings(self) -> list[float | None]:
        """One value a boot: repeats inside a boot are averaged, since the boot is the replicate."""
        return [fmean(one) if isinstance(one, list) else _single(one) for one in self.boots or self.runs or ()]

    @property
    def repeats(self) -> int | None:
        """Readings inside all boots together; None where every boot gave one."""
        nested = [one for one in self.boots or () if isinstance(one, list)]
        return sum(map(len, nested)) if nested else None

    @property
    def settings(self) -> dict[str, Any]:
        extra = {key: value for key, value in (self.model_extra or {}).items() if key not in FREE_TEXT}
        return {**({"n_items": self.n_items} if self.n_items is not None else {}), **extra}


def _single(one: Any) -> float | None:
    return float(one) if isinstance(one, int | float) else None


class SingleBoot(_Part):
    """One boot of one build."""

    build: int | str
    available_kv_gib: Number
    kv_tokens: int | None = Field(default=None, gt=0)


class Step(_Part):
    """One step of a ladder, read from one boot, or the mean of several."""

    step: str
    available_kv_gib: Number
    kv_tokens: int | None = Field(default=None, gt=0)
    max_concurrency: Number | None = None
    max_model_len: int | None = Field(default=None, gt=0)
    boots: int = Field(default=1, ge=1)


class Table(_Part):
    """One metric's readings, and what is known of how they were taken. The first arm is the baseline."""

    metric: str
    unit: str
    higher_is_better: bool
    replicate: Literal["boot", "run"] = "boot"
    practical_margin: Number | None = Field(default=None, ge=0)
    """In the unit. Without one nothing can be called equivalent."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    test: str | None = None
    """Declared test, where it is the permutation test."""
    arms: dict[str, TableArm] | None = None
    boots: list[SingleBoot] | None = Field(default=None, min_length=2)
    steps: list[Step] | None = Field(default=None, min_length=2)
    conditions: dict[str, Any] = {}
    """A value for all arms, or an object by arm, build or step; the latter must agree unless declared."""
    declared: list[str] = []
    """Conditions and settings in which the arms are meant to differ."""
    n_items: int | None = Field(default=None, gt=0, le=MOST_ITEMS)
    noise_floor_gib: Number | None = Field(default=None, ge=0)
    noise_model: str | None = None
    """`exact: ...` for a quantity that repeats to the byte; it has to say that repeats were identical."""
    predicted_released_mib: list[Number] | None = None
    printed_resolution_gib: Number | None = Field(default=None, ge=0)
    effects: list[Annotated[float, Field(gt=0)]] | None = None
    """Effects, in the unit, for which the boots needed are wanted."""

    @model_validator(mode="before")
    @classmethod
    def _without_free_text(cls, content: Any) -> Any:
        return {k: v for k, v in content.items() if k not in FREE_TEXT} if isinstance(content, dict) else content

    @model_validator(mode="after")
    def _one_shape(self) -> Table:
        shapes = [name for name in ("arms", "boots", "steps") if getattr(self, name) is not None]
        if len(shapes) != 1:
            raise ValueError(f"needs exactly one of arms, boots, steps; it has {', '.join(shapes) or 'none'}")
        if self.arms is not None and len(self.arms) < 2:
            raise ValueError("arms: a comparison needs two, the baseline first")
        predicted = self.predicted_released_mib
        if predicted is not None and (self.steps is None or len(predicted) != len(self.steps) - 1):
            raise ValueError("predicted_released_mib: needs one figure for each step after the first")
        if self.arms and any(arm.runs for arm in self.arms.values()) != all(arm.runs for arm in self.arms.values()):
            raise ValueError("arms: all have boots, or all have runs")
        return self

    @model_validator(mode="after")
    def _readable_conditions(self) -> Table:
        """A value under a name without readings would be held against nothing."""
        for key, value in self.conditions.items():
            by_name = value if isinstance(value, dict) else {"": value}
            if isinstance(value, dict) and (strange := [name for name in value if name not in self.names]):
                raise ValueError(
                    f"conditions.{key}: '{strange[0]}' has no readings; the table has {', '.join(self.names)}"
                )
            kinds = KINDS.get(key)
            wrong = [one for one in by_name.values() if kinds and one is not None and type(one) not in kinds]
            if kinds and wrong:
                wanted = "true, false or null" if bool in kinds else "a whole number or null"
                raise ValueError(f"conditions.{key}: should be {wanted}, got {wrong[0]!r}")
        return self

    @property
    def names(self) -> list[str]:
        """The arms, builds or steps that have readings."""
        if self.arms is not None:
            return list(self.arms)
        return list(
            dict.fromkeys([str(one.build) for one in self.boots or ()] + [one.step for one in self.steps or ()])
        )

    @property
    def better(self) -> Literal["up", "down"]:
        return "up" if self.higher_is_better else "down"

    @property
    def is_kv(self) -> bool:
        return "kv" in self.metric.lower()

    @property
    def repeats_to_the_byte(self) -> bool:
        """Declared exact, and repeats were seen to be identical: only then is one boot enough."""
        text = (self.noise_model or "").lower()
        return text.startswith("exact") and "identical" in text and "not identical" not in text

    def items(self, arm: TableArm) -> int | None:
        return arm.n_items if arm.n_items is not None else self.n_items


def load_table(path: Path) -> Table:
    """Read and check one table. InputError is one line with the place, the value and the mend."""
    content = load_json(path)
    try:
        return Table.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{path}: {_explain(error, content)}") from None


def load_json(path: Path) -> Any:
    """The content of a JSON file, or one line that says why there is none."""
    too_deep = f"{path}: nested more than {DEEPEST} levels deep"
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = read_json(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise InputError(too_deep) from None
    except ValueError:
        raise InputError(f"{path}: has an integer of more than {sys.get_int_max_str_digits()} digits") from None
    if opens(text) > DEEPEST and _deeper_than(content, DEEPEST):
        raise InputError(too_deep)
    return content


def _deeper_than(content: Any, levels: int) -> bool:
    """Whether lists and objects lie inside each other on more than `levels` levels."""
    layer = [content]
    for _ in range(levels):
        layer = [inner for one in layer for inner in _inside(one) if isinstance(inner, dict | list)]
        if not layer:
            return False
    return True


def _inside(one: Any) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


def _explain(error: ValidationError, content: Any) -> str:
    problems = error.errors(include_url=False)
    first = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    # Parts in capitals or brackets are pydantic's names of alternatives, not keys of the file.
    *above, last = first["loc"] or ("",)
    path = [part for part in above if isinstance(part, int) or _in_file(str(part))]
    if isinstance(last, int) or _in_file(last) or first["type"] == "extra_forbidden":
        path.append(last)
    where = ".".join(str(part) for part in path)
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1])[:LONGEST_KEY], _keys(path), n=2, cutoff=0.5)
        message = f"unknown key; {'did you mean ' + ' or '.join(near) if near else 'known: ' + ', '.join(_keys(path))}"
    elif first["type"] == "missing":
        message = "is missing"
    elif first["type"] in ("dict_type", "model_type"):
        message = "should be an object with keys"
    else:
        message = message[0].lower() + message[1:]
        if not isinstance(first["input"], dict | list):
            message += f", got {first['input']!r}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where}{': ' if where else ''}{message}{more}"


def _in_file(part: str) -> bool:
    return not any(mark in part for mark in "[(") and part not in ("float", "int", "str", "list", "none")


def _keys(path: list[int | str]) -> list[str]:
    """Keys known at a place of the file."""
    model: type[BaseModel] = Table
    for part in path[:-1]:
        if isinstance(part, str) and part in model.model_fields:
            inner = get_args(get_args(model.model_fields[part].annotation)[0])
            model = next((one for one in inner if isinstance(one, type) and issubclass(one, BaseModel)), model)
    return list(model.model_fields)
