"""Columns that fit a terminal: words are wrapped at blanks, figures never, and what cannot fit is told row by row."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from rich.console import Console

from dsbench.report.visible import visible

PIPE_WIDTH = 10_000
"""Columns when the output is no terminal and nothing says how wide it is: no line is wrapped."""
PROSE_WIDTH = 120
"""The same where sentences are told, which no program reads and whole lines make hard to read."""
GAP = 3
"""Blanks between two columns."""
TALLEST = 4
"""Lines of a row; what would be higher reads better as a paragraph."""


class Output(Console):
    """Standard output, or error. A reader that leaves is no exit code of ours: rich would end with 1, a verdict's."""

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def console(piped: int = PIPE_WIDTH) -> Console:
    """Standard output, plain when piped, and then so wide. COLUMNS says how wide it is, NO_COLOR that it has no
    colours."""
    found = Output(highlight=False)
    if not found.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        found.width = piped
    return found


def wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """`text` in lines of at most `width`, broken at blanks; what follows the first line stands deeper by `indent`.

    A word that is longer than a line is not cut: a name, a path and a figure stay whole.
    """
    text = visible(text)
    start = text[: len(text) - len(text.lstrip())]
    lines = textwrap.wrap(
        text.strip(), max(1, width), initial_indent=start, subsequent_indent=start + indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return lines or [""]


def widths(columns: Sequence[str], rows: Sequence[Sequence[str]], figures: Sequence[bool], width: int) -> list[int]:
    """Widths of the columns so that the table has at most `width`; [] if it cannot, or only with high rows."""
    cells = [[name, *(row[i] for row in rows)] for i, name in enumerate(columns)]
    found = [max(map(len, column)) for column in cells]
    # A column of figures may only wrap its name.
    least = [
        max(_longest_word(column[0]), *map(len if figure else _longest_word, column[1:]), 0)
        for column, figure in zip(cells, figures, strict=True)
    ]
    room = width - GAP * (len(columns) - 1)
    if sum(least) > room:
        return []
    while sum(found) > room:
        found[max(range(len(found)), key=lambda i: (found[i] > least[i], found[i]))] -= 1
    heights = [len(wrapped(text, wide, "")) for column, wide in zip(cells, found, strict=True) for text in column]
    return found if max(heights) <= TALLEST else []


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)
