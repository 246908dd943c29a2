"""`dsbench tests`: two runs of a pytest selection, compared by test id."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsbench.cli.params import SECONDS
from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.pytest_run import PytestRun
    from dsbench.score.pytest_ids import Compared
    from dsbench.score.pytest_report import PytestReport

SHOWN = (
    "new failure",
    "machine",
    "no baseline",
    "not collected",
    "not reached",
    "inherited",
    "newly skipped",
    "removed",
    "fixed",
    "added",
)
"""Classes in the order of their weight."""
MOST = 20
"""Ids of one class that are printed without --all."""


@click.command(short_help="Compare two runs of tests by test id: new, inherited, fixed.")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.argument("selection", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--python", metavar="VENV", help="Environment of both runs. [default: .venv of the checkout, or this one]"
)
@click.option("--a-python", metavar="VENV", help="Environment of the baseline's run.")
@click.option("--b-python", metavar="VENV", help="Environment of the candidate's run.")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="Variable of both runs.")
@click.option("--a-env", metavar="NAME=VALUE", multiple=True, help="Variable of the baseline's run.")
@click.option("--b-env", metavar="NAME=VALUE", multiple=True, help="Variable of the candidate's run.")
@click.option(
    "--repeats", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs an arm; the worst counts."
)
@click.option(
    "--timeout", type=SECONDS, default=1800.0, show_default=True, metavar="SECONDS", help="Deadline of a run."
)
@click.option("--map", "map_file", type=click.Path(path_type=Path, dir_okay=False), help="TOML: parents by test id.")
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), help="Keep reports and output here.")
@click.option("--all", "show_all", is_flag=True, help="Print every id that differs, however many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def tests(
    a: Path,
    b: Path,
    selection: tuple[str, ...],
    python: str | None,
    a_python: str | None,
    b_python: str | None,
    env: tuple[str, ...],
    a_env: tuple[str, ...],
    b_env: tuple[str, ...],
    repeats: int,
    timeout: float,
    map_file: Path | None,
    out: Path | None,
    show_all: bool,
    as_json: bool,
) -> int:
    """Compare two runs of tests by test id: new, inherited, fixed.

    \b
    dsbench tests before.xml after.xml
    dsbench tests before/ after/ -- tests/kernels/test_mhc_kernels.py -k fused
    dsbench tests . . --a-env FEATURE=0 --b-env FEATURE=1 -- tests/kernels

    A and B are reports that exist, JUnit XML or what `pytest -rA` printed; or checkouts in which the selection after
    `--` is run. A failure of B is new unless it fails in A, too, or is a variant that fails as its parent cases do,
    which fail in both: `test_x[bf16-128]` inherits from `test_x[128]` with the same type of error,
    `test_x_reuses_y[128]` from `test_x[*-128]` with the same reason, others as --map says. Exit codes: 0 none is new,
    1 a new failure, or a module that B alone cannot collect; 3 tests of A that now show nothing; 4 not tested, or
    nothing to compare.
    """
    from dsbench.cli.table import print_json
    from dsbench.records import EXIT_CODES
    from dsbench.score.pytest_ids import check_named, compare_reports
    from dsbench.score.pytest_map import parse_map

    for path in (a, b):
        if not path.exists():
            raise InputError(f"{path} is not there: name a report, or a checkout to run tests in")
    if a.is_dir() != b.is_dir():
        raise InputError(f"{a} and {b}: give two reports, or two checkouts")
    inherits = parse_map(_read(map_file), str(map_file)) if map_file else {}
    if a.is_dir():
        runs = [
            _run(path, python if given is None else given, selection, timeout, (*env, *variables), f"--{arm}-env")
            for arm, path, given, variables in (("a", a, a_python, a_env), ("b", b, b_python, b_env))
        ]
        baseline, candidate = _run_both(runs, repeats, out)
    else:
        if selection:
            raise InputError(f"{a} is a report: leave out '{' '.join(selection)}', or name two checkouts to run it in")
        baseline, candidate = (_stored(path) for path in (a, b))
    answer = compare_reports(baseline, candidate, inherits)
    for report, path in ((baseline, a), (candidate, b)):
        check_named(report, str(path))
    if as_json:
        print_json({"a": _counts(baseline), "b": _counts(candidate), **answer.to_json()})
    else:
        _print(answer, {"A": baseline, "B": candidate}, show_all)
    return EXIT_CODES[answer.word]


def _stored(path: Path) -> PytestReport:
    from dsbench.score.pytest_report import read_report

    return read_report(_read(path), str(path))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


# --- runs -------------------------------------------------------------------------------------------------------------


def _run(
    checkout: Path, python: str | None, selection: Sequence[str], timeout: float, env: Sequence[str], option: str
) -> PytestRun:
    import sys

    from dsbench.builds import interpreter
    from dsbench.pytest_run import PytestRun

    if not selection:
        raise InputError(
            f"{checkout} is a checkout: say what to run in it, as in: dsbench tests {checkout} B -- tests/x.py"
        )
    own = checkout / ".venv"
    where = (str(own) if own.is_dir() else None) if python is None else python
    variables = {}
    for text in env:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"{option} '{text}': write NAME=VALUE")
        variables[name] = value
    found = sys.executable if where is None else interpreter("--python", where)
    return PytestRun(found, checkout.resolve(), selection, timeout, variables)


def _run_both(runs: Sequence[PytestRun], repeats: int, out: Path | None) -> tuple[PytestReport, PytestReport]:
    """A B, B A, and so on. InputError with the reason if a run gives no report."""
    from dsbench.pytest_run import present
    from dsbench.score.pytest_report import merged

    lacking = [set(present(run.selection, run.checkout)[1]) for run in runs]
    if nowhere := lacking[0] & lacking[1]:
        raise InputError(f"{', '.join(sorted(nowhere))} is in neither checkout: mend the selection")
    for name, missing in zip("AB", lacking, strict=True):
        if missing:
            click.echo(f"note: {name} has no {', '.join(sorted(missing))}", err=True)
    reports: tuple[list[PytestReport], list[PytestReport]] = ([], [])
    with tempfile.TemporaryDirectory(prefix="dsbench-") as scratch:
        folder = out or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for turn in range(repeats):
            for arm in (0, 1) if turn % 2 == 0 else (1, 0):
                reports[arm].append(_one(runs[arm], folder, f"{'ab'[arm]}{turn + 1 if repeats > 1 else ''}"))
    return merged(reports[0]), merged(reports[1])


def _one(run: PytestRun, folder: Path, name: str) -> PytestReport:
    import asyncio

    from dsbench.progress import progress_bar
    from dsbench.pytest_run import NotRun, places, present, run_pytest
    from dsbench.score.pytest_report import PytestReport

    if not places(present(run.selection, run.checkout)[0]):
        return PytestReport({})  # the other arm alone has these files
    with progress_bar() as progress:
        progress.add_task(f"{name}: {' '.join(run.selection)}"[:60], total=None)
        try:
            return asyncio.run(run_pytest(run, folder / f"{name}.xml", folder / f"{name}.log"))
        except NotRun as error:
            raise InputError(f"the run in {run.checkout.name} gave no report: {error}") from None


# --- the answer -------------------------------------------------------------------------------------------------------


def _counts(report: PytestReport) -> dict[str, int]:
    from dsbench.score.pytest_report import STATUSES

    counts = {status: report.count(status) for status in STATUSES}
    return {**{status: n for status, n in counts.items() if n}, "not collected": len(report.collection)}


def _print(answer: Compared, reports: dict[str, PytestReport], show_all: bool) -> None:
    from dsbench.cli.table import print_table

    for name, report in reports.items():
        click.echo(f"{name}: {', '.join(f'{n} {what}' for what, n in _counts(report).items() if n) or 'no tests'}")
    for path, (before, after) in answer.collection.items():
        for name, why in (("A", before), ("B", after)):
            if why is not None:
                click.echo(f"{name} cannot collect {path}: {why}")
    rows: list[tuple[str, str, str]] = []
    for kind in SHOWN:
        of_kind = [d for d in answer.differences if d.kind == kind]
        shown = of_kind if show_all else of_kind[:MOST]
        rows += [(kind, d.id, d.note or (d.candidate.reason[:90] if d.candidate else "")) for d in shown]
        if len(of_kind) > len(shown):
            rows.append((kind, f"and {len(of_kind) - len(shown)} more (--all)", ""))
    click.echo()
    if rows:
        print_table("Tests that differ, or fail", ("class", "test", ""), rows)
    for note in answer.notes:
        click.echo(f"note: {note}")
    counts = [f"{n} {kind}" for kind in SHOWN if (n := len([d for d in answer.differences if d.kind == kind]))]
    click.echo(", ".join(counts) or "no test differs")
    click.echo(f"{answer.word}{': ' if answer.reasons else ''}{'; '.join(answer.reasons)}")
