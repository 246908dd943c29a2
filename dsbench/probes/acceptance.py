"""Acceptance: what the drafts did on fixed prompts, from the differences of the server's counters."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

from dsbench.parse.prometheus import Page, increase
from dsbench.parse.prometheus import acceptance as counted
from dsbench.probes.boot import Boot, ProbeFailed, Reading
from impl.engine.acceptance import AcceptanceCounts

GREEDY = "greedy"
SAMPLED = "t=1"
KINDS = ("prose", "structured")

GENERATED = "vllm:generation_tokens"
SETTLE_S = 2.0
"""Longest wait for counters that are written after the answer."""


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """Ratios by item: kind of text and temperature, with the position `k0`, `k1`, ... where there is one.

    `raw` holds both counts of each ratio. Boots of one block use the same seeds.
    """
    config = boot.plan.probes.acceptance
    assert config is not None
    rng = random.Random(f"acceptance {boot.plan.seed} {boot.planned.block}")
    for kind in KINDS:
        prompts: Sequence[str] = getattr(config, kind)
        for temperature, name, repeats in ((0.0, GREEDY, 1), (1.0, SAMPLED, config.samples)):
            jobs = [(prompt, rng.getrandbits(32)) for prompt in prompts for _ in range(repeats)]
            counts = await _measure(boot, jobs, config.tokens, config.together, temperature)
            for reading in _readings(f"{kind} {name}", counts):
                yield reading


async def _measure(
    boot: Boot, jobs: list[tuple[str, int]], tokens: int, together: int, temperature: float
) -> AcceptanceCounts:
    """Run the requests, at most `together` at a time, and read the counters around them."""
    waiting, generated = list(reversed(jobs)), 0
    before = await boot.server.page()

    async def work() -> int:
        done = 0
        while waiting:
            prompt, seed = waiting.pop()
            answer = await boot.server.complete(
                prompt, tokens, ignore_eos=False, temperature=temperature, seed=seed if temperature else None
            )
            done += answer.completion_tokens
        return done

    generated = sum(await asyncio.gather(*(work() for _ in range(together))))
    after = await settled(boot, before, generated)
    counts = counted(before, after)
    if counts is None:
        raise ProbeFailed("the server's /metrics count no drafts: is speculation on?")
    return counts


async def settled(boot: Boot, before: Page, generated: int) -> Page:
    """The page that counts all the tokens of this probe's requests, and no others."""
    for wait in (0.0, 0.05, 0.2, 0.5, SETTLE_S):
        await asyncio.sleep(wait)
        after = await boot.server.page()
        rise = increase(before, after, GENERATED)
        if rise is not None and rise >= generated:
            break
    if rise != generated:
        raise ProbeFailed(f"the requests got {generated} tokens, the server counted {rise}: someone else asked too?")
    return after


def _readings(item: str, counts: AcceptanceCounts) -> list[Reading]:
    reached = (counts.drafts, *counts.accepted_per_position)
    readings = [
        _ratio("accept.rate", item, counts.accepted, counts.drafted),
        _ratio("accept.length", item, counts.drafts + counts.accepted, counts.drafts),
    ]
    for k, accepted in enumerate(counts.accepted_per_position):
        readings.append(_ratio("accept.per_position", f"{item} k{k}", accepted, counts.drafts))
        readings.append(_ratio("accept.conditional", f"{item} k{k}", accepted, reached[k]))
    return readings


def _ratio(metric: str, item: str, above: int, below: int) -> Reading:
    return Reading(metric, above / below if below else None, item=item, raw=[float(above), float(below)])
