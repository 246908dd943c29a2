"""Warm: the requests of the clock's probes, untimed, for engines that compile a kernel when it is first used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from dsbench.probes import decode, prefill
from dsbench.probes.boot import Boot, Probe, Reading

CLOCKED: dict[str, Probe] = {"prefill": prefill.run, "decode": decode.run}
OTHER_PROMPTS = 1_000_003
"""Added to the plan's seed: a prefix cache must not meet these prompts again."""


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """Yields nothing."""
    config = boot.plan.probes.warm
    assert config is not None
    other = replace(boot, plan=boot.plan.model_copy(update={"seed": boot.plan.seed + OTHER_PROMPTS}))
    for _ in range(config.rounds):
        for name, probe in CLOCKED.items():
            if name in boot.plan.probes.names():
                async for _reading in probe(other):
                    pass
    return
    yield  # an asynchronous generator, as every probe
