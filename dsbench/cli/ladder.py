"""`dsbench ladder`: the source document's memory table, projected, measured and as it was published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsbench.cli.params import COUNT, byte_size, out_option
from dsbench.errors import InputError
from impl.dims import FLASH, SHAPES, Dims

if TYPE_CHECKING:
    from dsbench.ladder import LadderRow
    from dsbench.projection import Projection

GIB = 1 << 30
PLATFORMS = ("sm90", "sm120")


@click.command(short_help="Show the memory ladder: projected, measured, published.")
@click.option("--projected", is_flag=True, help="At full size, from the code, on tensors without bytes.")
@click.option("--measured", is_flag=True, help="On the embedded engine at pico: boots up to the memory profile.")
@click.option("--published", "as_published", is_flag=True, help="The source document's rows.")
@click.option("--platform", type=click.Choice(PLATFORMS), default="sm120", show_default=True, help="Of the projection.")
@click.option("--tp", type=click.Choice(["1", "2"]), default="2", show_default=True, help="Tensor-parallel ranks.")
@click.option(
    "--dims", "shape", type=click.Choice(list(SHAPES)), default="flash", show_default=True, help="Shape projected."
)
@click.option("-T", "--max-num-batched-tokens", "tokens", type=COUNT, metavar="N", help="Tokens one step may process.")
@click.option("--max-model-len", type=COUNT, metavar="N", help="Longest request in tokens.")
@click.option(
    "--kv-budget",
    type=byte_size,
    metavar="BYTES",
    help="KV memory of the baseline, as 10.54GiB. [default: the published baseline's blocks]",
)
@click.option("--from", "stored", metavar="RESULT", help="Take --measured from a stored experiment; boots nothing.")
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ladder(
    projected: bool,
    measured: bool,
    as_published: bool,
    platform: str,
    tp: str,
    shape: str,
    tokens: int | None,
    max_model_len: int | None,
    kv_budget: int | None,
    stored: str | None,
    out: Path,
    as_json: bool,
) -> int:
    """Show the memory ladder: projected, measured, published.

    \b
    dsbench ladder --projected --platform sm120 --tp 2
    dsbench ladder --projected --published --kv-budget 10.54GiB
    dsbench ladder --measured

    States are cumulative, in the source document's order. What does not move the profiled line shows 0 there, and its
    bytes with the phase where they live. Projected figures are no measurement. Without a choice: projected and
    published. Tokens and concurrency follow from the bytes by the 0.25.1 rule.
    """
    from dsbench.cli.table import print_json

    measured = measured or stored is not None
    if not (projected or measured or as_published):
        projected = as_published = True
    changes = {"max_num_batched_tokens": tokens, "max_model_len": max_model_len}
    dims = SHAPES[shape].with_changes(**{name: value for name, value in changes.items() if value is not None})
    content: dict[str, Any] = {"platform": platform, "tp": int(tp)}
    if projected:
        content["projected"] = _projected(dims, platform, int(tp), kv_budget, as_json)
    if as_published:
        content["published"] = _published(dims, as_json)
    if measured:
        content["measured"] = _measured(stored, out, as_json)
    if as_json:
        print_json(content)
    return 0


def ab_projected(target: str, asked: dict[str, Any], shape_given: bool, as_json: bool) -> int:
    """`dsbench ab --projected [PLATFORM:TP]`: bytes of the arms by phase. A projection has no verdict."""
    from dsbench.cli.table import print_json

    platform, _, tp = target.partition(":")
    if platform not in PLATFORMS or tp not in ("1", "2"):
        raise InputError(f"--projected '{target}': write PLATFORM:TP, as sm120:2 or sm90:1")
    for option in ("matrix", "arms", "a_python", "b_python", "controls"):
        if asked.get(option):
            raise InputError(f"--projected takes --toggle alone: leave out --{option.rstrip('s').replace('_', '-')}")
    if not asked["toggles"]:
        raise InputError("--projected needs a --toggle: 'dsbench toggles' lists them; 'dsbench ladder' takes all")
    changes = {name: asked[name] for name in ("max_num_batched_tokens", "max_model_len") if asked[name] is not None}
    dims = SHAPES[asked["shape"] if shape_given else FLASH.name].with_changes(**changes)
    projection = _project(dims, platform, int(tp), asked["toggles"])
    if as_json:
        print_json({"kind": "projected", **projection.model_dump(mode="json")})
        return 0
    _print_arms(projection)
    return 0


def after_matrix(toggles: Sequence[str], folder: Path, out: Path) -> None:
    """After `dsbench ab --matrix ladder`: the table three ways, if the toggles are all those that it has rows for."""
    from dsbench.ladder import ROWS

    if not set(ROWS) <= set(toggles):
        click.echo(f"the source document's table needs {', '.join(ROWS)}: 'dsbench ladder --measured' runs them all")
        return
    _measured(str(folder), out, False)
    _projected(FLASH, "sm120", 2, None, False)
    _published(FLASH, False)


# --- projected ------------------------------------------------------------------------------------------------------


def _project(dims: Dims, platform: str, tp: int, toggles: Sequence[str] = ()) -> Projection:
    from dsbench.projection import project

    arguments = [
        f"--platform={platform}", f"--tp={tp}", f"--dims={dims.name}",
        f"--max-num-batched-tokens={dims.max_num_batched_tokens}", f"--max-model-len={dims.max_model_len}",
        *(f"--toggle={name}" for name in toggles),
    ]  # fmt: skip
    with _bar("projecting") as progress:
        return project(arguments, progress)


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from dsbench.report.columns import Output

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Output(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def _projected(dims: Dims, platform: str, tp: int, budget: int | None, quiet: bool) -> dict[str, Any]:
    from dsbench import ladder

    projection = _project(dims, platform, tp)
    start = ladder.published_budget() if budget is None else budget
    rows, apart = ladder.projected_rows(projection, start), ladder.projected_apart(projection, start)
    why_not = ladder.comparable(projection)
    theirs = ladder.published_rows(dims.max_num_batched_tokens, dims.max_model_len) if not why_not else []
    distances = [ladder.Distance.of(row, other) for row, other in zip(rows, theirs, strict=False)]
    if not quiet:
        title = (
            f"Projected: {dims.name}, {dims.n_layers} + {dims.n_draft_layers} layers, {platform}, TP={tp}, "
            f"T={dims.max_num_batched_tokens:,}, from {start:,} B of KV memory"
        )
        _print_rows(title, rows)
        _print_rows("Projected, no published row: each against the baseline", apart)
        if distances:
            _print_distances("Projected less published", distances)
        else:
            click.echo(f"no distance to the published rows: {why_not}\n")
    return {
        "kind": "projected",
        "dims": projection.dims,
        "kv_budget": start,
        "rows": [row.to_json() for row in rows],
        "apart": [row.to_json() for row in apart],
        "published_distance": [asdict(distance) for distance in distances],
        "not_comparable": why_not,
    }


def _print_arms(projection: Projection) -> None:
    from dsbench.cli.table import mib, print_table

    names = [phase.name for phase in projection.arms[0].phases]
    print_table(
        f"Projected bytes, no measurement: {projection.dims['name']}, {projection.platform}, TP={projection.tp}, "
        f"T={projection.dims['max_num_batched_tokens']:,}",
        ("arm", "weights", "workspace", *names, "modelled reservation", "index maps a step"),
        [
            (
                "+".join(arm.toggles) or "baseline",
                mib(arm.weights_bytes),
                mib(arm.workspace_bytes),
                *(mib(phase.bytes) for phase in arm.phases),
                mib(arm.modelled_reservation_bytes),
                arm.index_maps_per_step,
            )
            for arm in projection.arms
        ],
    )
    steps = [*projection.alone, *projection.apart]
    print_table(
        "Projected: each toggle alone, against an arm that has what it requires",
        ("toggle", "off the KV line", "where the bytes live", "note"),
        [
            (
                step.toggle,
                mib(step.line_bytes),
                _where(step.phases, step.index_maps),
                "modelled reservation" if step.modelled else "; ".join(f"refused: {why}" for why in step.refused),
            )
            for step in steps
        ],
    )


# --- published ------------------------------------------------------------------------------------------------------


def _published(dims: Dims, quiet: bool) -> dict[str, Any]:
    from dsbench import ladder

    rows = ladder.published_rows(dims.max_num_batched_tokens, dims.max_model_len)
    if not quiet:
        _print_rows("Published: SM120, TP=2; steps in whole blocks", rows)
    return {"kind": "published", "rows": [row.to_json() for row in rows]}


# --- measured -------------------------------------------------------------------------------------------------------


def _measured(stored: str | None, out: Path, quiet: bool) -> dict[str, Any]:
    from dsbench import ladder
    from dsbench.store import load_plan, load_records, resolve

    folder = resolve(stored, out) if stored else _boot_ladder(out)
    plan = load_plan(folder)
    rows, apart = ladder.measured_rows(plan, load_records(folder)[0])
    dims = Dims.from_json(plan.dims)
    off = [row.step_bytes - ladder.expected_step(row.toggle, dims) for row in (*rows, *apart)]
    if not quiet:
        title = f"Measured: {dims.name}, T={dims.max_num_batched_tokens:,}, embedded engine"
        _print_rows(title, rows, off[: len(rows)])
        _print_rows("Measured, no published row: each against the baseline", apart, off[len(rows) :])
        click.echo(f"from {folder}; expected: the registry's formula at these dims")
    content = [{**row.to_json(), "less_expected_bytes": d} for row, d in zip((*rows, *apart), off, strict=True)]
    return {
        "kind": "measured",
        "result": str(folder),
        "dims": plan.dims,
        "rows": content[: len(rows)],
        "apart": content[len(rows) :],
    }


def _boot_ladder(out: Path) -> Path:
    """Boot every state up to its profile; the experiment is stored and judged like any other."""
    from dsbench.cli.ab import run
    from dsbench.ladder import ladder_arms
    from dsbench.plan import plan_experiment
    from dsbench.store import create
    from dsbench.suite import load_suite

    dims = SHAPES["pico"]
    arguments = ["--dims", dims.name, "--seed", "0", "--load-format", "auto"]
    plan = plan_experiment((), load_suite("kv"), dims, arms=ladder_arms(), engine_args=arguments)
    folder = create(plan, out)
    verdict = run(plan, folder, as_json=False, quiet=True)
    click.echo(f"stored in {folder}: {verdict.word}", err=True)
    return folder


# --- tables ---------------------------------------------------------------------------------------------------------


def _print_rows(title: str, rows: Sequence[LadderRow], less_expected: Sequence[int] | None = None) -> None:
    from dsbench.cli.table import print_table

    if not rows:
        return
    extra = ("less expected",) if less_expected is not None else ()
    body = [
        (
            row.state,
            _size(row.step_bytes),
            *((_size(less_expected[i]),) if less_expected is not None else ()),
            _kv_memory(row.capacity.available_bytes),
            row.capacity.tokens,
            f"{row.capacity.max_concurrency:.2f}x",
            _where(row.phases, row.index_maps),
            row.note,
        )
        for i, row in enumerate(rows)
    ]
    columns = ("state", "step", *extra, "KV memory", "KV tokens", "max concurrency", "where the bytes live", "note")
    print_table(title, columns, body)


def _print_distances(title: str, distances: Sequence[Any]) -> None:
    from dsbench.cli.table import mib, print_table

    body = [(d.state, mib(d.step_bytes), d.blocks, d.tokens) for d in distances]
    print_table(title, ("state", "step", "blocks", "KV tokens"), body)


def _kv_memory(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB // 10 else f"{size / 2**20:.3f} MiB"


def _size(size: int) -> str:
    """MiB; what is smaller than one, exactly, in KiB."""
    from dsbench.cli.table import mib

    return f"{size / 1024:g} KiB" if 0 < abs(size) < 1 << 20 and size % 64 == 0 else mib(size)


def _where(phases: Any, index_maps: int) -> str:
    parts = [f"{name} {_size(size)}" for name, size in phases.items()]
    return ", ".join([*parts, *([f"{index_maps} index maps a step fewer"] if index_maps else [])]) or "-"
