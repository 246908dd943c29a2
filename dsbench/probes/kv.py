"""KV profile: bytes by component, blocks, tokens and concurrency, as each rank wrote them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dsbench.probes.boot import Boot, ProbeFailed, Reading


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """One reading a metric and rank; a value the rank does not know stays None."""
    if not boot.kv_profiles:
        raise ProbeFailed("no rank wrote a kv_profile file")
    for rank, profile in boot.kv_profiles.items():
        for key in boot.plan.probes.metrics("kv"):
            name = key.removeprefix("kv.")
            if name not in profile:
                raise ProbeFailed(f"kv_profile of rank {rank} has no '{name}'")
            yield Reading(key, profile[name], rank=rank)
