"""Kernel tests: a pytest selection under the arm's interpreter, one item a test id.

Asked: nothing of the engine, which has stopped. Settings: selection (by default the tests of our own operations),
checkout, timeout, map_file. The run has the arm's variables and toggles.

Scorer: pytest's own report, and dsbench/score/pytest_ids.py, which pairs the arms' ids. Rows: one item a test id of
`kernels.passed`: 1 passed, 0 red, none where it was skipped, with status and reason as text.

Failure looks like an id that is red in the candidate and was not in the baseline: `regressed`, whatever else passed.
Red in both arms, or with a parent case that is red in both, is inherited. Tests that need a GPU are skipped without
one, which is no pass. A selection that cannot run, or of which nothing is collected, fails the probe
(dsbench/probes/checkout.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from dsbench.probes.boot import Boot, Reading
from dsbench.probes.checkout import run_selection


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """One reading a test id."""
    config = boot.plan.probes.kernels
    assert config is not None
    async for reading in run_selection(boot, config):
        yield reading
