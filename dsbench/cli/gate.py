"""`dsbench gate`: hold a stored result against a policy, for CI."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsbench.cli.params import FILE, FOLDER, Function, group, out_option
from dsbench.errors import InputError

if TYPE_CHECKING:
    from dsbench.gate import Outcome
    from dsbench.policy import Policy
    from dsbench.records import ExperimentVerdict, Plan
    from dsbench.store import Result

SUMMARY = "GITHUB_STEP_SUMMARY"
TO_CHECK = ("baseline", "junit", "github")
"""Options that say with what, and how, a gate tells its outcome."""

gate_options: Callable[[Function], Function] = group(
    click.option(
        "--baseline",
        type=FOLDER,
        metavar="DIR",
        help="Also hold every arm against the newest comparable result stored here, of the main branch say.",
    ),
    click.option("--junit", type=FILE, metavar="FILE", help="Write the outcome as JUnit XML."),
    click.option("--github", is_flag=True, help=f"Print GitHub annotations; add a summary to ${SUMMARY}."),
)


@dataclass(frozen=True)
class Told:
    """The options of `gate_options`."""

    baseline: Path | None = None
    junit: Path | None = None
    github: bool = False


@click.command(short_help="Hold a stored result against a policy, for CI.")
@click.argument("result")
@click.option("--policy", "policy_file", type=FILE, metavar="FILE", help="Policy TOML. [default: the result's own]")
@gate_options
@click.option("--rerun-of", metavar="RESULT", help="RESULT is the second run after this one: what is open now fails.")
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
def gate(
    result: str,
    policy_file: Path | None,
    baseline: Path | None,
    junit: Path | None,
    github: bool,
    rerun_of: str | None,
    out: Path,
    as_json: bool,
) -> int:
    """Hold a stored result against a policy, for CI.

    \b
    dsbench gate results/ID --policy gate.toml --junit gate.xml

    The records are judged anew with the policy's margins; nothing is run and nothing stored is changed. A policy of
    no rules asks that primaries and guards do not regress. A metric that a rule names and the result lacks has
    failed. Exit codes: 0 passed, 1 failed, 2 usage, 3 run it once more, 4 void or nothing checked.
    """
    from dsbench.policy import Policy, load_policy
    from dsbench.store import Result, resolve

    stored = Result(resolve(result, out))
    for notice in stored.notices:
        click.echo(notice, err=True)
    policy = load_policy(policy_file) if policy_file else stored.plan.policy or Policy()
    if rerun_of:
        _check_rerun(stored, Result(resolve(rerun_of, out)))
    outcome = held(stored, policy, Told(baseline, junit, github), again=rerun_of is not None)
    tell(stored.plan, outcome, Told(baseline, junit, github), as_json)
    return outcome.exit_code


def held(stored: Result, policy: Policy, told: Told, *, again: bool = False) -> Outcome:
    """The outcome of one stored result; `again` says of one whose plan does not that it is a second run."""
    from dsbench.against import against
    from dsbench.gate import gate as hold
    from dsbench.gate import judged_under, under, without_baseline
    from dsbench.store import Result

    if not stored.records:
        raise InputError(f"{stored.folder} has no records: run it with dsbench ab --resume {stored.folder}")
    again = again or stored.plan.rerun_of is not None
    verdict = judged_under(stored.plan, stored.records, policy)
    if told.baseline is None or verdict.word == "void":
        return hold(verdict, policy, again=again)
    found = against(Result(stored.folder, plan=under(stored.plan, policy)), told.baseline)
    if not found.rows:
        return without_baseline(str(told.baseline), found.left_out)
    return hold(verdict, policy, again=again, against=found.rows, unmatched=found.left_out)


def gate_of(plan: Plan, policy_file: str | None) -> Plan | None:
    """The plan under the policy of `ab --gate`, which '' leaves without rules; None without a gate.

    A plan that has a policy keeps it unless another is named.
    """
    from dsbench.gate import under
    from dsbench.policy import Policy, load_policy

    if policy_file is None:
        return None
    policy = load_policy(Path(policy_file)) if policy_file else plan.policy or Policy()
    return under(plan, policy)


def gate_run(
    plan: Plan, folder: Path, told: Told, as_json: bool, begin: Callable[[str], tuple[Plan, Path]] | None = None
) -> int:
    """Run the plan and hold it against its policy; where that asks for it, run the one that `begin` gives as the second
    run of an experiment, too."""
    from dsbench.cli.ab import run
    from dsbench.cli.refused import nothing_left_if_refused
    from dsbench.store import Result

    resumed = begin is None
    while True:
        assert plan.policy is not None
        # What has run stays, whatever becomes of the gate.
        on = "dsbench ab --gate --resume"
        with nothing_left_if_refused(folder, on, "dsbench gate", kept=resumed):
            verdict = run(plan, folder, as_json=False, quiet=as_json, resume=on)
        outcome = held(Result(folder, plan=plan), plan.policy, told)
        if outcome.word != "rerun" or begin is None:
            break
        click.echo(f"{outcome.sentence} This is the second run.", err=True)
        (plan, folder), begin = begin(plan.id), None
    tell(plan, outcome, told, as_json, verdict)
    return outcome.exit_code


def check_junit(path: Path) -> None:
    """InputError for a file that cannot be written there, told before anything runs."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(f"--junit {path}: {there} {'cannot be written' if there.is_dir() else 'is no folder'}")


def check_baseline(folder: Path) -> None:
    """InputError for a folder without a stored result, told before anything runs."""
    from dsbench.store import plans_under

    if not plans_under(folder)[0]:
        raise InputError(f"--baseline {folder}: no stored result is there; keep those of the main branch in it")


def tell(plan: Plan, outcome: Outcome, told: Told, as_json: bool, verdict: ExperimentVerdict | None = None) -> None:
    """Print the outcome, and write what CI reads. With JSON, annotations go to stderr; GitHub reads both."""
    from dsbench.cli.table import print_json
    from dsbench.report.gate import print_outcome, to_json
    from dsbench.report.github import annotation_lines, step_summary
    from dsbench.report.junit import junit_xml

    if as_json:
        of_verdict = {"verdict": verdict.model_dump(mode="json")} if verdict else {}
        print_json({"result": plan.id, **of_verdict, "gate": to_json(outcome)})
    else:
        print_outcome(outcome)
    if told.junit:
        _write(told.junit, junit_xml(f"dsbench {plan.suite} {plan.id}", outcome))
    if told.github:
        for line in annotation_lines(outcome):
            click.echo(line, err=as_json)
        if summary := os.environ.get(SUMMARY):
            _write(Path(summary), step_summary(plan.id, outcome), append=True)


def _write(path: Path, text: str, append: bool = False) -> None:
    from dsbench.store import write_text

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not append:
            write_text(path, text)
            return
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}; dsbench gate tells it again") from None


def _check_rerun(second: Result, first: Result) -> None:
    def what(stored: Result) -> tuple[Any, ...]:
        plan = stored.plan
        return plan.suite, plan.blocks, plan.seed, [(arm.name, arm.build, arm.environment) for arm in plan.arms]

    if second.plan.id == first.plan.id or what(second) != what(first):
        raise InputError(f"--rerun-of {first.plan.id}: {second.plan.id} is no second run of that plan")
