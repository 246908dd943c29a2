"""The embedded engine: `python -m impl.serve` under the interpreter that runs the harness."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from dsbench.engines.engine import Command, ReadBack, Running, boot_environment, read_ranks
from dsbench.engines.server import Server
from dsbench.records import Arm, Plan


class Embedded:
    """Boots of our own engine; it writes its files itself."""

    def __init__(self, plan: Plan, command_line: Command | None = None) -> None:
        self.plan = plan
        self._command = command_line or command

    def boot(self, arm: Arm, boot_dir: Path) -> Server:
        variables = {**environment(arm), **boot_environment(arm, boot_dir)}
        return Server(self._command(self.plan, arm), variables, boot_dir, stop_s=self.plan.timeouts.stop)

    def read_back(self, arm: Arm, running: Running, url: str | None) -> ReadBack:
        return ReadBack(
            model=str(self.plan.dims["name"]),
            conditions=read_ranks(running.boot_dir, "conditions"),
            kv_profiles=read_ranks(running.boot_dir, "kv_profile"),
        )


def command(plan: Plan, arm: Arm) -> list[str]:
    """The command line of every boot of an arm; toggles travel in the environment."""
    until = ["--until", "profile"] if plan.until == "profile" else []
    python = arm.python or sys.executable
    return [python, "-P", "-m", "impl.serve", "--host", "127.0.0.1", "--port", "0", *flags(plan, arm), *until]


def flags(plan: Plan, arm: Arm) -> list[str]:
    """What plan and arm add to the command line of an engine that takes impl.serve's flags."""
    method = ["--speculative", arm.speculative] if arm.speculative is not None else []
    return [*plan.engine_args, *method, *arm.args]


def environment(arm: Arm) -> dict[str, str]:
    """Lets the engine find the `impl` that this harness would import, and never one of the current folder.

    An arm with an interpreter of its own finds what is installed there instead.
    """
    if arm.python:
        return {"PYTHONPATH": ""}
    spec = importlib.util.find_spec("impl")
    places = list(spec.submodule_search_locations or []) if spec else []
    path = [*filter(None, [os.environ.get("PYTHONPATH", "")]), *(str(Path(place).parent) for place in places)]
    return {"PYTHONPATH": os.pathsep.join(path)}
