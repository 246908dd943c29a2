"""Lines of a server's log: without colours and carriage returns, and with the process that printed them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST = 65_536
"""Characters of a line that are read, half of them from its end; no line of a known shape is longer."""

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|(?:\x1b|\^\[|ESC)?\[[0-9;]{1,12}m")
_PROCESS = re.compile(
    r"\(([A-Za-z]\w{0,40}?)(?:[_-]?((?:[A-Z]+\d+)(?:_[A-Z]+\d+)*|\d+))?(?: rank=(\d+))? pid=(\d+)[^)]{0,80}\)"
)
_LEVEL = re.compile(r"(?:^|[\s)])(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s")
_WHERE = re.compile(r"\[?([\w./-]{1,120}\.py:\d+)\]")
_HEADER = re.compile(r"\s*(?:={3,}|#{5,}|-{3,})\s+(\S.{0,300}?)\s*(?:={3,}|#{5,}|-{3,})\s*")
_PREFIX = 400
"""Characters at the start of a line in which its process, level and source file stand."""


@dataclass(frozen=True)
class Line:
    """One line, or a part of one between carriage returns."""

    number: int
    """From 1, as the file splits at newlines."""
    text: str
    process: str = ""
    """`Worker`, `EngineCore`, `APIServer`; empty where none is printed."""
    rank: str | None = None
    """The printed tag, `TP0` or `DP1` or `0`; None where there is none."""
    pid: str = ""
    level: str = ""
    where: str = ""
    """File and line of the statement that printed it."""

    @property
    def source(self) -> tuple[str, str | None, str, str]:
        """Equal for the lines that one statement of one process printed."""
        return self.process, self.rank, self.pid, self.where

    @property
    def body(self) -> str:
        """The text after the process tag."""
        return self.text.split(")", 1)[1].removeprefix(" ") if self.process else self.text

    @property
    def header(self) -> str | None:
        """What a line of a driver script like `=== serve A ===` says between its rules."""
        found = _HEADER.fullmatch(self.text) if self.text[:60].lstrip()[:3] in ("===", "###", "---") else None
        return found[1] if found else None

    @property
    def major_header(self) -> str | None:
        """A header that parts one run from the next: ruled with `=` or `#`."""
        return None if self.text.lstrip().startswith("-") else self.header


def read_lines(text: str) -> Iterator[Line]:
    """Lines in order, blank ones left out. Takes time linear in the text."""
    for number, raw in enumerate(text.split("\n"), start=1):
        if not raw:
            continue
        if len(raw) > LONGEST:
            raw = f"{raw[: LONGEST // 2]}\r{raw[-LONGEST // 2 :]}"
        for part in re.split(r"\r|\^M", raw) if "\r" in raw or "^M" in raw else (raw,):
            if part and not part.isspace():
                yield _line(number, _COLOUR.sub("", part) if "[" in part else part)


def _line(number: int, text: str) -> Line:
    head = text[:_PREFIX]
    process = _PROCESS.search(head) if " pid=" in head else None
    level, where = _LEVEL.search(head), _WHERE.search(head) if ".py:" in head else None
    return Line(
        number,
        text,
        process=process[1] if process else "",
        rank=(process[2] or process[3]) if process else None,
        pid=process[4] if process else "",
        level=level[1] if level else "",
        where=where[1] if where else "",
    )


def number_word(count: int) -> str:
    """A small number as a word, for sentences."""
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
    return words[count] if count < len(words) else str(count)
