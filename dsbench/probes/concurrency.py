"""Concurrency: speed and acceptance of greedy requests on fixed texts, from one at a time to many.

Prompts: texts of the suite, shared out over the requests. Settings: streams (1, 2, 4, 8, 12), max_tokens (500, all of
them generated), repeats. `concurrency.tps.cN` is all tokens of N requests over the time from sending the first to the
last token of the last, as the source document counts (source_pr.md section 4.4); `concurrency.request_tps.cN` is the
median request's tokens over its own time. Both include the prefill and any waiting for a place in the batch.
`concurrency.accept.cN` is accepted over drafted tokens, from the counters around the requests (item `text greedy`).

Failure looks like a speed that stops growing at some concurrency in one arm only, or acceptance that falls with the
batch: drafts of one request judged by another's row.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from statistics import median

from dsbench.parse.prometheus import acceptance as counted
from dsbench.probe_settings import ConcurrencyProbe
from dsbench.probes.acceptance import GREEDY, checked, settled
from dsbench.probes.boot import Boot, Reading
from impl.engine.acceptance import AcceptanceCounts

ITEM = f"text {GREEDY}"


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """Speeds of each concurrency, medians over the repeats, and what the drafts did in all of them."""
    config = boot.plan.probes.concurrency
    assert config is not None
    for streams in config.streams:
        rates, each, accepted, drafted = [], [], 0, 0
        for _ in range(config.repeats):
            together, alone, counts = await _once(boot, config, streams)
            rates.append(together)
            each.append(alone)
            if counts is not None:
                accepted, drafted = accepted + counts.accepted, drafted + counts.drafted
        yield Reading(f"concurrency.tps.c{streams}", median(rates), raw=rates)
        yield Reading(f"concurrency.request_tps.c{streams}", median(each), raw=each)
        if config.acceptance:
            rate = accepted / drafted if drafted else None
            yield Reading(f"concurrency.accept.c{streams}", rate, item=ITEM, raw=[float(accepted), float(drafted)])


async def _once(boot: Boot, config: ConcurrencyProbe, streams: int) -> tuple[float, float, AcceptanceCounts | None]:
    """Tokens per second of all requests and of the median one, and the drafts where they are counted."""
    before = await boot.server.page() if config.acceptance else None
    prompts = [config.prompts[number % len(config.prompts)] for number in range(streams)]
    timed = await asyncio.gather(*(boot.server.stream(prompt, config.max_tokens) for prompt in prompts))
    tokens = sum(stream.tokens for stream in timed)
    seconds = max(stream.last_at for stream in timed) - min(stream.sent_at for stream in timed)
    each = median(stream.tokens / (stream.last_at - stream.sent_at) for stream in timed)
    counts = None
    if before is not None:
        counts = checked(boot, counted(before, await settled(boot, before, tokens)))
    return tokens / seconds, each, counts
