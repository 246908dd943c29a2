"""Tables and JSON on standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsbench.report.columns import PIPE_WIDTH, console, widths, wrapped
from dsbench.report.visible import visible

EMPTY = ("", "-")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], piped: int = PIPE_WIDTH
) -> None:
    """Figures stand right, words left. Where the columns do not fit side by side, each row is told as a paragraph.
    `piped`: how wide a pipe is that is not told."""
    out = console(piped)
    cells = [[cell_text(cell) for cell in row] for row in rows]
    used = [i for i in range(len(columns)) if i == 0 or not cells or any(row[i] not in EMPTY for row in cells)]
    names, cells = [columns[i] for i in used], [[row[i] for i in used] for row in cells]
    figures = [all(_is_figure(row[i]) for row in cells) for i in range(len(names))]
    fitting = widths(names, cells, figures, out.width)
    for line in wrapped(title, out.width):
        out.print(Text(line, style="bold"), soft_wrap=True)
    if fitting:
        _print_columns(out, names, cells, figures, fitting)
    else:
        _print_paragraphs(out, names, cells)
    out.print()


def _print_columns(
    out: Console, names: Sequence[str], rows: Sequence[Sequence[str]], figures: Sequence[bool], fitting: Sequence[int]
) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, figure, width in zip(names, figures, fitting, strict=True):
        table.add_column(name, justify="right" if figure else "left", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)


def _print_paragraphs(out: Console, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The first cell on a line of its own, the others below it, each behind its column's name."""
    for row in rows:
        out.print(Text(row[0]), soft_wrap=True)
        told = "; ".join(f"{name} {cell}" for name, cell in zip(names[1:], row[1:], strict=True) if cell not in EMPTY)
        for line in wrapped(f"  {told}", out.width, ""):
            out.print(Text(line), soft_wrap=True)


def print_note(text: str, indent: int = 0, piped: int = PIPE_WIDTH) -> None:
    """A line beside a table, wrapped at blanks where it is too long; what follows stands `indent` deeper."""
    for line in wrapped(text, console(piped).width, " " * indent):
        click.echo(line)


def cell_text(cell: object) -> str:
    """Whole numbers with thousands separators, others as they are."""
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else visible(str(cell))


def _is_figure(text: str) -> bool:
    return text == "-" or text.lstrip("-+")[:1].isdigit()


def print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=2))


def mib(size: int) -> str:
    """Bytes as MiB, whole where they are."""
    return f"{size / 2**20:,.2f}".rstrip("0").rstrip(".") + " MiB"
