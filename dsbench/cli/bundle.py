"""`dsbench bundle`: a stored result as one redacted archive for a pull request."""

from __future__ import annotations

from pathlib import Path

import click

from dsbench.cli.params import FILE, FOLDER
from dsbench.errors import InputError


@click.command(short_help="Pack a stored result, redacted, for a pull request.")
@click.argument("result")
@click.option("-o", "--output", type=FILE, metavar="FILE", help="The archive. [default: ID.tar.gz]")
@click.option("--results", type=FOLDER, default=Path("results"), show_default=True, help="Folder of results.")
@click.option("--host", "hosts", metavar="NAME", multiple=True, help="A further host name to take out.")
def bundle(result: str, output: Path | None, results: Path, hosts: tuple[str, ...]) -> int:
    """Pack a stored result, redacted, for a pull request.

    \b
    dsbench bundle results/ID -o evidence.tar.gz

    In it are the plan, the records and the verdicts, what the boots read back, and their logs, shortened. Keys,
    local paths, host and user names are taken out, each the same wherever it stood, so that the bundle is judged as
    the result is. The same result gives the same bytes. bundle.json in it says what was left out.
    """
    from dsbench.bundle import bundle as pack
    from dsbench.redact import Redaction, hosts_of
    from dsbench.store import Result, resolve, write_bytes

    stored = Result(resolve(result, results))
    for notice in stored.notices:
        click.echo(notice, err=True)
    made = pack(stored, Redaction([*hosts_of(stored.plan), *hosts]))
    path = output or Path(f"{stored.plan.id}.tar.gz")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, made.content)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    click.echo(f"{path}: {len(made.files)} files, {len(made.content):,} bytes")
    redacted = ", ".join(f"{kind} in {count} texts" for kind, count in made.redacted.items())
    click.echo(f"taken out: {redacted or 'nothing'}")
    if made.shortened:
        click.echo(f"logs shortened: {len(made.shortened)}")
    if made.left_out:
        click.echo(f"left out: {', '.join(made.left_out[:4])}{' ...' if len(made.left_out) > 4 else ''}")
    click.echo("look through it before you publish it: a name that nobody told is not taken out")
    return 0
