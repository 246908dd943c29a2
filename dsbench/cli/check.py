"""`dsbench check`: one named check of a JSON file against a defect that was met in public."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Check readings for a known defect, or list the checks.")
@click.argument("name", required=False)
@click.argument("file", required=False, type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON, lists in the order of the input's.")
def check(name: str | None, file: Path | None, as_json: bool) -> int:
    """Check readings for a known defect, or list the checks.

    FILE is JSON; what each check reads is in docs/tables.md. The exit code is 0 if nothing is wrong, 1 if
    something is, and 2 if there was nothing to check.
    """
    from dsbench.checks import CHECKS, function
    from dsbench.checks.answer import Answer
    from dsbench.cli.table import print_json, print_table
    from dsbench.errors import InputError
    from dsbench.table_input import load_json

    if name is None:
        if as_json:
            print_json({key: what for key, (_, what) in CHECKS.items()})
        else:
            print_table("checks", ["name", "finds"], [[key, what] for key, (_, what) in CHECKS.items()])
        return 0
    if name not in CHECKS:
        near = difflib.get_close_matches(name, CHECKS, n=2, cutoff=0.4)
        raise InputError(
            f"unknown check '{name}': {f'did you mean {near[0]}?' if near else 'dsbench check lists them'}"
        )
    if file is None:
        raise InputError(f"check {name} needs a FILE: dsbench check {name} readings.json")
    content = load_json(file)
    if not isinstance(content, dict):
        raise InputError(f"{file}: should be an object with keys")
    try:
        answer: Answer = function(name)(content)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    except OverflowError:
        raise InputError(f"{file}: a figure is too large to compute with") from None
    if as_json:
        print_json({**answer.figures, "found": answer.found})
    else:
        for key, value in answer.figures.items():
            click.echo(f"{key}: {value}")
        for line in answer.found or ["nothing found"]:
            click.echo(line)
    return 1 if answer.found else 0
