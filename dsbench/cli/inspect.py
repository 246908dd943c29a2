"""`dsbench inspect`: what a server's log or metrics page says, and what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dsbench.cli.table import cell_text, print_json, print_table
from dsbench.errors import InputError

READABLE = click.Path(path_type=Path, dir_okay=False)
NUMBERS_SHOWN = 12
TABLES = ("boots", "arms", "cells", "spec", "engine_windows")


@click.command(short_help="Say what a server's log or metrics page tells.")
@click.argument("file", type=READABLE)
@click.option("--json", "as_json", is_flag=True, help="Print everything that was read as JSON.")
def inspect(file: Path, as_json: bool) -> int:
    """Say what a server's log or metrics page tells.

    \b
    dsbench inspect engine.log
    dsbench inspect metrics.prom --json

    Reads vLLM's boot, health, throughput and SpecDecoding lines in the forms of its versions, logs of driver
    scripts, and pages of /metrics (two, each headed '# SNAPSHOT time status=200', give their differences).
    What a file does not say is null, and a file of no known shape is called unknown.
    """
    from dsbench.engines.secrets import redact
    from dsbench.parse.inspect import UNKNOWN
    from dsbench.parse.inspect import inspect as read

    try:
        text = redact(file.read_bytes().decode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from None
    found = read(text)
    if as_json:
        print_json(found)
    elif found["shape"] == UNKNOWN:
        click.echo(f"{file}: unknown shape: {found.get('why', 'no line of a known log or metrics page')}")
    else:
        _show(file, found)
    return 0


def _show(file: Path, found: dict[str, Any]) -> None:
    """Boots, arms and cells side by side, one key a row; then whatever else was read."""
    if "boots" in found:
        names = [boot["label"] or f"boot {number}" for number, boot in enumerate(found["boots"], start=1)]
        _columns("boots", names, found["boots"])
    for key in ("arms", "cells"):
        if key in found:
            _columns(key, list(found[key]), list(found[key].values()))
    for key in ("spec", "engine_windows"):
        if isinstance(found.get(key), list):
            _columns(key, [str(number) for number in range(1, len(found[key]) + 1)], found[key])
    rest = {key: value for key, value in found.items() if key not in TABLES or isinstance(value, dict | None)}
    rest = {key: value for key, value in rest.items() if key not in ("arms", "cells")}
    rows = [(key, _cell(value)) for key, value in _flat(rest) if value not in (None, [], {})]
    print_table(str(file), ("key", "value"), rows)


def _columns(title: str, names: list[str], values: list[dict[str, Any]]) -> None:
    shown = list(zip(names, values, strict=True))[:NUMBERS_SHOWN]
    keys = list(dict.fromkeys(key for _, value in shown for key in value if value[key] not in (None, [], {})))
    title = title if len(shown) == len(names) else f"{title}: the first {len(shown)} of {len(names)}"
    print_table(title, ("key", *(name for name, _ in shown)), [
        (key, *(_cell(value.get(key)) for _, value in shown)) for key in keys
    ])  # fmt: skip


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in values.items():
        rows += _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]
    return rows


def _cell(value: Any) -> str:
    """Lists and tables in a line; a long list by its beginning."""
    if value in (None, [], {}, ()):
        return "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        mark = "; " if any(isinstance(item, str | list) for item in value) else ", "
        more = f"{mark}... ({len(value)})" if len(value) > NUMBERS_SHOWN else ""
        return mark.join(_cell(item).replace(mark, " and ") for item in value[:NUMBERS_SHOWN]) + more
    if isinstance(value, float):
        return f"{value:.6g}"
    return cell_text(value)
