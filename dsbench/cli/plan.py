"""`dsbench plan`: what an experiment would cost and could show, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dsbench.cli.experiment import Asked
from dsbench.cli.params import BLOCKS, arm_options, build_options, out_option, reuse_option, suite_options


@click.command(short_help="Say what an experiment would cost and could show, before it starts.")
@click.option("--budget", metavar="TIME", help="Time to spend: 2h, 90m, 1h30m.")
@click.option("--measure", is_flag=True, help="Time one boot now if no stored result of this machine has its time.")
@arm_options
@suite_options
@click.option("--blocks", type=BLOCKS, metavar="N", help="Blocks, in place of the suite's.")
@build_options
@out_option
@reuse_option
@click.option("--json", "as_json", is_flag=True, help="Print the plan's figures as JSON.")
def plan(
    budget: str | None,
    measure: bool,
    blocks: int | None,
    out: Path,
    reuse_baseline: str | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """Say what an experiment would cost and could show, before it starts.

    \b
    dsbench plan --toggle mhc_input_reuse --budget 2h
    dsbench plan --toggle mhc_residual_reuse --toggle mhc_input_reuse --matrix full --measure

    The time of a boot comes from stored results of this machine, build and suite; the smallest changes that
    could be seen come from the floors that `dsbench aa` stored.
    """
    from dsbench.budget import Bought, blocks_within, bought, duration, measured_time, stored_time
    from dsbench.cli.table import print_json, print_note, print_table
    from dsbench.fingerprint import fingerprint
    from dsbench.floors import snapshot
    from dsbench.report.table import declared_lines
    from dsbench.reuse import with_baseline_of
    from dsbench.store import resolve

    seconds = duration(budget) if budget else None
    made = snapshot(Asked(**asked).plan(blocks=blocks), out)
    if reuse_baseline is not None:
        made = with_baseline_of(made, resolve(reuse_baseline, out))
    time = stored_time(made, fingerprint(made.baseline.python), out) or (measured_time(made) if measure else None)
    rows = [bought(made, made.blocks, time)]
    within = blocks_within(made, time.seconds, seconds) if time and seconds is not None else None
    if within:
        rows += [bought(made, within, time)] if within != made.blocks else []
    if as_json:
        print_json(
            {
                "arms": [arm.name for arm in made.arms],
                "boot_seconds": time.seconds if time else None,
                "blocks_within_budget": within,
                "options": [vars(row) for row in rows],
                "notes": made.notes,
            }
        )
        return 0
    for line in (*declared_lines(made), *(f"note: {note}" for note in made.notes)):
        print_note(line, 2)
    if time:
        print_note(f"boot time: {time.seconds:.1f} s, median of {time.boots} ({time.source})")
    else:
        print_note("boot time: no stored result of this machine, build and suite has one; --measure times one boot")

    def cells(row: Bought) -> list[object]:
        cost = "unknown" if row.seconds is None else _clock(row.seconds)
        return [row.blocks, row.boots, cost, *(_percent(change) for change in row.visible.values())]

    columns = ["blocks", "boots", "time", *rows[0].visible]
    seen = ", smallest changes seen with 80 % power" if rows[0].visible else ""
    print_table(f"{len(made.arms)} arms{seen}", columns, [cells(row) for row in rows])
    if within is not None and within < made.blocks:
        click.echo(f"the budget of {budget} holds {within} blocks, not the {made.blocks} planned")
    if not rows[0].visible and any(m.kind == "sample" for m in made.metrics):
        print_note("what could be seen is unknown without floors; exact metrics show any change from 2 blocks on")
    return 0


def _clock(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def _percent(change: float | None) -> str:
    return "none: too few blocks" if change is None else f"{change:.1%}".replace("%", " %")
