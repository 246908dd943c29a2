"""`dsbench simulate`: how often the verdicts are wrong, by simulated experiments with known noise."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click

from dsbench.errors import InputError

SEEDS = (1, 2, 3)
MOST_HOSTS = 1024
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(short_help="Simulate experiments: how often are the verdicts wrong?")
@click.option("--quick", is_flag=True, help="Some hundred experiments a case, under 2 minutes on 2 cores.")
@click.option("--kind", metavar="KIND", help="Only this kind of metric, such as sample-blocked.")
@click.option("-s", "--suite", metavar="NAME", help="Only this shipped suite.")
@click.option("--experiments", type=click.IntRange(1, 10_000_000), metavar="N", help="A case.  [default: 2000]")
@click.option("--seed", "seeds", type=click.IntRange(min=0), multiple=True, metavar="N",
              help="Repeat for several; the experiments are shared out.  [default: 1 2 3]")  # fmt: skip
@click.option("-j", "--processes", type=click.IntRange(1, 1024), metavar="N", help="At one time.  [default: the cores]")
@click.option("--hosts", metavar="N,N,...", help="Instead: wall time, boots and power on so many hosts of a pool.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("-o", "--out", type=FOLDER, metavar="FOLDER", help="Store table.md and table.json there.")
def simulate(
    quick: bool,
    kind: str | None,
    suite: str | None,
    experiments: int | None,
    seeds: tuple[int, ...],
    processes: int | None,
    hosts: str | None,
    as_json: bool,
    out: Path | None,
) -> int:
    """Simulate experiments: how often are the verdicts wrong?

    \b
    dsbench simulate --quick
    dsbench simulate --kind sample-blocked --experiments 500
    dsbench simulate --suite quick
    dsbench simulate --hosts 1,4,16,64

    Readings with known noise (boot over run over request, and drift) are judged by the real rules, without an
    effect and with the smallest one that is claimed to be seen. Exit codes: 0 no target is missed, 1 one is.
    """
    from dsbench.progress import progress_bar
    from dsbench.simulation.catalogue import chosen, kinds, suites
    from dsbench.simulation.report import KIND_COLUMNS, SUITE_COLUMNS, kind_cells, markdown, missed, row, suite_cells
    from dsbench.simulation.report import as_json as to_json
    from dsbench.simulation.run import FULL, quick_experiments
    from dsbench.simulation.run import simulate as run

    if hosts is not None:
        others = {"--quick": quick, "--kind": kind, "--suite": suite, "--processes": processes}
        if named := [option for option, value in others.items() if value]:
            raise InputError(f"--hosts {hosts} simulates a pool, no case of the table: leave out {named[0]}")
        return _simulate_hosts(hosts, experiments, seeds[0] if seeds else SEEDS[0], as_json, out)
    if kind is not None and kind not in kinds():
        raise InputError(f"--kind '{kind}' is not simulated; known: {', '.join(kinds())}")
    if suite is not None and suite not in suites():
        raise InputError(f"--suite '{suite}' is not simulated; known: {', '.join(suites())}")
    if quick and experiments is not None:
        raise InputError(f"--quick has its own numbers of experiments: leave out --experiments {experiments}")
    cases = chosen(kind, suite)
    seeds = seeds or SEEDS
    wanted = {case: quick_experiments(case) if quick else experiments or FULL for case in cases}
    per_seed = {case: -(-n // len(seeds)) * len(seeds) for case, n in wanted.items()}
    total = sum(n * (1 if case.experiment.claim() is None else 2) for case, n in per_seed.items())
    with progress_bar() as progress:
        task = progress.add_task("experiments", total=total)
        results = run(cases, seeds, wanted.__getitem__, lambda done: progress.advance(task, done), processes)
    rows = [row(result) for result in results]
    given = ["--quick"] if quick else []
    given += [f"--kind {kind}"] if kind else []
    given += [f"--suite {suite}"] if suite else []
    given += [f"--experiments {experiments}"] if experiments else []
    command = " ".join(["dsbench simulate", *given, *(f"--seed {seed}" for seed in seeds)])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "table.md").write_text(markdown(rows, seeds, command))
        (out / "table.json").write_text(json.dumps(to_json(rows, seeds), indent=1) + os.linesep)
    if as_json:
        click.echo(json.dumps(to_json(rows, seeds), indent=2))
    else:
        from dsbench.cli.table import print_table

        for title, columns, cells in (
            ("by kind", KIND_COLUMNS, kind_cells(rows)),
            ("by suite", SUITE_COLUMNS, suite_cells(rows)),
        ):
            if cells:
                print_table(title, columns, cells)
        for line in missed(rows):
            click.echo(f"target missed: {line}")
    return 1 if missed(rows) else 0


def _simulate_hosts(text: str, experiments: int | None, seed: int, as_json: bool, out: Path | None) -> int:
    from dsbench.cli.table import print_table
    from dsbench.simulation.hosts import COLUMNS, cells, markdown, sentence, simulate_hosts
    from dsbench.simulation.hosts import as_json as to_json
    from dsbench.simulation.run import FULL

    parts = text.split(",")
    if not all(re.fullmatch(r"\s*[0-9]{1,9}\s*", part) and 0 < int(part) <= MOST_HOSTS for part in parts):
        raise InputError(f"--hosts '{text}': write numbers of hosts from 1 to {MOST_HOSTS}, as in 1,4,16,64")
    points = simulate_hosts(sorted({int(part) for part in parts}), experiments or FULL, seed)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        several = f" --experiments {experiments}" if experiments else ""
        (out / "hosts.md").write_text(markdown(points, f"dsbench simulate --hosts {text}{several} --seed {seed}"))
    if as_json:
        click.echo(json.dumps(to_json(points, seed), indent=2))
        return 0
    print_table("hosts", COLUMNS, cells(points))
    click.echo(sentence(points))
    return 0
