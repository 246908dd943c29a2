"""Decode speed: streams of a fixed number of greedy tokens, from the first token of each to its last."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from statistics import median

from dsbench.probes.boot import Boot, Reading


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """tokens/s at each number of streams: the sum of the streams' own rates, median over the repeats."""
    config = boot.plan.probes.decode
    assert config is not None
    rng = random.Random(f"decode {boot.plan.seed} {boot.planned.block}")
    for streams in config.streams:
        rates = []
        for _ in range(config.repeats):
            prompts = [rng.choices(range(boot.vocab_size), k=config.prompt_tokens) for _ in range(streams)]
            timed = await asyncio.gather(*(boot.server.stream(prompt, config.tokens) for prompt in prompts))
            rates.append(sum(stream.decode_tps for stream in timed))
        yield Reading(f"decode.tps.c{streams}", median(rates), raw=rates)
