"""`dsbench ab`: plan, execute, judge, and show one experiment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dsbench.cli.experiment import Asked
from dsbench.cli.gate import TO_CHECK, Told, gate_options
from dsbench.cli.params import BLOCKS, arm_options, build_options, out_option, reuse_option, suite_options
from dsbench.cli.refused import nothing_left_if_refused
from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.records import ExperimentVerdict, Plan


@click.command(short_help="Measure arms against the baseline, in fresh boots, and judge.")
@arm_options
@suite_options
@click.option("--blocks", type=BLOCKS, metavar="N", help="Blocks, in place of the suite's.")
@click.option(
    "--until-resolved",
    type=BLOCKS,
    metavar="MAX",
    help="Stop at the first look that resolves the primary and all guards, after at most MAX blocks; all looks "
    "together err in 5 %.",
)
@build_options
@out_option
@reuse_option
@click.option("--resume", metavar="RESULT", help="Go on: finished boots are kept, those cut off or killed run again.")
@click.option(
    "--pool",
    metavar="ray[:ADDRESS]",
    help="Spread the blocks over the hosts of a running Ray cluster, each whole on one. Needs the extra `ray`.",
)
@click.option(
    "--projected",
    is_flag=False,
    flag_value="sm120:2",
    metavar="[PLATFORM:TP]",
    help="Boot nothing: project the arms' bytes at full size. [without a value: sm120:2]",
)
@click.option(
    "--gate",
    "policy_file",
    is_flag=False,
    flag_value="",
    metavar="[POLICY]",
    help="Hold the verdict against a policy TOML and exit as `dsbench gate` does. [without a value: no rules]",
)
@gate_options
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@click.pass_context
def ab(
    ctx: click.Context,
    /,
    blocks: int | None,
    until_resolved: int | None,
    projected: str | None,
    out: Path,
    reuse_baseline: str | None,
    resume: str | None,
    pool: str | None,
    policy_file: str | None,
    baseline: Path | None,
    junit: Path | None,
    github: bool,
    as_json: bool,
    **asked: Any,
) -> int:
    """Measure arms against the baseline, in fresh boots, and judge.

    \b
    dsbench ab --toggle mhc_input_reuse
    dsbench ab --toggle mhc_residual_reuse --toggle mhc_input_reuse --suite kv --matrix ladder
    dsbench ab --arm plain='speculative=none' --arm dspark='speculative=dspark'
    dsbench ab --a-python before/.venv --b-python after/.venv
    dsbench ab --toggle draft_logits_persistent=off --controls

    The first arm is the baseline, with every optimization off; several toggles run each alone and all
    together, or as --matrix says. Every boot is a fresh engine; the arms' boots alternate in blocks, in
    random order. Exit codes: 0 improved or equivalent, 1 regressed, 2 usage, 3 inconclusive, 4 void.
    """
    from dsbench.cli.gate import check_baseline, check_junit, gate_of, gate_run
    from dsbench.fingerprint import fingerprint
    from dsbench.floors import snapshot
    from dsbench.reuse import copy_records, with_baseline_of
    from dsbench.store import create, load_plan, resolve

    if pool is not None:
        _take_pool(pool, reuse_baseline, projected)
    told = Told(baseline, junit, github)
    if policy_file is None and told != Told():
        raise InputError("--baseline, --junit and --github tell of a gate: add --gate, or --gate POLICY.toml")
    if junit is not None:
        check_junit(junit)
    if projected is not None:
        if policy_file is not None:
            raise InputError("--gate holds what was measured against a policy: leave out --projected")
        from dsbench.cli.ladder import ab_projected

        given = ctx.get_parameter_source("shape") == ParameterSource.COMMANDLINE
        return ab_projected(projected, asked, given, as_json)
    if resume is not None:
        _refuse_beside_resume(ctx)
        folder = resolve(resume, out)
        plan = load_plan(folder)
        if pool and plan.pool is None:
            raise InputError(f"--resume {resume} --pool: its boots ran on this machine alone; leave out --pool")
        if (
            plan.pool is None
            and plan.fingerprint
            and (changed := plan.fingerprint.changes(fingerprint(plan.baseline.python)))
        ):
            raise InputError(f"--resume {resume}: the machine has changed ({', '.join(changed)}): start anew")
        gated = gate_of(plan, policy_file)
        if gated is None:
            return run(plan, folder, as_json).exit_code
        return gate_run(gated, folder, told, as_json)
    if blocks is not None and until_resolved is not None:
        raise InputError("--blocks and --until-resolved: the number of blocks is fixed, or it is not; give one")
    if reuse_baseline is not None and until_resolved is not None:
        raise InputError("--reuse-baseline and --until-resolved: boots at other times cannot be added look by look")
    source = None if reuse_baseline is None else resolve(reuse_baseline, out)

    def begin(rerun_of: str | None = None) -> tuple[Plan, Path]:
        """A plan and its folder, of a first run or of the second run of an experiment."""
        plan = Asked(**asked).plan(blocks=blocks, until_resolved=until_resolved, here=not pool)
        plan = _pooled(plan, out) if pool else snapshot(plan, out)
        plan = with_baseline_of(plan, source) if source else plan
        plan = (gate_of(plan, policy_file) or plan).model_copy(update={"rerun_of": rerun_of})
        folder = create(plan, out)
        if source:
            copy_records(plan, source, folder)
        return plan, folder

    if baseline is not None:
        check_baseline(baseline)
    plan, folder = begin()
    if plan.policy is not None:
        return gate_run(plan, folder, told, as_json, begin)
    with nothing_left_if_refused(folder, "dsbench ab --resume", "dsbench judge"):
        verdict = run(plan, folder, as_json)
    if asked["matrix"] == "ladder" and not as_json and plan.engine == "embedded" and verdict.word != "void":
        from dsbench.cli.ladder import after_matrix

        after_matrix(asked["toggles"], folder, out)
    return verdict.exit_code


def _take_pool(pool: str, reuse_baseline: str | None, projected: str | None) -> None:
    """The pool's address goes where Ray itself looks for it."""
    from dsbench.pool.ray_nodes import VARIABLE, parse_pool

    for option, given in (("--reuse-baseline", reuse_baseline), ("--projected", projected)):
        if given is not None:
            raise InputError(f"--pool {pool}: leave out {option}, which runs no boots on the hosts of a pool")
    if address := parse_pool(pool):
        os.environ[VARIABLE] = address


