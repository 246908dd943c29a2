"""`dsbench audit`: the review's questions about this tree, answered by running it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dsbench.audit import Answer

EXIT_FINDINGS = 1
EXIT_NOT_RUN = 4


@click.command(short_help="Check what the toggles rest on, by running the code.")
@click.option("--toggle", metavar="NAME", help="Only the checks that concern this toggle.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def audit(toggle: str | None, as_json: bool) -> int:
    """Check what the toggles rest on, by running the code.

    Buffers are poisoned where they die, operations are watched for what they write, rules are held against their
    tables. Each check says clean, findings or not-run, with the figures it rests on; a check that could not run is not
    clean. Needs no GPU; nothing is written.

    Exit code 0 if all is clean, 1 with findings, 4 where a check has not run.
    """
    from dsbench.audit import examine
    from dsbench.cli.table import print_json
    from impl.audit.checks import concerning

    names = [check.name for check in concerning(toggle)]
    answers = list(examine(names, toggle, on_start=_progress(names)))
    status = _worst(answers)
    if as_json:
        checks = [answer.model_dump(mode="json") for answer in answers]
        print_json({"status": status, "toggle": toggle, "checks": checks})
    else:
        _print(answers)
        click.echo(status)
    return {"clean": 0, "findings": EXIT_FINDINGS}.get(status, EXIT_NOT_RUN)


def _worst(answers: list[Answer]) -> str:
    found = {answer.status for answer in answers}
    return next((status for status in ("not-run", "findings", "clean") if status in found), "not-run")


def _progress(names: list[str]) -> Callable[[str], None]:
    return lambda name: click.echo(f"{names.index(name) + 1}/{len(names)} {name} ...", err=True)


def _print(answers: list[Answer]) -> None:
    from dsbench.cli.table import print_table

    print_table(
        "Audit of this tree",
        ("check", "result", "seconds", "question"),
        [(a.check, a.status, f"{a.seconds:.1f}", a.question) for a in answers],
    )
    for answer in answers:
        click.echo(answer.check)
        if answer.reason:
            click.echo(f"  not run: {answer.reason}")
        for finding in answer.findings:
            click.echo(f"  {finding.code}: {finding.what}\n    at {finding.where}\n    -> {finding.mend}")
        for name, figure in answer.evidence.items():
            click.echo(f"    {name}: {figure:,}" if isinstance(figure, int) else f"    {name}: {figure}")
        click.echo()
