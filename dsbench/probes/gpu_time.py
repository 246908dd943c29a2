"""GPU time: what a decode step costs the GPU itself, whatever the host does, from a trace that the server writes.

Streams of a fixed number of greedy tokens run once untraced and once between the server's `/start_profile` and
`/stop_profile`. The reading is the time a step in which a kernel or a copy ran: where the host is the bottleneck and
decode speed swings with it, this figure does not. A server without the profiler fails the probe.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

from dsbench.engines.engine import TRACES
from dsbench.parse.trace import BadTrace, DecodeSteps, decode_steps
from dsbench.probes.boot import Boot, ProbeFailed, Reading

LEAST_STEPS = 4


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """Milliseconds a step at each number of streams, of the slowest rank; `raw`: busy, from start to start, steps."""
    config = boot.plan.probes.gpu_time
    assert config is not None
    rng = random.Random(f"gpu_time {boot.plan.seed} {boot.planned.block}")
    for streams in config.streams:
        prompts = [rng.choices(range(boot.vocab_size), k=config.prompt_tokens) for _ in range(streams)]
        await _stream(boot, prompts, config.tokens)
        before = _traces(boot)
        await boot.server.tell("/start_profile")
        await _stream(boot, prompts, config.tokens)
        await boot.server.tell("/stop_profile")
        steps = await asyncio.to_thread(_read, sorted(_traces(boot) - before), streams)
        slowest = max(steps, key=lambda found: found.busy_ms)
        raw = [slowest.busy_ms, slowest.span_ms, float(slowest.steps)]
        yield Reading(f"decode.gpu_ms.c{streams}", slowest.busy_ms, raw=raw)


async def _stream(boot: Boot, prompts: list[list[int]], tokens: int) -> None:
    await asyncio.gather(*(boot.server.stream(prompt, tokens) for prompt in prompts))


def _traces(boot: Boot) -> set[Path]:
    return set((boot.folder / TRACES).glob("*.pt.trace.json*"))


def _read(paths: list[Path], streams: int) -> list[DecodeSteps]:
    """One rank a trace. ProbeFailed without any, or with too few steps to tell a time of."""
    if not paths:
        raise ProbeFailed(f"the server's profiler wrote nothing into the boot's '{TRACES}' folder")
    try:
        found = [decode_steps(path, streams) for path in paths]
    except BadTrace as error:
        raise ProbeFailed(str(error)) from None
    if (fewest := min(steps.steps for steps in found)) < LEAST_STEPS:
        raise ProbeFailed(f"a trace has {fewest} neighbouring decode steps, {LEAST_STEPS} are needed: ask more tokens")
    return found
