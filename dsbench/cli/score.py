"""`dsbench score`: score outputs that exist already, with the scorers of the probes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dsbench.cli.params import FILE
from dsbench.cli.table import print_json, print_table


@click.group(short_help="Score outputs that exist already.", no_args_is_help=False)
def score() -> None:
    """Score outputs that exist already.

    The scorers are those of the probes, and each command scores every row of one file. Scores are no verdict: the
    exit code is 0 when the file was scored, 2 when it could not be read.
    """


@score.command(short_help="Recall and coherence of replies to long prompts.")
@click.argument("file", type=FILE)
@click.option(
    "--sentinel",
    "sentinels",
    metavar="TEXT",
    multiple=True,
    help="A needle that every reply should name; repeat. [default: the source document's three]",
)
@click.option("--json", "as_json", is_flag=True, help="Print every row as JSON.")
def coherence(file: Path, sentinels: tuple[str, ...], as_json: bool) -> int:
    """Recall and coherence of replies to long prompts.

    \b
    dsbench score coherence replies.jsonl
    dsbench score coherence replies.jsonl --sentinel alpha-cobalt-17 --sentinel beta-quartz-29 --json

    FILE has one object a line: id, output (null without a reply), error, and where known finish_reason and
    sentinels of its own. A request without a reply is neither a recall miss nor incoherent.
    """
    from dsbench.score.coherence import SOURCE_SENTINELS, load_rows, score_rows

    found = score_rows(load_rows(file), sentinels or SOURCE_SENTINELS)
    if as_json:
        print_json(found)
    else:
        _show_coherence(file, found)
    return 0


def _show_coherence(file: Path, found: dict[str, Any]) -> None:
    rows = [(str(row["id"]), row["class"], _why(row), _yes(row.get("truncated"))) for row in found["rows"]]
    print_table(str(file), ("id", "class", "why", "truncated"), rows)
    click.echo(
        f"passed {found['passed']} of {found['of']}; recall misses {found['recall_misses']}, incoherent "
        f"{found['incoherent']}, errors {found['errors']}, truncated {found['truncated']}"
    )


def _why(row: dict[str, Any]) -> str:
    missing = f"missing {', '.join(row['missing'])}" if row.get("missing") else ""
    return "; ".join(part for part in (missing, row.get("reason", ""), row.get("error", "")) if part) or "-"


def _yes(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"
