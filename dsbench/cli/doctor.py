"""`dsbench doctor`: can this machine run an experiment, and what to mend."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click


@click.command(short_help="Check whether this machine can run an experiment.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default="results",
    show_default=True,
    help="Folder that experiments are written to.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(out: Path, as_json: bool) -> int:
    """Check whether this machine can run an experiment.

    Each finding is ok, absent (not needed), advice (it runs, but the figures suffer) or fail (it cannot run), with
    what to do about it. Nothing is written. Exit code 1 if anything fails.
    """
    from dsbench import doctor as checks
    from dsbench.cli.table import print_json, print_note

    findings = []
    for finding in checks.examine(out):
        findings.append(finding)
        if not as_json:
            print_note(f"{finding.status:<7} {finding.check:<15} {finding.found}", 24)
            if finding.mend:
                print_note(f"{'':<23} -> {finding.mend}", 4)
    failed = [finding.check for finding in findings if finding.status == "fail"]
    if as_json:
        print_json({"ready": not failed, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        click.echo(f"not ready: {', '.join(failed)}" if failed else "ready")
    return 1 if failed else 0
