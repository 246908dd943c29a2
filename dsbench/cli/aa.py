"""`dsbench aa`: the same build against itself, and the floors that it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsbench.cli.experiment import Asked
from dsbench.cli.params import build_options, out_option, suite_options
from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.floors import Floor, Floors
    from dsbench.records import Plan

FEWEST = 6


@click.command(short_help="Measure how far every metric moves when nothing changes, and store it.")
@suite_options
@click.option(
    "--boots",
    type=click.IntRange(FEWEST, 20_000),
    metavar="N",
    help="Measured boots, an even number. [default: two a block of the suite, at least 6]",
)
@click.option("--python", metavar="VENV", help="The engine's environment: its folder, or its interpreter.")
@click.option("--from", "stored", metavar="RESULT", help="Take the floors from an A/A experiment that has run.")
@build_options
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print the floors as JSON.")
def aa(boots: int | None, python: str | None, stored: str | None, out: Path, as_json: bool, **asked: Any) -> int:
    """Measure how far every metric moves when nothing changes, and store it.

    Two arms of one build run in blocks, as in `dsbench ab`, and are judged by the same rules. The spread between
    and within boots, the drift over the run and the smallest visible change are stored under results/floors, for
    this machine, build and metric; `dsbench ab` prints them beside its differences until the machine changes.
    Exit codes: 0 stored, 1 the rules called noise a regression, 2 usage, 4 void and nothing stored.
    """
    from dsbench.cli.ab import run
    from dsbench.cli.refused import nothing_left_if_refused
    from dsbench.store import create, load_plan, resolve

    if stored is not None:
        folder = resolve(stored, out)
        plan = load_plan(folder)
    else:
        if boots is not None and boots % 2:
            raise InputError(f"--boots {boots} is odd: each block holds two boots, so give {boots + 1}")
        plan = _plan(Asked(**asked), boots, python, out)
        folder = create(plan, out)
    with nothing_left_if_refused(folder, "dsbench aa --from", "dsbench aa --from", kept=stored is not None):
        base = plan.baseline
        alike = all((arm.build, arm.environment) == (base.build, base.environment) for arm in plan.arms)
        if not alike or plan.fingerprint is None:
            raise InputError(f"{folder} is no A/A experiment: its arms differ, or it does not know its machine")
        verdict = run(plan, folder, as_json=False, quiet=as_json, resume="dsbench aa --from")
    if verdict.word == "void":
        click.echo("void: no floors stored", err=True)
        return verdict.exit_code
    floors, path = _store(plan, folder, out)
    if as_json:
        click.echo(floors.model_dump_json(indent=2))
    else:
        _print(floors)
        click.echo(f"floors stored in {path}")
    return 1 if verdict.word == "regressed" else 0


def _plan(asked: Asked, boots: int | None, python: str | None, out: Path) -> Plan:
    from dsbench.builds import ArmSpec, interpreter
    from dsbench.floors import snapshot

    if asked.engine == "endpoint":
        raise InputError(
            "--engine endpoint: a floor is of a build on this machine, which a running server does not tell; two "
            "servers that should be alike are compared by: dsbench ab --a URL --b URL"
        )
    suite = asked.suite()
    own = None if python is None else interpreter("--python", python)
    blocks = max(suite.blocks, FEWEST // 2) if boots is None else boots // 2
    arms = [ArmSpec(name, python=own) for name in ("a", "b")]
    return snapshot(asked.plan(suite, specs=arms, alike=True, blocks=blocks), out, told=False)


def _store(plan: Plan, folder: Path, out: Path) -> tuple[Floors, Path]:
    from dsbench.evidence import gather
    from dsbench.floors import measure, save
    from dsbench.store import load_records

    assert plan.fingerprint is not None
    boots = [boot for boot in gather(plan, load_records(folder)[0]) if boot.ok and boot.planned.phase == "measured"]
    floors = measure(plan, boots, plan.fingerprint)
    if not floors.floors:
        raise InputError(f"{folder} has too few boots for a floor: give --boots {FEWEST} or more")
    return floors, save(floors, out)


def _print(floors: Floors) -> None:
    from dsbench.cli.table import print_table

    machine = floors.fingerprint
    columns = ("metric", "median", "between boots", "within a boot", "drift", "A/A differs by", "smallest visible")
    print_table(
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib} GiB · {floors.floors[0].boots} boots of "
        f"{floors.boot_seconds:.1f} s",
        columns,
        [_row(floor) for floor in floors.floors],
    )


def _row(floor: Floor) -> list[object]:
    def spread(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.2%}".replace("%", " %") if floor.relative else f"{value:,.4g} {floor.unit}"

    p = "" if floor.drift_p is None else f" (p={floor.drift_p:.2g})"
    visible = "none: too few blocks" if floor.smallest_effect is None else spread(floor.smallest_effect)
    visible = visible if floor.paired else "any"
    return [
        floor.metric if floor.rank is None else f"{floor.metric} rank {floor.rank}",
        f"{floor.centre:,.10g} {floor.unit}",
        spread(floor.between),
        spread(floor.within),
        f"{spread(floor.drift)}{p}",
        f"±{spread(floor.noise(floor.blocks))}",
        visible,
    ]
