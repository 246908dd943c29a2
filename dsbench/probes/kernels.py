"""Kernel tests: a pytest selection under the arm's interpreter, one item a test id.

Settings, items and what failure looks like: dsbench/probes/checkout.py.
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
