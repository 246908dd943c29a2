"""The embedded engine: `python -m impl.serve` under the interpreter that runs the harness."""

from __future__ import annotations

import sys

from dsbench.records import Plan


def command(plan: Plan) -> list[str]:
    """The command line of every boot of a plan; toggles travel in the environment."""
    until = ["--until", "profile"] if plan.until == "profile" else []
    return [sys.executable, "-m", "impl.serve", "--host", "127.0.0.1", "--port", "0", *plan.engine_args, *until]
