"""A judged table of readings in the terminal: the boots, what was compared, and the answer."""

from __future__ import annotations

import click

from dsbench.cli.table import print_table
from dsbench.table_input import Table
from dsbench.table_judge import TableVerdict


def print_table_verdict(table: Table, verdict: TableVerdict) -> None:
    """One row an arm, build or step; then one sentence a comparison, or the reasons why there is none."""
    title = f"{table.metric} in {table.unit}, {'more' if table.higher_is_better else 'less'} is better"
    if table.arms is not None:
        counted = verdict.figures["n_boots"]
        left_out = verdict.figures.get("boots_excluded", {})
        rows = [
            [name, counted[name], ", ".join(_reading(value) for value in arm.readings), len(left_out.get(name, ()))]
            for name, arm in table.arms.items()
        ]
        print_table(title, ["arm", "n", f"by {table.replicate}", "left out"], rows)
    else:
        read = [(f"build {boot.build}", boot.available_kv_gib, boot.kv_tokens) for boot in table.boots or ()]
        read += [(step.step, step.available_kv_gib, step.kv_tokens) for step in table.steps or ()]
        steps = [None, *verdict.figures["deltas_gib"]]
        words = ["", *(verdict.figures["verdict_each_step"] if not verdict.void else ["void"] * (len(read) - 1))]
        rows = [
            [name, f"{gib:.2f}", "-" if tokens is None else tokens, "-" if step is None else f"{step:+.2f}", word]
            for (name, gib, tokens), step, word in zip(read, steps, words, strict=True)
        ]
        print_table(title, ["step", "GiB", "tokens", "change", "verdict"], rows)
    for line in verdict.lines:
        click.echo(line)


def _reading(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"