def _pooled(plan: Plan, out: Path) -> Plan:
    """The plan for the hosts that there are now: their fingerprint and floors, where they are all alike."""
    from dsbench.floors import snapshot
    from dsbench.pool.ray_nodes import RayPool

    if plan.engine not in ("embedded", "vllm"):
        raise InputError(f"--pool with --engine {plan.engine}: its hosts are those of its own commands or URLs")
    with RayPool(plan) as hosts:
        machines = [node.fingerprint for node in hosts.nodes()]
    plan = plan.model_copy(update={"pool": "ray"})
    if len(set(map(str, machines))) == 1:
        return snapshot(plan, out, machine=machines[0])
    told = f"the {len(machines)} hosts of the pool are not alike: no floors hold for all of them"
    return plan.model_copy(update={"notes": [*plan.notes, told]})


def _refuse_beside_resume(ctx: click.Context) -> None:
    """A stored plan is taken as it is; an option that would change it is an error, not silently dropped."""
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) == ParameterSource.COMMANDLINE
        if given and name not in ("resume", "out", "as_json", "pool", "policy_file", *TO_CHECK):
            raise InputError(f"--resume takes the plan as it is: leave out {parameter.opts[-1]}")


def run(
    plan: Plan, folder: Path, as_json: bool, quiet: bool = False, resume: str = "dsbench ab --resume"
) -> ExperimentVerdict:
    """Say what differs, run what is left of the plan, judge it, store the verdict and show it unless `quiet`.

    A run that was stopped, or in which engines were killed, ends with the command that goes on: `resume` and the
    folder.
    """
    from dsbench.killed import to_repeat
    from dsbench.report.table import declared_lines, print_report
    from dsbench.store import load_records, save_verdict

    for line in (*declared_lines(plan), *(f"note: {note}" for note in plan.notes)):
        click.echo(line, err=True)
    try:
        with terminate_like_interrupt():
            verdict = _judged(plan, folder)
    except KeyboardInterrupt:
        click.echo(f"stopped; go on with: {resume} {quote(str(folder))}", err=True)
        raise
    save_verdict(folder, verdict)
    if not quiet:
        if as_json:
            click.echo(verdict.model_dump_json(indent=2))
        else:
            print_report(plan, verdict)
            click.echo(f"stored in {folder}")
    if verdict.word == "void" and (again := to_repeat(plan, load_records(folder)[0])):
        boots = ", ".join(map(str, sorted({ended.boot for ended, _ in again})))
        told = f"engines were killed: boots {boots} are repeated, once, by"
        click.echo(f"{told}: {resume} {quote(str(folder))}", err=True)
    return verdict


def _judged(plan: Plan, folder: Path) -> ExperimentVerdict:
    """The verdict after the last block, or after the first look that resolves it."""
    from dsbench.judge import judge, resolved
    from dsbench.looks import at_look, looks_reached
    from dsbench.store import load_records

    for look in range(1, len(plan.looks)):
        reached = looks_reached(plan, load_records(folder)[0])
        if reached > look:
            continue
        # A look that has all its boots knows nothing of a later boot that was cut off.
        if reached < look:
            _execute(at_look(plan, look), folder)
        verdict = judge(plan, load_records(folder)[0])
        click.echo(f"look {look} of {len(plan.looks)}: {verdict.word}", err=True)
        if resolved(verdict):
            return verdict
    _execute(plan, folder)
    return judge(plan, load_records(folder)[0])


def _execute(plan: Plan, folder: Path) -> None:
    """On this machine, or over the hosts of the plan's pool."""
    if plan.pool is None:
        from dsbench.execute import execute

        execute(plan, folder)
        return
    from dsbench.pool.ray_nodes import RayPool
    from dsbench.pool.spread import spread

    spread(plan, folder, RayPool(plan))


@contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM, or a terminal that goes away, ends the running engine and marks its boot, as Ctrl-C does.

    What is ignored stays so: under nohup a run outlives its terminal.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
