"""`dsbench ab`: plan, execute, judge, and show one experiment."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from dsbench.errors import InputError
from impl.dims import SHAPES, Dims

if TYPE_CHECKING:
    from dsbench.records import Plan
    from dsbench.suite import Until

COUNT = click.IntRange(min=1)
SECONDS = click.FloatRange(min=0, min_open=True)
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(short_help="Measure arms against the baseline, in fresh boots, and judge.")
@click.option("-t", "--toggle", "toggles", metavar="NAME", multiple=True, help="Toggle to measure; repeat for several.")
@click.option(
    "--arm",
    "arms",
    metavar="NAME=SPEC",
    multiple=True,
    help="An arm that is a build: 'speculative=dspark;toggles=a,b;args=--eager'. The first is the baseline.",
)
@click.option(
    "-s", "--suite", "suite_name", metavar="NAME|FILE", default="quick", show_default=True, help="What to run."
)
@click.option("--blocks", type=COUNT, metavar="N", help="Blocks, in place of the suite's.")
@click.option(
    "--until", type=click.Choice(["profile", "ready"]), help="'profile' stops each boot early: KV metrics only."
)
@click.option("--controls", is_flag=True, help="Allow planted defects as toggles.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of order, prompts and engine.")
@click.option(
    "--dims", "shape", type=click.Choice(list(SHAPES)), default="pico", show_default=True, help="Model shape."
)
@click.option("-T", "--max-num-batched-tokens", type=COUNT, metavar="N", help="Tokens one step may process.")
@click.option("--max-model-len", type=COUNT, metavar="N", help="Longest request in tokens.")
@click.option("--hidden-size", type=COUNT, metavar="N", help="Width of the model; needs --load-format dummy.")
@click.option(
    "--load-format",
    type=click.Choice(["auto", "dummy"]),
    default="auto",
    show_default=True,
    help="Shipped weights, or random ones.",
)
@click.option(
    "--speculative",
    type=click.Choice(["none", "mtp", "dspark"]),
    help="Draft method of every arm. [default: none, or what a toggle needs]",
)
@click.option("--eager", is_flag=True, help="Run eagerly, without captured graphs, in every arm.")
@click.option(
    "--draft-load-format", type=click.Choice(["auto", "dummy"]), help="The draft's weights. [default: as the model's]"
)
@click.option("--synthetic-acceptance-rates", metavar="R,R,...", help="Accept drafts at these rates, one a position.")
@click.option(
    "--synthetic-acceptance-length",
    type=click.FloatRange(min=1),
    metavar="L",
    help="Accept drafts to this mean length.",
)
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="Deadline of a boot and of a probe.")
@click.option("-o", "--out", type=FOLDER, default=Path("results"), show_default=True, help="Folder of results.")
@click.option("--resume", metavar="RESULT", help="Go on with a stopped experiment; finished boots are kept.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.pass_context
def ab(
    ctx: click.Context,
    toggles: tuple[str, ...],
    arms: tuple[str, ...],
    suite_name: str,
    blocks: int | None,
    until: Until | None,
    controls: bool,
    seed: int,
    shape: str,
    max_num_batched_tokens: int | None,
    max_model_len: int | None,
    hidden_size: int | None,
    load_format: str,
    speculative: str | None,
    eager: bool,
    draft_load_format: str | None,
    synthetic_acceptance_rates: str | None,
    synthetic_acceptance_length: float | None,
    timeout: float | None,
    out: Path,
    resume: str | None,
    as_json: bool,
) -> int:
    """Measure arms against the baseline, in fresh boots, and judge.

    \b
    dsbench ab --toggle mhc_input_reuse
    dsbench ab --toggle mhc_residual_reuse --toggle mhc_input_reuse --suite kv
    dsbench ab --arm plain='speculative=none' --arm dspark='speculative=dspark'
    dsbench ab --toggle draft_logits_persistent=off --controls

    The first arm is the baseline, with every optimization off; several toggles run each alone and all
    together. Every boot is a fresh engine; the arms' boots alternate in blocks, in random order.
    Exit codes: 0 improved or equivalent, 1 regressed, 2 usage, 3 inconclusive, 4 void.
    """
    from dsbench.builds import parse_arm
    from dsbench.plan import plan_experiment
    from dsbench.store import create, load_plan, resolve
    from dsbench.suite import Timeouts, load_suite

    if resume:
        _refuse_beside_resume(ctx)
        folder = resolve(resume, out)
        return _run(load_plan(folder), folder, as_json)
    suite = load_suite(suite_name)
    if until:
        suite = suite.with_until(until)
    if timeout is not None:
        deadlines = Timeouts(boot=timeout, probe=timeout, stop=suite.timeouts.stop)
        suite = suite.model_copy(update={"timeouts": deadlines})
    if hidden_size is not None and load_format != "dummy":
        raise InputError(f"--hidden-size {hidden_size} does not fit the shipped weights: add --load-format dummy")
    changes = {
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        "hidden_size": hidden_size,
    }
    changed = {name: value for name, value in changes.items() if value is not None}
    dims = SHAPES[shape].with_changes(**changed)
    passed = {
        "draft_load_format": draft_load_format,
        **_synthetic(dims, synthetic_acceptance_rates, synthetic_acceptance_length),
    }
    passed = {name: value for name, value in passed.items() if value is not None}
    flags = {"dims": shape, "seed": seed, "load_format": load_format, **changed, **passed}
    plan = plan_experiment(
        toggles,
        suite,
        dims,
        arms=[parse_arm(text) for text in arms],
        speculative=speculative,
        engine_args=[
            *(part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", str(value))),
            *(["--eager"] if eager else []),
        ],
        blocks=blocks,
        seed=seed,
        controls=controls,
    )
    folder = create(plan, out)
    try:
        return _run(plan, folder, as_json)
    except InputError:  # the engine took none of it: leave nothing behind
        shutil.rmtree(folder)
        raise


def _synthetic(dims: Dims, rates: str | None, length: float | None) -> dict[str, str | float | None]:
    """Engine flags of synthetic acceptance; InputError for rates that cannot be."""
    if rates is None and length is None:
        return {}
    from impl.engine.acceptance import synthetic_conditional_rates

    try:
        given = None if rates is None else [float(rate) for rate in rates.split(",")]
        synthetic_conditional_rates(dims.draft_tokens, given, length)
    except ValueError as error:
        told = f"--synthetic-acceptance-rates '{rates}': " if rates is not None and length is None else ""
        raise InputError(f"{told}{error}") from None
    return {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": rates,
        "synthetic_acceptance_length": length,
    }


def _refuse_beside_resume(ctx: click.Context) -> None:
    """A stored plan is taken as it is; an option that would change it is an error, not silently dropped."""
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if given and name not in ("resume", "out", "as_json"):
            raise InputError(f"--resume takes the plan as it is: leave out {parameter.opts[-1]}")


def _run(plan: Plan, folder: Path, as_json: bool) -> int:
    from dsbench.execute import execute
    from dsbench.judge import judge
    from dsbench.report.table import print_report
    from dsbench.store import load_records, save_verdict

    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    try:
        with _terminate_like_interrupt():
            execute(plan, folder)
    except KeyboardInterrupt:
        click.echo(f"stopped; go on with: dsbench ab --resume {folder}", err=True)
        raise
    verdict = judge(plan, load_records(folder)[0])
    save_verdict(folder, verdict)
    if as_json:
        click.echo(verdict.model_dump_json(indent=2))
    else:
        print_report(plan, verdict)
        click.echo(f"stored in {folder}")
    return verdict.exit_code


@contextmanager
def _terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM, or a terminal that goes away, ends the running engine and marks its boot, as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
