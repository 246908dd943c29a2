"""`dsbench selftest --faults` and `--kills`: runs that are disturbed from outside, and what came of them."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.selftest.kills import KilledRun


def disturbed(only: Sequence[str], kills: int | None, seed: int, out: Path | None, without: str, as_json: bool) -> int:
    """Run the mishaps (those of `only`), or `kills` kills; the exit code of the command."""
    from dsbench.selftest.broken_harness import DETECTORS, NONE

    if without not in (NONE, *DETECTORS):
        raise InputError(f"--without '{without}': no such detector; there are {', '.join(DETECTORS)}")
    if out is not None and out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out} holds files already: give a new folder")
    with ExitStack() as stack:
        work = out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsbench-")))
        return _mishaps(only, work, without, as_json) if kills is None else _kills(kills, work, seed, as_json)


def _mishaps(only: Sequence[str], work: Path, without: str, as_json: bool) -> int:
    from dsbench.cli.table import print_table
    from dsbench.selftest.drill import Met, drill
    from dsbench.selftest.mishaps import MISHAPS

    names = [mishap.name for mishap in MISHAPS]
    for name in only:
        if name not in names:
            raise InputError(f"--only '{name}': no such fault; there are {', '.join(names)}")

    def tell(met: Met) -> None:
        click.echo(f"{met.planted}: {met.outcome}, {met.seconds:.0f} s", err=True)

    start = time.monotonic()
    rows = drill([mishap for mishap in MISHAPS if not only or mishap.name in only], work, without, tell)
    counts = {word: sum(row.outcome == word for row in rows) for word in ("caught", "missed", "skipped")}
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        told = ", ".join(f"{number} {word}" for word, number in counts.items() if number or word != "skipped")
        print_table(
            f"{len(rows)} faults: {told}; {(time.monotonic() - start) / 60:.1f} minutes",
            ["planted", "expected", "given", ""],
            [[row.planted, row.expected, row.given, row.outcome] for row in rows],
        )
    return 1 if counts["missed"] else 0


def _kills(number: int, work: Path, seed: int, as_json: bool) -> int:
    from dsbench.cli.table import print_table
    from dsbench.selftest.kills import kill_at_random

    def tell(run: KilledRun) -> None:
        click.echo(f"{len(run.kills)} kills, {run.starts} starts: {run.verdict}", err=True)

    runs = kill_at_random(number, work, seed, tell)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(run) for run in runs], indent=2))
    else:
        hits = sum(kill.hit > 0 for run in runs for kill in run.kills)
        lost, left = (sum(getattr(run, name) for run in runs) for name in ("lost", "orphans"))
        print_table(
            f"{hits} kills in {len(runs)} runs: {lost} times records lost, {left} orphans",
            ["run", "killed, after s, in boot, with records", "starts", "verdict", "as undisturbed"],
            [
                [
                    str(at),
                    "; ".join(f"{k.who} {k.seconds:.1f} {k.phase or 'none'} {k.records}" for k in run.kills if k.hit),
                    str(run.starts),
                    _verdict(run),
                    "; ".join(run.problems) or "yes",
                ]
                for at, run in enumerate(runs, start=1)
            ],
        )
    return 1 if any(run.lost or run.orphans or run.problems for run in runs) else 0


def _verdict(run: KilledRun) -> str:
    """With what became of boots whose engine was killed."""
    counts = ((run.repeated_boots, "repeated"), (run.failed_boots, "failed"))
    boots = [f"{number} boots {what}" for number, what in counts if number]
    return f"{run.verdict} ({', '.join(boots)})" if boots else run.verdict
