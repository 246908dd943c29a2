"""Unit tests: a second pytest selection, of what is around the kernels, one item a test id.

Asked: nothing of the engine, which has stopped. Settings: selection (by default our tests of scheduler, pages and
sampler), checkout, timeout, map_file. The run has the arm's variables and toggles.

Scorer: as of the kernel tests, pytest's report and then dsbench/score/pytest_ids.py. Rows: one item a test id of
`unit.passed`: 1 passed, 0 red, none where it was skipped, with status and reason as text.

Failure looks like an id that is newly red: `regressed`. Red here beside sound kernels points to what calls them:
shapes, lengths, pages, seeds. A module that one arm alone cannot import is told as not collected
(dsbench/probes/checkout.py).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from dsbench.probes.boot import Boot, Reading
from dsbench.probes.checkout import run_selection


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """One reading a test id."""
    config = boot.plan.probes.unit
    assert config is not None
    async for reading in run_selection(boot, config):
        yield reading
