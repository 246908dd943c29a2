"""The embedded engine: `python -m impl.serve` under the interpreter that runs the harness."""

from __future__ import annotations

import sys

from dsbench.records import Arm, Plan


def command(plan: Plan, arm: Arm) -> list[str]:
    """The command line of every boot of an arm; toggles travel in the environment."""
    until = ["--until", "profile"] if plan.until == "profile" else []
    return [sys.executable, "-m", "impl.serve", "--host", "127.0.0.1", "--port", "0", *flags(plan, arm), *until]


def flags(plan: Plan, arm: Arm) -> list[str]:
    """What plan and arm add to the command line of an engine that takes impl.serve's flags."""
    method = ["--speculative", arm.speculative] if arm.speculative is not None else []
    return [*plan.engine_args, *method, *arm.args]
