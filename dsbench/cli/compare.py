"""`dsbench compare`: a stored result beside figures from elsewhere, or beside another one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsbench.cli.params import out_option
from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.arm_figures import Measured
    from dsbench.beside_published import Beside
    from dsbench.records import Plan

MODEL = "model-config.json"
"""The served model's config.json, where a result keeps it."""


@click.command(short_help="Put a stored result beside another, or beside published figures.")
@click.argument("result")
@click.argument("other", required=False)
@click.option("--published", "with_published", is_flag=True, help="Beside the source document's figures.")
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(result: str, other: str | None, with_published: bool, out: Path, as_json: bool) -> int:
    """Put a stored result beside another, or beside published figures.

    \b
    dsbench compare results/BEFORE results/AFTER
    dsbench compare results/h200/vllm-kv --published

    Two results: conditions that differ, every figure of both, and, for arms of the same machine and build, what
    changed. Clock readings at different times are shown and never judged.

    With --published nothing is pooled and nothing is judged: the figures come from other cards, another depth of the
    model and other flags, and each difference is named. What is published and was not measured is listed, too.
    """
    from dsbench.beside_published import beside_published
    from dsbench.cli.table import print_json
    from dsbench.store import load_plan, load_records, resolve

    if other is not None:
        from dsbench.cli.compare_two import compare_two

        if with_published:
            raise InputError(f"compare {result} {other} --published: name one result beside --published")
        return compare_two(result, other, out, as_json)
    if not with_published:
        raise InputError(
            f"compare {result} with what? name a second result, or add --published for the source document's figures"
        )
    folder = resolve(result, out)
    plan = load_plan(folder)
    records, notices = load_records(folder)
    for notice in notices:
        click.echo(notice, err=True)
    beside = beside_published(plan, records, _model(folder / MODEL))
    if as_json:
        print_json({"result": plan.id, **beside.to_json()})
    else:
        _print(plan, beside)
    return 0


def _model(path: Path) -> dict[str, Any]:
    from dsbench.engines.boot_json import read_object

    try:
        return read_object(path)
    except OSError:
        return {}
    except ValueError as error:
        raise InputError(f"{path} should be the config.json of the served model: {error}") from None


def _print(plan: Plan, beside: Beside) -> None:
    from dsbench.cli.table import mib, print_note, print_table

    click.echo(f"{plan.id}\n")
    arms = [arm.name for arm in plan.arms]
    if beside.steps:
        print_table(
            "Bytes of KV memory that the toggles free, against the baseline of each",
            ("arm", "toggles", "ours", "published, whole blocks", "without a published row"),
            [
                (
                    step.arm,
                    ", ".join(step.toggles),
                    "unknown" if step.ours_bytes is None else mib(int(step.ours_bytes)),
                    mib(step.published_bytes),
                    ", ".join(step.without_row) or "-",
                )
                for step in beside.steps
            ],
        )
    if beside.rows:
        print_table(
            "Figures, never pooled; n: boots",
            ("metric", *(f"ours: {name}" for name in arms), "published", "unit", "where", "how it was published"),
            [
                (
                    row.figure.metric,
                    *(_ours(row.ours.get(name)) for name in arms),
                    _number(row.figure.value),
                    row.figure.unit,
                    f"{row.figure.rig.name}, {row.figure.section}",
                    row.figure.note,
                )
                for row in beside.rows
            ],
        )
    _print_conditions(beside)
    if beside.not_measured:
        print_note(f"published and not measured here: {', '.join(beside.not_measured)}", 2)


def _print_conditions(beside: Beside) -> None:
    from dsbench.cli.table import print_table

    names: Sequence[str] = list(next(iter(beside.conditions.values()), {}))
    if not names:
        click.echo("no condition differs")
        return
    print_table(
        "Conditions that differ, or that somebody does not know",
        ("condition", *names),
        [(key, *values.values()) for key, values in beside.conditions.items()],
    )


def _ours(measured: Measured | None) -> str:
    if measured is None:
        return "-"
    return f"{_number(measured.value)} (n={measured.boots})"


def _number(value: float) -> str:
    if value > 1 and float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.4g}" if value < 100 else f"{value:,.1f}"
