"""`dsbench history`: one metric over stored results, with change points."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsbench.cli.params import out_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dsbench.history import History

SHOWN = 3
"""Changed conditions that one line names."""


@click.command(short_help="Show a metric over stored results, with change points.")
@click.argument("metric")
@click.option("--arm", metavar="NAME", help="Arm of the reference to follow. [default: its baseline]")
@click.option(
    "--like", metavar="RESULT", help="The reference, by a part of its id. [default: the newest with the metric]"
)
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def history(metric: str, arm: str | None, like: str | None, out: Path, as_json: bool) -> int:
    """Show a metric over stored results, with change points.

    \b
    dsbench history kv.available_bytes
    dsbench history decode.tps.c1 --out main-results --arm mhc_input_reuse

    Results count that ran on the reference's machine, with its build apart from versions, its toggles and settings of
    the probe, whatever their seed; the others are listed with the reason. Void and damaged results count nowhere.
    """
    from dsbench.cli.table import print_json
    from dsbench.history import history as over_time
    from dsbench.metrics import metric as known

    known(metric)
    found = over_time(metric, out, arm=arm, like=like)
    if as_json:
        content = asdict(found)
        for shown, change in zip(content["change_points"], found.change_points, strict=True):
            shown["relative"] = change.relative
        print_json(content)
    else:
        _print(found)
    return 0


def _print(found: History) -> None:
    from dsbench.cli.table import print_note, print_table
    from dsbench.report.table import number

    places = {change.place for change in found.change_points}
    better = "asked for as it is" if found.better == "same" else f"better {found.better}"
    print_table(
        f"{found.metric}, {found.unit}, {better}: {found.arm}, as in {found.reference}",
        ("result", "when", found.unit, "boots", "from", "to", "", "changed since the one before"),
        [
            (
                point.id,
                point.created[:16],
                number(point.value),
                point.boots,
                number(point.low),
                number(point.high),
                "<- change" if place in places else "",
                _changed(point.changed),
            )
            for place, point in enumerate(found.points)
        ],
    )
    for change in found.change_points:
        relative = "" if change.relative is None else f" ({change.relative:+.2%})".replace("%", " %")
        print_note(
            f"change point at {change.id}: {number(change.before)} -> {number(change.after)} {found.unit}{relative}; "
            f"{_with(change.changed)}"
        )
    if not found.change_points:
        click.echo("no change point")
    for note in found.notes:
        print_note(f"  note: {note}", 2)
    for reason, ids in _by_reason(found.left_out).items():
        print_note(f"  left out: {', '.join(ids)}: {reason}", 2)


def _by_reason(left_out: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        found.setdefault(reason, []).append(name)
    return found


def _changed(changed: Mapping[str, Sequence[Any]]) -> str:
    told = [f"{key} {before} -> {now}" for key, (before, now) in changed.items()]
    return ", ".join(told[:SHOWN]) + (f" and {len(told) - SHOWN} more" if len(told) > SHOWN else "")


def _with(changed: Mapping[str, Sequence[Any]]) -> str:
    return f"with it: {_changed(changed)}" if changed else "no condition changed with it"
