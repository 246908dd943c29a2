"""KV profile: bytes by component, blocks, tokens and concurrency, as each rank wrote them.

The most that serving allocated is known when a boot has served: where a rank keeps that figure up to date, it is read
once the engine has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from dsbench.engines.engine import read_ranks
from dsbench.probes.boot import Boot, ProbeFailed, Reading
from dsbench.records import Plan

SERVED = "runtime_peak_bytes"
SERVING = "serving"
"""`stage` of a profile that grows while requests are served."""
WRITTEN_S = 2.0
"""After the last request, until a rank has written what it cost."""


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """One reading a metric and rank; a value the rank does not know stays None."""
    if not boot.kv_profiles:
        raise ProbeFailed("no rank wrote a kv_profile file")
    for rank, profile in boot.kv_profiles.items():
        for key in boot.plan.probes.metrics("kv"):
            name = key.removeprefix("kv.")
            if name not in profile:
                raise ProbeFailed(f"kv_profile of rank {rank} has no '{name}'")
            if not (name == SERVED and grows(profile)):
                yield Reading(key, profile[name], rank=rank)


def grows(profile: Mapping[str, Any]) -> bool:
    """Whether the rank goes on writing the bytes of serving."""
    return profile.get("stage") == SERVING


def at_end(plan: Plan, boot_dir: Path) -> Iterator[Reading]:
    """The readings that `run` left for the end of the boot."""
    for rank, profile in read_ranks(boot_dir, "kv_profile").items():
        if grows(profile) and f"kv.{SERVED}" in plan.probes.metrics("kv"):
            yield Reading(f"kv.{SERVED}", profile.get(SERVED), rank=rank)
