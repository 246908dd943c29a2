"""Decode speed: streams of a fixed number of greedy tokens, from the first token of each to its last.

Prompts: the suite's texts by turns, or `prompt_tokens` random token ids, from the plan's seed and the block, so that
the boots of one block ask the same. Settings: numbers of streams at one time, tokens (the end token is ignored),
repeats inside a boot, latency. Temperature 0; with random ids a draft foresees little of what follows.

Scorer: the clock at each network read. A stream's rate is its tokens after the first read over the time to its last
one. Rows: `decode.tps.cN`, the sum of the rates of N streams, median of the repeats, which `raw` holds: one value a
boot. With latency also, as medians over streams: `decode.ttft_ms` to the first read, `itl_ms` between reads, `tpot_ms`
a token, `step_ms` a piece.

Failure looks like a lower rate in every block, at one number of streams or at all; a step that takes longer shows in
`step_ms`, drafts that are rejected more often in `tpot_ms` alone. Streams that cannot be timed, since all came in one
read or something collects them, are asked AGAIN times and then fail the probe: no speed is made of them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from statistics import median

from dsbench.engines.client import BadAnswer, Stream
from dsbench.probe_settings import DecodeProbe
from dsbench.probes.boot import Boot, Reading

Prompt = str | list[int]

LATENCIES: dict[str, Callable[[Stream], list[float]]] = {
    "ttft_ms": lambda stream: [stream.ttft],
    "itl_ms": lambda stream: stream.gaps,
    "tpot_ms": lambda stream: [stream.tpot],
    "step_ms": lambda stream: [stream.step],
}
"""Seconds that one stream gives each latency; a reading is their median over the streams."""
AGAIN = 2
"""Times that streams are asked again where one cannot be timed; the prefix cache is warm for their first token then."""


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """tokens/s at each number of streams: the sum of the streams' own rates, median over the repeats.

    Latencies too where the suite asks for them: time to the first token, between pieces, a token, and a step.
    """
    config = boot.plan.probes.decode
    assert config is not None
    rng = random.Random(f"decode {boot.plan.seed} {boot.planned.block}")
    for streams in config.streams:
        rates = []
        latencies: dict[str, list[float]] = {name: [] for name in LATENCIES}
        for repeat in range(config.repeats):
            prompts = _prompts(config, repeat * streams, streams, rng, boot.vocab_size)
            timed = await _timed(boot, prompts, config.tokens)
            rates.append(sum(stream.decode_tps for stream in timed))
            for name, of_stream in LATENCIES.items():
                latencies[name].append(1000 * median(value for stream in timed for value in of_stream(stream)))
        yield Reading(f"decode.tps.c{streams}", median(rates), raw=rates)
        if config.latency:
            for name, values in latencies.items():
                yield Reading(f"decode.{name}.c{streams}", median(values), raw=values)


async def _timed(boot: Boot, prompts: Sequence[Prompt], tokens: int) -> list[Stream]:
    """The streams of one repeat. Where one of them cannot be timed they are asked again: a busy machine brings a short
    stream in one piece now and then, a proxy that collects does so every time. BadAnswer of the last try."""
    for left in range(AGAIN, -1, -1):
        timed = await asyncio.gather(*(boot.server.stream(prompt, tokens) for prompt in prompts))
        try:
            if all(stream.decode_tps > 0 for stream in timed):
                break
        except BadAnswer:
            if not left:
                raise
    return timed


def _prompts(config: DecodeProbe, first: int, streams: int, rng: random.Random, vocab_size: int) -> list[Prompt]:
    """What `streams` streams begin with: the suite's texts by turns from number `first` on, else random token ids."""
    if config.prompts:
        return [config.prompts[i % len(config.prompts)] for i in range(first, first + streams)]
    return [rng.choices(range(vocab_size), k=config.prompt_tokens) for _ in range(streams)]
