"""The two-result form of `dsbench compare`: figures, conditions and comparable arms of two stored results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.arm_figures import Measured
    from dsbench.records import Verdict
    from dsbench.store import Result
    from dsbench.two_results import TwoResults


def compare_two(first: str, second: str, out: Path, as_json: bool) -> int:
    """Print two results side by side. InputError if they are one."""
    from dsbench.cli.table import print_json
    from dsbench.store import Result, resolve
    from dsbench.two_results import compare_results

    results = [Result(resolve(name, out)) for name in (first, second)]
    for result in results:
        for notice in result.notices:
            click.echo(notice, err=True)
    if results[0].folder.resolve() == results[1].folder.resolve():
        raise InputError(f"compare {first} {second}: both are {results[0].folder}; name two results")
    found = compare_results(*results)
    if as_json:
        print_json({"first": results[0].plan.id, "second": results[1].plan.id, **_json(found)})
    else:
        _print(results, found)
    return 0


def _json(found: TwoResults) -> dict[str, Any]:
    content = asdict(found)
    for pair, shown in zip(found.pairs, content["pairs"], strict=True):
        shown["rows"] = [row.model_dump(mode="json") for row in pair.rows]
    return content


def _print(results: Sequence[Result], found: TwoResults) -> None:
    from dsbench.cli.table import print_note, print_table

    for letter, result in zip("AB", results, strict=True):
        plan = result.plan
        print_note(f"{letter}: {plan.id}, suite {plan.suite}, {plan.engine}, {plan.created[:16]}", 2)
    click.echo()
    columns = [(letter, arm.name) for letter, result in zip("AB", results, strict=True) for arm in result.plan.arms]
    print_table(
        "Figures, never pooled; n: boots",
        ("metric", *(f"{letter}: {arm}" for letter, arm in columns), "unit"),
        [
            (
                entry.metric,
                *(_figure((entry.first if letter == "A" else entry.second).get(arm)) for letter, arm in columns),
                entry.unit,
            )
            for entry in found.figures
        ],
    )
    if found.conditions:
        print_table(
            "Conditions of the baselines that differ", ("condition", "A", "B"),
            [(key, *values) for key, values in found.conditions.items()],
        )  # fmt: skip
    else:
        click.echo("no condition of the baselines differs\n")
    notes: dict[str, int] = {}
    for pair in found.pairs:
        _print_pair(pair.first, pair.second, pair.apart, pair.rows, notes)
        for metric, why in pair.left_out.items():
            print_note(f"  {metric}: not compared, {why}", 2)
    for note, mark in notes.items():
        print_note(f"  [{mark}] {note}", 2)
    if found.unpaired:
        print_note(f"in one of them only: {'; '.join(found.unpaired)}", 2)


def _print_pair(first: str, second: str, apart: Sequence[str], rows: Sequence[Verdict], notes: dict[str, int]) -> None:
    from dsbench.cli.table import print_note, print_table
    from dsbench.report.table import change, difference, how, verdict_words

    title = f"A {first} -> B {second}"
    if apart:
        print_note(f"{title}: not comparable: {'; '.join(apart)}", 2)
        click.echo()
        return

    def marks(row: Verdict) -> str:
        return "".join(f"[{notes.setdefault(note, len(notes) + 1)}]" for note in row.notes)

    print_table(
        f"{title}: the same machine and build, versions apart",
        ("metric", "A -> B", "difference", "judged", "verdict", ""),
        [
            (
                row.metric if row.rank is None else f"{row.metric} rank {row.rank}",
                change(row),
                difference(row),
                how(row),
                verdict_words(row),
                marks(row),
            )
            for row in rows
        ],
    )


def _figure(measured: Measured | None) -> str:
    from dsbench.report.table import number

    return "-" if measured is None else f"{number(measured.value)} (n={measured.boots})"
