"""`dsbench selftest`: plant defects in real runs and see whether the verdict names them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click
from click.core import ParameterSource

from dsbench.cli.params import NumberRange

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(short_help="Plant defects in real runs; say which the verdict names.")
@click.option("--faults", is_flag=True, help="Let runs go wrong: engines that hang, full disks, signals, locks.")
@click.option(
    "--kills", type=click.IntRange(1, 10_000), metavar="N", help="kill -9 at N random moments; go on each time."
)
@click.option(
    "--soak",
    type=NumberRange(0, 10_000, min_open=True),
    metavar="MINUTES",
    help="64 streams on an engine whose memory is too small for them.",
)
@click.option(
    "--fuzz", is_flag=True, help="Changed copies of logs, pages, results, records and TOML: no crash, no hang."
)
@click.option("--cases", type=click.IntRange(1), default=20_000, show_default=True, help="Of --fuzz, for each reader.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of what is drawn at random.")
@click.option("--only", metavar="NAME", multiple=True, help="This defect, fault or reader only; repeat for several.")
@click.option(
    "--from", "stored_in", type=FOLDER, metavar="DIR", help="Grade a stored run again; try saved cases again."
)
@click.option(
    "-o", "--out", type=FOLDER, default=Path("results/selftest"), show_default=True, help="Folder of results."
)
@click.option(
    "--without",
    metavar="DETECTOR",
    default="-",
    help="--faults: take a detector away (checksum, chain, lock, group, repeat, void); its faults are then missed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the grades as JSON.")
@click.pass_context
def selftest(
    ctx: click.Context,
    faults: bool,
    kills: int | None,
    soak: float | None,
    fuzz: bool,
    cases: int,
    seed: int,
    only: tuple[str, ...],
    stored_in: Path | None,
    out: Path,
    without: str,
    as_json: bool,
) -> int:
    """Plant defects in real runs; say which the verdict names.

    The runs are of the embedded engine. Faulted arms share a baseline, and in one arm of each group nothing is
    planted. --faults and --kills run `dsbench ab` many times and disturb it from outside; they keep its results
    only where --out is given, as --soak keeps its samples. --fuzz keeps what fails under --out, and says how to try it
    again. Exit codes: 0 all caught and nothing called broken that is not, 1 otherwise, 2 usage.
    """
    given = ctx.get_parameter_source("out") == ParameterSource.COMMANDLINE
    if fuzz:
        from dsbench.cli.selftest_fuzz import fuzzed

        if faults or kills is not None or soak is not None:
            raise click.UsageError("--fuzz, --soak, --faults and --kills are not given together")
        return fuzzed(only, cases, seed, out, stored_in, as_json)
    if soak is not None:
        from dsbench.cli.selftest_soak import soaked

        if faults or kills is not None or stored_in is not None or only:
            raise click.UsageError("--soak, --faults, --kills, --from and --only are not given together")
        return soaked(soak, seed, out if given else None, as_json)
    if faults or kills is not None:
        from dsbench.cli.selftest_runs import disturbed

        if stored_in is not None or (faults and kills is not None) or (kills is not None and only):
            raise click.UsageError("--faults, --kills, --from and (with --kills) --only are not given together")
        return disturbed(only, kills, seed, out if given else None, without, as_json)
    from dsbench.cli.table import print_table
    from dsbench.errors import InputError
    from dsbench.selftest.grade import grade
    from dsbench.selftest.plants import PLANTS
    from dsbench.selftest.run import run, stored

    names = [plant.name for plant in PLANTS]
    for name in only:
        if name not in names:
            raise InputError(f"--only '{name}': no such defect; there are {', '.join(names)}")
    if stored_in is not None:
        folders = stored(stored_in)
        if not folders:
            raise InputError(
                f"--from {stored_in}: no selftest was stored there; run dsbench selftest --out {stored_in}"
            )
    else:
        folders = run(out, [plant for plant in PLANTS if not only or plant.name in only])
    rows = grade(folders)
    missed = [row for row in rows if not row.caught]
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    else:
        told = f"{len(rows) - len(missed)} of {len(rows)} as expected"
        print_table(
            told + (f", {len(missed)} missed" if missed else ""),
            ["planted", "expected", "given", ""],
            [[row.planted, row.expected, row.given, "caught" if row.caught else "MISSED"] for row in rows],
        )
    return 1 if missed else 0
