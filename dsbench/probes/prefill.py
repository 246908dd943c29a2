"""Prefill speed: prompts of random token ids that no cache has seen, with one token of output.

Prompts: for each of `lengths` and repeat a fresh one of so many random ids, one after the other. Settings: lengths,
repeats. One greedy token is asked for.

Scorer: prompt tokens over the seconds from sending the request to the last byte of its answer, so that scheduling, the
first sample and HTTP are in it. Rows: `prefill.tps.N` of each length, median of the repeats, which `raw` holds: one
value a boot.

Failure looks like a lower rate at long prompts (attention, indexer, compressor) or at short ones (the cost of a step).
The probe fails where the engine counts other prompt tokens than were sent, and where its prefix cache had some of them.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from statistics import median

from dsbench.parse.prometheus import increase
from dsbench.probes.boot import Boot, ProbeFailed, Reading

CACHE_HITS = "vllm:prefix_cache_hits"


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """tokens/s of each length, from sending the request to its answer; median over the repeats.

    Boots of one block get the same prompts, so that a pair differs in its arm only; visits to running servers, whose
    caches live on and may be one, each get their own.
    """
    config = boot.plan.probes.prefill
    assert config is not None
    shared = boot.planned.block if boot.plan.engine != "endpoint" else f"visit {boot.planned.number}"
    rng = random.Random(f"prefill {boot.plan.seed} {shared}")
    before = await boot.server.page()
    for length in config.lengths:
        rates = []
        for _ in range(config.repeats):
            prompt = rng.choices(range(boot.vocab_size), k=length)
            answer = await boot.server.complete(prompt, max_tokens=1)
            if answer.prompt_tokens != length:
                raise ProbeFailed(f"sent {length} prompt tokens, the engine counted {answer.prompt_tokens}")
            rates.append(answer.prompt_tokens / answer.seconds)
        yield Reading(f"prefill.tps.{length}", median(rates), raw=rates)
    hits = increase(before, await boot.server.page(), CACHE_HITS)
    if hits:
        raise ProbeFailed(f"the prefix cache gave {hits:g} tokens of prompts that it cannot have seen: who else asks?")
