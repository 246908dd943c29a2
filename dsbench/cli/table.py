"""Tables and JSON on standard output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

MOST_COLUMNS = 1000
PIPE_WIDTH = 200
"""Columns when the output is no terminal: wide enough that no figure is cut."""


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Figures stand right, words left."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    cells = [[cell_text(cell) for cell in row] for row in rows]
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if all(_is_figure(row[i]) for row in cells) else "left")
    for row in cells:
        table.add_row(*map(escape, row))
    console = Console(highlight=False)
    # A narrow terminal wraps lines by itself; a name or a figure is never cut.
    needed = console.measure(table, options=console.options.update(max_width=MOST_COLUMNS)).maximum
    console.width = max(console.width if console.is_terminal else PIPE_WIDTH, needed)
    console.print(title, style="bold", markup=False)
    console.print(table)
    console.print()


def cell_text(cell: object) -> str:
    """Whole numbers with thousands separators, others as they are."""
    return f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell)


def _is_figure(text: str) -> bool:
    return text == "-" or text.lstrip("-+")[:1].isdigit()


def print_json(content: Any) -> None:
    click.echo(json.dumps(content, indent=2))


def mib(size: int) -> str:
    """Bytes as MiB, whole where they are."""
    return f"{size / 2**20:,.2f}".rstrip("0").rstrip(".") + " MiB"
