"""`dsbench` with the fake engine in place of the embedded one, for tests of the commands as processes."""

import sys
from pathlib import Path

from dsbench.cli import main
from dsbench.engines import embedded
from dsbench.engines.embedded import flags
from dsbench.records import Arm, Plan


def command(plan: Plan, arm: Arm) -> list[str]:
    until = ["--until", "profile"] if plan.until == "profile" else []
    return [sys.executable, str(Path(__file__).with_name("fake_engine.py")), *flags(plan, arm), *until]


embedded.command = command
main()
