"""Long context: decode speed after long prompts, from the first token of the reply to its last.

Prompts: random token ids, the same in every boot of a block, so that lengths are exact whatever the tokenizer.
Settings: lengths (32,768 and 65,536), tokens of output (2,048, all of them generated), repeats. Temperature 1 with
seeds, one request at a time. `long_context.tps.N` leaves out everything before the first token, prefill included, as
the source document does (source_pr.md section 4.8); with speculation it depends on what the drafts make of random text.

Failure looks like a speed that falls with the length in one arm only: a step whose cost grows with the context.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from statistics import median

from dsbench.probes.boot import Boot, Reading


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """tokens/s after prompts of each length, median over the repeats."""
    config = boot.plan.probes.long_context
    assert config is not None
    boot.check_length(config.longest())
    rng = random.Random(f"long_context {boot.plan.seed} {boot.planned.block}")
    for length in config.lengths:
        rates = []
        for _ in range(config.repeats):
            prompt = rng.choices(range(boot.vocab_size), k=length)
            timed = await boot.server.stream(prompt, config.tokens, temperature=1.0, seed=rng.getrandbits(32))
            rates.append(timed.decode_tps)
        yield Reading(f"long_context.tps.{length}", median(rates), raw=rates)
