"""The harness of a unit, `dsbench.pool.unit`, with the fake engine in place of the embedded one."""

import sys
from pathlib import Path

from dsbench.engines import embedded
from dsbench.engines.embedded import flags
from dsbench.pool.unit import main

FAKE = Path(__file__).resolve().parents[1] / "fake_engine.py"


def command(plan, arm):
    until = ["--until", "profile"] if plan.until == "profile" else []
    return [sys.executable, str(FAKE), *flags(plan, arm), *until]


embedded.command = command
sys.exit(main(Path(sys.argv[1])))
