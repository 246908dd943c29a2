"""Tests of an arm's own checkout: where it is, one pytest run in it, and a reading for every test id.

The run is a process of its own under the arm's interpreter, with the arm's variables and DSBENCH_TOGGLES, after the
engine has stopped: a server that holds the card's memory would leave kernel tests no room. An item is a test id:
1 passed, 0 red, without a value where it was set aside; `text` is the status and its reason. A module that cannot be
collected is an item by its path. The verdict pairs ids, see dsbench/score/pytest_ids.py; a selection that cannot run at
all, or nothing collected, fails the probe.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from dsbench.engines import embedded
from dsbench.errors import InputError
from dsbench.probes.boot import Boot, ProbeFailed, Reading
from dsbench.pytest_run import NotRun, PytestRun, places, run_pytest
from dsbench.pytest_settings import PytestProbe
from dsbench.records import Arm, Plan
from dsbench.score.pytest_report import texts

PACKAGES = {"embedded": "impl", "vllm": "vllm"}
"""What an engine is imported as."""
ASK_S = 60
_WHERE = """
import importlib.util, sys
found = importlib.util.find_spec(sys.argv[1])
print(next(iter(found.submodule_search_locations or []), "") if found else "")
"""


async def run_selection(boot: Boot, settings: PytestProbe) -> AsyncIterator[Reading]:
    """One reading a test id, and one a module that could not be collected."""
    arm, plan = boot.plan.arm(boot.planned.arm), boot.plan
    run = await asyncio.to_thread(_asked, plan, arm, settings)
    try:
        report = await run_pytest(run, boot.folder / f"{settings.name}.xml", boot.folder / f"{settings.name}.log")
    except (NotRun, InputError) as error:
        raise ProbeFailed(str(error)) from None
    if not (report.cases or report.collection):
        raise ProbeFailed(f"no tests were collected from {' '.join(run.selection)}")
    (metric,) = settings.metrics()
    for item, text in texts(report).items():
        case = report.cases.get(item)
        value = None if case and not (case.green or case.red) else int(case is not None and case.green)
        yield Reading(metric, value, item=item, text=text)


def _asked(plan: Plan, arm: Arm, settings: PytestProbe) -> PytestRun:
    """ProbeFailed where there is no interpreter, no selection or no checkout to run it in."""
    if plan.engine not in PACKAGES and arm.python is None:
        raise ProbeFailed(f"nothing tells which interpreter runs {plan.engine} {arm.name}: use dsbench tests")
    python = arm.python or sys.executable
    own = embedded.environment(arm) if plan.engine == "embedded" else {}
    variables = {**own, **arm.env, "DSBENCH_TOGGLES": arm.environment}
    selection = settings.chosen(plan.engine)
    if not selection:
        raise ProbeFailed(f"probes.{settings.name}.selection names no tests, and only our own engine has usual ones")
    named = settings.folder(arm.name)
    checkout = named.resolve() if named is not None else _around(PACKAGES.get(plan.engine, ""), python, variables)
    missing = [place for place in places(selection) if not (checkout / place).exists()]
    if len(missing) == len(places(selection)):
        raise ProbeFailed(
            f"no {missing[0]} in {checkout.name or checkout}, which is what {arm.name} imports: an installed package "
            f"has no tests; name a checkout in probes.{settings.name}.checkout"
        )
    return PytestRun(python, checkout, selection, settings.timeout, variables)


def _around(package: str, python: str, variables: dict[str, str]) -> Path:
    """The folder that holds a package, as an interpreter would import it."""
    if not package:
        raise ProbeFailed("nothing tells where the tests are: give the probe a checkout")
    try:
        asked = subprocess.run(
            [python, "-P", "-c", _WHERE, package],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=ASK_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ProbeFailed(f"{python} does not tell where its {package} is: {error}") from None
    found = asked.stdout.strip()
    if not found:
        raise ProbeFailed(f"{python} has no {package}: give the probe a checkout")
    return Path(found).parent
