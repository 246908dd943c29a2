"""Acceptance: what the drafts did on fixed prompts, from the differences of the server's counters.

Prompts: prose and structured text of the suite, or random token ids where the engine has no tokenizer, greedy and at
temperature 1 with seeds. Settings: tokens, samples, together. A length is 1 + accepted / drafts, at most K + 1 with K
drafts a round; every position up to K is an item `prose t=1 k0`. Counters that cannot be true fail the probe; what
is too good to be true is judged by dsbench/sanity.py. Failure looks like a position whose rate falls, or rises to
where nothing is ever rejected.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

from dsbench.parse.prometheus import Page, increase
from dsbench.parse.prometheus import acceptance as counted
from dsbench.probes.boot import Boot, ProbeFailed, Reading
from impl.engine.acceptance import AcceptanceCounts

Prompt = str | list[int]
GREEDY = "greedy"
SAMPLED = "t=1"
KINDS = ("prose", "structured")
"""Of text."""
RANDOM = "random"

GENERATED = "vllm:generation_tokens"
SETTLE_S = 2.0
"""Longest wait for counters that are written after the answer."""


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """Ratios by item: kind of prompt and temperature, with the position `k0`, `k1`, ... where there is one.

    `raw` holds both counts of each ratio. Boots of one block use the same seeds, all boots the same prompts.
    """
    config = boot.plan.probes.acceptance
    assert config is not None
    rng = random.Random(f"acceptance {boot.plan.seed} {boot.planned.block}")
    kinds: dict[str, Sequence[Prompt]] = {kind: getattr(config, kind) for kind in KINDS}
    if config.lengths:
        kinds[RANDOM] = random_prompts(config.lengths, boot.vocab_size, boot.plan.seed)
    for kind, prompts in kinds.items():
        if not prompts:
            continue
        for temperature, name, repeats in ((0.0, GREEDY, 1), (1.0, SAMPLED, config.samples)):
            jobs = [(prompt, rng.getrandbits(32)) for prompt in prompts for _ in range(repeats)]
            counts = await _measure(boot, jobs, config.tokens, config.together, temperature)
            for reading in _readings(f"{kind} {name}", counts):
                yield reading


def random_prompts(lengths: Sequence[int], vocab_size: int, seed: int) -> list[list[int]]:
    """A prompt of token ids of each length, the same in every boot of a plan with this seed."""
    rng = random.Random(f"acceptance ids {seed}")
    return [rng.choices(range(vocab_size), k=length) for length in lengths]


async def _measure(
    boot: Boot, jobs: list[tuple[Prompt, int]], tokens: int, together: int, temperature: float
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
    return checked(boot, counts)


def checked(boot: Boot, counts: AcceptanceCounts | None) -> AcceptanceCounts:
    """The counts, unless there are none or they cannot be true."""
    if counts is None:
        raise ProbeFailed("the server's /metrics count no drafts: is speculation on?")
    depth = boot.conditions.get(0, {}).get("draft_tokens")
    if why := impossible(counts, depth if isinstance(depth, int) and depth > 0 else None):
        raise ProbeFailed(f"the server's draft counters cannot be true: {why}")
    return counts


def impossible(counts: AcceptanceCounts, depth: int | None) -> str | None:
    """Why no engine with `depth` drafts a round (None: not known) can have counted this, or None."""
    positions = counts.accepted_per_position
    k = depth if depth is not None else len(positions)
    length = counts.acceptance_length
    if counts.accepted > counts.drafted:
        return f"{counts.accepted} accepted of {counts.drafted} drafted"
    if k and length is not None and length > k + 1:
        return f"{length:.4g} tokens a round with {k} drafts, at most {k + 1} can be"
    if k and counts.drafted > k * counts.drafts:
        return f"{counts.drafted} drafted in {counts.drafts} rounds of at most {k}"
    reached = (counts.drafts, *positions)
    if risen := next((n for n, (before, here) in enumerate(pairwise(reached)) if here > before), None):
        return f"position {risen} was accepted {positions[risen]} times, the one before it {reached[risen]}"
    if positions and positions[0] > counts.drafts:
        return f"position 0 was accepted {positions[0]} times in {counts.drafts} rounds"
    if positions and sum(positions) != counts.accepted:
        return f"the positions add up to {sum(positions)} accepted, the total says {counts.accepted}"
    if depth is not None and 0 < len(positions) < depth:
        return f"{len(positions)} positions are counted of the {depth} that are drafted"
    return None


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
