"""`dsbench show`: a stored experiment's table and verdict, as they were judged."""

from __future__ import annotations

from pathlib import Path

import click

from dsbench.errors import InputError

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(short_help="Show a stored experiment's table and verdict.")
@click.argument("result")
@click.option("-o", "--out", type=FOLDER, default=Path("results"), show_default=True, help="Folder of results.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def show(result: str, out: Path, as_json: bool) -> int:
    """Show a stored experiment's table and verdict.

    RESULT is its folder, its id, or a part of the id that names only one. The exit code is the verdict's.
    """
    from dsbench.report.table import print_report
    from dsbench.store import load_plan, load_verdict, resolve

    folder = resolve(result, out)
    verdict = load_verdict(folder)
    if verdict is None:
        raise InputError(f"{folder} has no verdict yet: dsbench ab --resume {folder}, or dsbench judge {folder}")
    if as_json:
        click.echo(verdict.model_dump_json(indent=2))
    else:
        print_report(load_plan(folder), verdict)
    return verdict.exit_code
