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


ROWS_SHOWN = 20


@score.command(short_help="Answers of GSM8K, beside lm-eval's filters.")
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print totals and every row as JSON.")
def gsm8k(file: Path, as_json: bool) -> int:
    """Answers of GSM8K, beside lm-eval's filters.

    \b
    dsbench score gsm8k outputs.jsonl
    dsbench score gsm8k samples_gsm8k.jsonl --json

    FILE has one object a line: output and the gold answer (gold, question_gold, or an official answer with ####),
    and where known id and finish_reason; or it is what lm-eval logs with --log_samples. Answers are compared as
    numbers. A reply that never ends its thinking has no answer, whatever number stands last in it.
    """
    from dataclasses import asdict

    from dsbench.score.gsm8k import totals
    from dsbench.score.gsm8k_rows import score_file

    rows = score_file(file)
    found = totals(rows)
    if as_json:
        print_json({**found, "rows": [asdict(row) for row in rows]})
        return 0
    wrong = [row for row in rows if not row.correct]
    more = f", the first {ROWS_SHOWN}" if len(wrong) > ROWS_SHOWN else ""
    if wrong:
        print_table(
            f"{file}: {len(wrong)} not right{more}",
            ("id", "gold", "read", "from", "truncated", "lm-eval strict", "flexible"),
            [
                (row.id, row.gold, row.extracted or "-", row.source, _yes(row.truncated), row.lm_eval_strict,
                 row.lm_eval_flexible)
                for row in wrong[:ROWS_SHOWN]
            ],
        )  # fmt: skip
    print_table(str(file), ("of", "n", "share"), [
        (name, found[key], f"{found[key] / found['n']:.2%}")
        for name, key in (("rows", "n"), ("right", "correct"), ("without an answer", "no_answer"),
                          ("right by lm-eval's strict-match", "lm_eval_strict_correct"),
                          ("right by lm-eval's flexible-extract", "lm_eval_flexible_correct"))
    ])  # fmt: skip
    share = found["truncated_share"]
    click.echo("truncated: " + ("unknown, no row has a finish_reason" if share is None else f"{share:.2%}"))
    for filter_name in ("strict", "flexible"):
        if ids := found[f"{filter_name}_false_positive_ids"]:
            click.echo(f"lm-eval's {filter_name} filter calls right what is not: {', '.join(ids[:ROWS_SHOWN])}")
    return 0


@score.command(short_help="Points of conversations with tools.")
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print totals and every row as JSON.")
def toolcall(file: Path, as_json: bool) -> int:
    """Points of conversations with tools.

    \b
    dsbench score toolcall results/ID/boots/BOOT/toolcall.jsonl

    FILE has one transcript a line, as the toolcall probe keeps them in each boot's folder: scenario, mode (off, high
    or max), round, and turns of content, reasoning, calls (name, arguments as JSON text) and finish_reason. A
    conversation is worth 2, 1 or 0 points; the score is the mean of the category percentages.
    """
    from dsbench.score.tool_transcript import load_transcripts
    from dsbench.score.toolcall import score_rows

    found = score_rows(load_transcripts(file))
    if as_json:
        print_json(found)
        return 0
    print_table(
        str(file),
        ("conversation", "category", "points", "why"),
        [(row["item"], row["category"], row["points"], row["reason"]) for row in found["rows"]],
    )
    print_table(
        "by category",
        ("category", "points"),
        [(category, f"{percent:.1f} %") for category, percent in found["category_percent"].items()],
    )
    click.echo(
        f"score {found['score_percent']:.1f} %: {found['points']} of {found['max_points']} points, full points in "
        f"{found['full']} of {found['of']} conversations; calls swallowed by the reasoning in {found['swallowed']}"
    )
    return 0
