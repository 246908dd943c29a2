"""Result files of other programs as records, JSON or one object a line, and the figures of one record."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field

from dsbench.checks.answer import Input, read
from dsbench.errors import InputError
from dsbench.json_text import opens, read_json

MOST_BYTES = 1 << 29
"""Largest file that is read: one of vLLM with every request in it is a tenth of this."""
DEEPEST = 64
"""Levels of objects and lists; no known file has more than a dozen."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Tool:
    """One program's files."""

    name: str
    is_mine: Callable[[Record], bool]
    """Whether a file that begins with this record is the program's, by its keys."""
    read: Callable[[Sequence[Record]], dict[str, Any]]
    """The figures of all records. InputError names the record, the key and the value."""


def _or_none(value: Any) -> Any:
    """lm-eval writes N/A for a figure that it did not compute."""
    return None if value == "N/A" else value


Figure = Annotated[Annotated[float, Field(ge=-1e18, le=1e18)] | None, BeforeValidator(_or_none)]
"""A number, or None where the file has none. Bounded, so that no product or quotient of two overflows."""
Share = Annotated[Annotated[float, Field(ge=0, le=1)] | None, BeforeValidator(_or_none)]
Count = Annotated[int, Field(ge=0, le=10**15)] | None

Figures = Annotated[list[Figure], Field(max_length=10_000)]
"""Repeats of one figure; no program makes a tenth of so many."""

M = TypeVar("M", bound=Input)


def read_each(model: type[M], records: Sequence[Record]) -> list[M]:
    """All records of a file. InputError names the record, from 1, if there are several."""
    found = []
    for number, record in enumerate(records, start=1):
        try:
            found.append(read(model, record))
        except InputError as error:
            raise InputError(f"record {number}: {error}" if len(records) > 1 else str(error)) from None
    return found


def quotient(a: float | None, b: float | None) -> float | None:
    """None without both, if there is nothing to divide by, or beyond every float."""
    if a is None or not b:
        return None
    return a / b if math.isfinite(a / b) else None


def common(values: Sequence[Any]) -> Any:
    """The value that all share; None if they differ."""
    return values[0] if values and all(value == values[0] for value in values) else None


def option(command: Sequence[str], name: str) -> str | None:
    """What stands behind `--name` in a command, or in `--name=value`."""
    for number, word in enumerate(command, start=1):
        if word == f"--{name}":
            return command[number] if number < len(command) else None
        if word.startswith(f"--{name}="):
            return word.partition("=")[2]
    return None


def flat_or_rows(tool: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A file of one result gives its figures at the top, a file of several one row each."""
    return {"tool": tool, **rows[0]} if len(rows) == 1 else {"tool": tool, "rows": list(rows)}


# --- files ------------------------------------------------------------------------------------------------------------


def load_records(path: Path) -> list[Record]:
    """The objects of a file: one, a list of them, or one a line. Empty if it is JSON of another kind.

    NaN and Infinity are read as null: they are no figures. InputError is one line that says what is wrong.
    """
    text = _text(path)
    try:
        content = _parse(text)
    except json.JSONDecodeError as error:
        lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
        if len(lines) < 2 or not _is_object(lines[0][1]):
            raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
        return [_line(path, number, line) for number, line in lines]
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path}: {_why(error)}") from None
    records = content if isinstance(content, list) else [content]
    if opens(text) > DEEPEST and _deeper_than(records, DEEPEST):
        raise InputError(f"{path}: nested more than {DEEPEST} levels deep")
    return records if all(isinstance(record, dict) for record in records) else []


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise InputError(f"{path}: is larger than {MOST_BYTES:,} bytes, the most that are read")
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text") from None
    if not text.strip():
        raise InputError(f"{path} is empty")
    return text


def _parse(text: str) -> Any:
    return read_json(text, constant=lambda _: None)


def _is_object(line: str) -> bool:
    try:
        return isinstance(_parse(line), dict)
    except (ValueError, RecursionError):
        return False


def _line(path: Path, number: int, line: str) -> Record:
    try:
        record = _parse(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}:{number}: {_why(error)}") from None
    if not isinstance(record, dict):
        raise InputError(f"{path}:{number}: should be an object, as the first line is")
    if opens(line) > DEEPEST and _deeper_than([record], DEEPEST):
        raise InputError(f"{path}:{number}: nested more than {DEEPEST} levels deep")
    return record


def _why(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON: {error.msg}"
    if isinstance(error, RecursionError):
        return f"nested more than {DEEPEST} levels deep"
    return f"has an integer of more than {sys.get_int_max_str_digits()} digits"


def _deeper_than(records: Sequence[Any], levels: int) -> bool:
    layer: list[Any] = list(records)
    for _ in range(levels):
        layer = [
            inner
            for one in layer
            for inner in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True
