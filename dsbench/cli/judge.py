"""`dsbench judge`: judge a stored experiment again, from its plan and records alone, or a table of readings."""

from __future__ import annotations

from pathlib import Path

import click

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(short_help="Judge a stored experiment again from its records.")
@click.argument("result", required=False)
@click.option("--from-table", "table", type=FILE, help="Judge readings by boot and arm from this JSON file instead.")
@click.option("-o", "--out", type=FOLDER, default=Path("results"), show_default=True, help="Folder of results.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def judge(result: str | None, table: Path | None, out: Path, as_json: bool) -> int:
    """Judge a stored experiment again from its records.

    Nothing is run and nothing stored is changed, except that a missing or unreadable verdict is stored anew.
    If the answer differs from the stored verdict, that is said on stderr. The exit code is the new verdict's.

    With --from-table nothing is stored at all: readings of any engine, taken by hand or by another program, are
    judged by the same rules.
    """
    if (result is None) == (table is None):
        raise click.UsageError("name either one RESULT or one --from-table FILE")
    return _judge_result(result, out, as_json) if result is not None else _judge_table(table, as_json)


def _judge_table(path: Path | None, as_json: bool) -> int:
    from dsbench.cli.table import print_json
    from dsbench.errors import InputError
    from dsbench.records import EXIT_CODES
    from dsbench.report.from_table import print_table_verdict
    from dsbench.table_input import load_table
    from dsbench.table_judge import judge_table

    assert path is not None
    table = load_table(path)
    try:
        verdict = judge_table(table)
    except OverflowError:
        raise InputError(f"{path}: a figure is too large to compute with") from None
    if as_json:
        print_json(verdict.to_json())
    else:
        print_table_verdict(table, verdict)
    return EXIT_CODES[verdict.word]


def _judge_result(result: str, out: Path, as_json: bool) -> int:
    from dsbench.errors import InputError
    from dsbench.judge import judge as judge_records
    from dsbench.record_lines import without_collection
    from dsbench.report.table import print_report
    from dsbench.store import load_plan, load_records, load_verdict, resolve, save_verdict

    folder = resolve(result, out)
    plan = load_plan(folder)
    with without_collection():
        records, notices = load_records(folder)
        verdict = judge_records(plan, records)
    for notice in notices:
        click.echo(notice, err=True)
    try:
        stored = load_verdict(folder)
    except InputError as error:
        click.echo(f"{error}: replaced", err=True)
        stored = None
    if as_json:
        click.echo(verdict.model_dump_json(indent=2))
    else:
        print_report(plan, verdict)
    if stored is None:
        save_verdict(folder, verdict)
    elif stored != verdict:
        if stored.word != verdict.word:
            what = f"stored {stored.word}, now {verdict.word}"
        elif stored.model_copy(update={"sentence": verdict.sentence}) == verdict:
            what = "only the sentence is worded anew"
        else:
            what = "rows changed"
        click.echo(f"differs from the stored verdict: {what}", err=True)
    elif not as_json:
        click.echo("same as the stored verdict")
    return verdict.exit_code
