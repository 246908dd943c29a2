"""KV profile: bytes by component, blocks, tokens and concurrency, as each rank wrote them; how its MoE layers run.

The most that serving allocated is known when a boot has served: where a rank keeps that figure up to date, it is read
once the engine has ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from dsbench.engines.engine import read_ranks
from dsbench.engines.secrets import redact
from dsbench.probes.boot import Boot, ProbeFailed, Reading

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
            name = profile_key(key)
            if name not in profile:
                raise ProbeFailed(f"kv_profile of rank {rank} has no '{name}'")
            value = profile[name]
            if value is not None and type(value) not in (int, float):
                said = redact(str(value))[:80]
                raise ProbeFailed(f"kv_profile of rank {rank} says {said!r} for '{name}', which is no number")
            if not (name == SERVED and grows(profile)):
                yield Reading(key, value, rank=rank)


def profile_key(metric: str) -> str:
    """Where a rank's profile has it: `blocks` of kv.blocks, `moe_sp_active` of moe.sp_active."""
    return metric.removeprefix("kv.").replace(".", "_")


def grows(profile: Mapping[str, Any]) -> bool:
    """Whether the rank goes on writing the bytes of serving."""
    return profile.get("stage") == SERVING


def at_end(profiles: Mapping[int, Mapping[str, Any]], boot_dir: Path) -> dict[int, dict[str, Any]]:
    """`profiles` as they were read, by rank, of those that `run` left a figure of, with that figure as it is now."""
    now = read_ranks(boot_dir, "kv_profile")
    return {
        rank: {**profile, SERVED: now.get(rank, {}).get(SERVED)} for rank, profile in profiles.items() if grows(profile)
    }
