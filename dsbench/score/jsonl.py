"""Lines of a JSONL file with their places, for errors that name them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dsbench.errors import InputError


def lines_of(file: Path) -> list[tuple[str, str]]:
    """Each line that is not blank, and its place as `file:number`. InputError for what is no text, or empty."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{file} is not UTF-8 text") from None
    found = [(line, f"{file}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not found:
        raise InputError(f"{file} is empty, so nothing was scored")
    return found


def check_once(named: Iterable[tuple[str, str]]) -> None:
    """InputError for an id that stands in two lines, from ids and their places: a row would count twice."""
    first: dict[str, str] = {}
    for name, where in named:
        if name in first:
            raise InputError(f"{where}: id {name!r} stands in {first[name]} already")
        first[name] = where
