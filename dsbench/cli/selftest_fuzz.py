"""`dsbench selftest --fuzz`: changed copies of real inputs through every reader, and what crashed or hung."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.selftest.fuzz import Fuzzed


def fuzzed(only: Sequence[str], cases: int, seed: int, out: Path, saved: Path | None, as_json: bool) -> int:
    """Try `cases` inputs a reader, or the saved ones; the exit code of the command."""
    from dsbench.progress import progress_bar
    from dsbench.selftest.fuzz import again, fuzz
    from dsbench.selftest.fuzz_targets import TARGETS

    names = [target.name for target in TARGETS]
    for name in only:
        if name not in names:
            raise InputError(f"--only '{name}': no such reader; there are {', '.join(names)}")
    if saved is not None:
        found = again(saved)
    else:
        targets = [target for target in TARGETS if not only or target.name in only]
        found = []
        with progress_bar(quiet=as_json) as bar:
            for target in targets:
                task = bar.add_task(target.name, total=cases)
                found.append(fuzz(target, cases, seed, out / "fuzz", tell=partial(bar.advance, task)))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in found], indent=2))
    else:
        _show(found)
    return 1 if any(one.failed for one in found) else 0


def _show(found: Sequence[Fuzzed]) -> None:
    from dsbench.cli.table import print_table

    crashed, slow, cases = (sum(getattr(one, name) for one in found) for name in ("crashed", "too_slow", "cases"))
    columns = (
        "reader",
        "cases",
        "refused",
        "crashed",
        "too slow",
        "slowest, ms",
        "lines of 10 MB",
        "slowest line, ms",
        "minutes",
    )
    print_table(
        f"{cases:,} cases: {crashed} crashed, {slow} too slow",
        columns,
        [
            [one.target, one.cases, one.refused, one.crashed, one.too_slow, f"{one.slowest_ms:.0f}", one.long_lines,
             f"{one.slowest_long_line_ms:.0f}", f"{one.seconds / 60:.1f}"]
            for one in found
        ],
    )  # fmt: skip
    for one in found:
        for kind, place in one.problems.items():
            click.echo(f"{one.target}: {kind}: dsbench selftest --fuzz --from {place}")
