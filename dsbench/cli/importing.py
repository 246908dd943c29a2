"""`dsbench import`: results of other programs, in one set of keys, and as a table that `dsbench judge` takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from dsbench.cli.params import FILE
from dsbench.cli.table import cell_text, print_json, print_note, print_table
from dsbench.errors import InputError

ROWS_SHOWN = 12
FOR_EYES = ("flags", "rows", "tool", "why")


@click.command("import", short_help="Read results of other benchmark programs.")
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@click.option("--json", "as_json", is_flag=True, help="Print everything that was read as JSON.")
@click.option("--table", type=FILE, metavar="FILE", help="Write one figure as a table of readings, one file a boot.")
@click.option("--arms", metavar="NAME[:N],...", help="The arm of each FILE in order, the baseline first.")
@click.option("--metric", metavar="KEY", help="Figure of the table. [default: the first that every file has]")
@click.option("--at", "picks", metavar="KEY=VALUE", multiple=True, help="Row of the table's figure; repeat for more.")
@click.option("--margin", metavar="X|X%", help="Smallest change that matters. [default: 2 %; 1 point of a share]")
@click.option("--declare", metavar="KEY", multiple=True, help="Setting in which the arms are meant to differ; repeat.")
@click.option("--blocks", is_flag=True, help="The n-th files of the arms ran side by side: compare them in pairs.")
def import_results(
    files: tuple[Path, ...],
    as_json: bool,
    table: Path | None,
    arms: str | None,
    metric: str | None,
    picks: tuple[str, ...],
    margin: str | None,
    declare: tuple[str, ...],
    blocks: bool,
) -> int:
    """Read results of other benchmark programs.

    \b
    dsbench import result.json --json
    dsbench import a1.json a2.json b1.json b2.json --arms base:2,new:2 --table t.json
    dsbench judge --from-table t.json

    Reads vllm bench serve, sglang bench_serving, GuideLLM, llama-bench, llama-benchy, lm-eval, SpecBundle, tool-call
    scenarios and replies to long prompts. A file is recognised by its keys, never by its name, and is called unknown
    if no program is known for it. Units stand in the keys; what a file does not hold is null, never a guess.
    """
    from dsbench.parse.foreign.recognise import import_result

    if (table is None) != (arms is None):
        raise click.UsageError("--table and --arms go together: a table needs the arm of each file")
    if table is None and (metric or picks or margin or declare or blocks):
        raise click.UsageError("--metric, --at, --margin, --declare and --blocks are options of a --table")
    found = [import_result(path) for path in files]
    if table is not None and arms is not None:
        options = {"metric": metric, "at": _pairs(picks), "margin": margin, "declared": declare, "blocks": blocks}
        _write_table(table, files, found, arms, options)
    if as_json:
        print_json(
            found[0] if len(found) == 1 else [{"file": str(p), **of} for p, of in zip(files, found, strict=True)]
        )
    elif table is None:
        for path, content in zip(files, found, strict=True):
            _show(path, content)
    return 0


def _pairs(picks: Sequence[str]) -> dict[str, str]:
    pairs = [pick.partition("=") for pick in picks]
    for pick, (name, equals, value) in zip(picks, pairs, strict=True):
        if not (name and equals and value):
            raise InputError(f"--at: '{pick}' should be KEY=VALUE, as in concurrency=4")
    return {name: value for name, _, value in pairs}


def _write_table(
    path: Path,
    files: Sequence[Path],
    found: Sequence[dict[str, Any]],
    arms: str,
    options: Mapping[str, Any],
) -> None:
    from dsbench.imported_table import Imported, arm_names, build_table
    from dsbench.store import write_text

    if any(path.resolve() == file.resolve() for file in files):
        raise InputError(f"--table: {path} is one of the files to read; name another")
    imported = [Imported(file, content) for file, content in zip(files, found, strict=True)]
    names = arm_names(arms, len(files))
    content = build_table(imported, names, **options)
    try:
        write_text(path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    for file in imported:
        for flag in _flags(file.content):
            click.echo(f"{file.path}: {flag}", err=True)
    counts = ", ".join(f"{names.count(name)} of {name}" for name in dict.fromkeys(names))
    margin_told = f"margin {content['practical_margin']:g} {content['unit']}"
    click.echo(f"{path}: {content['metric']}, files: {counts}, {margin_told}", err=True)


def _flags(content: Mapping[str, Any]) -> list[str]:
    by_row = [flag for row in content.get("rows", ()) for flag in row.get("flags", ())]
    return [*content.get("flags", ()), *by_row]


def _show(path: Path, content: Mapping[str, Any]) -> None:
    """One row a figure, one column a result, without figures that no result has; then what looks wrong."""
    rows = content.get("rows")
    if content["tool"] == "unknown":
        print_note(f"{path}: unknown: {content['why']}", 2)
        return
    results = rows if rows else [content]
    shown = results[:ROWS_SHOWN]
    keys = dict.fromkeys(
        key for row in shown for key, value in row.items() if key not in FOR_EYES and value is not None
    )
    left = f", the first {ROWS_SHOWN} of {len(results)} results" if len(results) > ROWS_SHOWN else ""
    print_table(f"{path}: {content['tool']}{left}", ("figure", *_names(len(shown))), [
        (key, *(_cell(row.get(key)) for row in shown)) for key in keys
    ])  # fmt: skip
    if rows:
        for key, value in content.items():
            if key not in FOR_EYES and value is not None:
                print_note(f"{key}: {_cell(value)}", 2)
    absent = dict.fromkeys(key for row in results for key in row if all(one.get(key) is None for one in results))
    if absent:
        print_note(f"not in the file: {', '.join(absent)}", 2)
    for flag in _flags(content):
        print_note(f"look at: {flag}", 2)


def _names(n: int) -> list[str]:
    return ["value"] if n == 1 else [str(number) for number in range(1, n + 1)]


def _cell(value: Any) -> str:
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_cell(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else cell_text(value)
