"""`dsbench selftest --soak MINUTES`: load on the embedded engine, and what is wrong with its answers or its memory."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.selftest.soak import Soaked
    from dsbench.selftest.soak_memory import Sample

SAMPLES, TOLD_S = "samples.jsonl", 60.0


def soaked(minutes: float, seed: int, out: Path | None, as_json: bool) -> int:
    """Run the soak and print what came of it; samples are kept where `out` is given. The exit code of the command."""
    from dsbench.cli.table import print_table
    from dsbench.selftest.soak import soak

    if out is not None and out.exists() and any(out.iterdir()):
        raise InputError(f"--out {out} holds files already: give a new folder")
    told_at = time.monotonic()

    def tell(sample: Sample) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= TOLD_S:
            told_at = time.monotonic()
            state = f"{sample.running} run, {sample.waiting} wait, {sample.free_blocks} blocks free"
            click.echo(f"{sample.seconds / 60:.0f} min: {sample.rss_bytes / 1e6:.1f} MB, {state}", err=True)

    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsbench-")))
        result = soak(minutes, work / "boot", seed=seed, tell=tell)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        rows = [json.dumps(dataclasses.asdict(sample)) + "\n" for sample in result.samples]
        (out / SAMPLES).write_text("".join(rows), encoding="utf-8")
    if as_json:
        counts = {"answers": dict(result.answers), "statuses": dict(result.statuses)}  # asdict cannot copy a Counter
        plain = dataclasses.asdict(dataclasses.replace(result, answers=Counter(), statuses=Counter()))
        click.echo(json.dumps({**plain, **counts}, indent=2))
    else:
        count = sum(result.answers.values())
        verdict = "passed" if not result.problems else f"{len(result.problems)} problems"
        print_table(
            f"{verdict}: {result.minutes:g} minutes, {result.streams} streams, {count} requests", ["what", "given"],
            [list(row) for row in told(result)],
        )  # fmt: skip
    return 1 if result.problems else 0


def told(result: Soaked) -> list[tuple[str, str]]:
    """The result's figures in words."""
    from dsbench.selftest.soak import LONG_ENOUGH_MINUTES

    slope = result.slope
    first, last = result.samples[0], result.samples[-1]
    memory = f"{first.rss_bytes / 1e6:.1f} MB at first, {last.rss_bytes / 1e6:.1f} MB at the end"
    growth = "too few samples"
    if slope is not None:
        judged = "" if result.minutes >= LONG_ENOUGH_MINUTES else f"; not judged below {LONG_ENOUGH_MINUTES:g} minutes"
        growth = f"{slope.word}: {slope.value:+.3f} MB a minute, "
        growth += f"95 % interval [{slope.low:+.3f}, {slope.high:+.3f}]{judged}"
    return [
        ("requests", ", ".join(f"{count} {kind}" for kind, count in result.answers.most_common())),
        ("answers by status", ", ".join(f"{count} x {status}" for status, count in sorted(result.statuses.items()))),
        ("answers that differ or are wrong", str(result.wrong)),
        ("preemptions", str(result.preemptions)),
        ("blocks", f"{result.blocks}; fewest free {result.least_free}, free at the end {last.free_blocks}"),
        ("most running", str(result.most_running)),
        ("resident memory", memory),
        ("growth after the warm-up", growth),
        ("threads, open files at the end", f"{last.threads}, {last.fds}"),
        *(("problem", problem) for problem in result.problems),
    ]
