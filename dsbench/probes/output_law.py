"""Output law: whether short sampled outputs follow the target's own distribution, token by token.

The engine gives the law itself: the first token of a request comes from the prompt's last row, with no draft
involved, so a request for one token with log probabilities, sent with a prompt and the beginning of an output,
names the law of the next token. The test is stats/law.py's, by prompt and over all prompts, with Holm's
correction at ALPHA: a sound engine fails a boot once in a thousand.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator

from dsbench.engines.client import Completion
from dsbench.probe_settings import OutputLawProbe
from dsbench.probes.boot import Boot, ProbeFailed, Reading
from dsbench.stats.holm import holm
from dsbench.stats.law import Context, LawTest, compare_law, together
from impl import tokenizer

ALPHA = 1e-3
TOP = 20
"""Log probabilities asked for; the other tokens are pooled."""
LAW_SEED = 1

Ids = tuple[int, ...]


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """1 for a prompt whose tokens follow the law and 0 for one whose do not; `raw` holds p and total variation.

    The item `all prompts` adds up what is a little off everywhere.
    """
    config = boot.plan.probes.output_law
    assert config is not None
    prompts = [[tokenizer.BOS, *tokenizer.encode(prompt)] for prompt in config.prompts]
    outputs = await _sample(boot, config, prompts)
    tests = [await _test(boot, config, prompt, seen) for prompt, seen in zip(prompts, outputs, strict=True)]
    if not any(test.degrees for test in tests):
        raise ProbeFailed("too few tokens of one kind to compare with a law: ask for more requests")
    names = [f"prompt {number}" for number in range(1, len(tests) + 1)]
    tests.append(together(tests))
    adjusted = holm([test.p for test in tests])
    for name, test, p in zip([*names, "all prompts"], tests, adjusted, strict=True):
        told = f"p={p:.2g} (Holm), total variation {test.total_variation:.3f}, {test.n} tokens"
        yield Reading("output_law", int(p > ALPHA), item=name, raw=[p, test.total_variation], text=told)


async def _sample(boot: Boot, config: OutputLawProbe, prompts: list[list[int]]) -> list[list[tuple[Ids, list[str]]]]:
    """Ids and names of every output, by prompt: all prompts mixed, in parts with different numbers at one time."""
    rng = random.Random(f"output_law {boot.plan.seed} {boot.planned.block}")
    jobs = [(number % len(prompts), rng.getrandbits(32)) for number in range(config.requests)]
    rng.shuffle(jobs)
    found: list[list[tuple[Ids, list[str]]]] = [[] for _ in prompts]
    size = math.ceil(len(jobs) / len(config.together))
    for part, workers in enumerate(config.together):
        waiting = jobs[part * size : (part + 1) * size]

        async def work(waiting: list[tuple[int, int]] = waiting) -> None:
            while waiting:
                number, seed = waiting.pop()
                answer = await boot.server.complete(
                    prompts[number], config.tokens, temperature=1.0, seed=seed, logprobs=0
                )
                found[number].append(_named(answer, config.tokens))

        await asyncio.gather(*(work() for _ in range(workers)))
    return found


def _named(answer: Completion, tokens: int) -> tuple[Ids, list[str]]:
    if answer.token_ids is None or answer.names is None:
        raise ProbeFailed("the engine returned no token_ids or no logprobs")
    if not len(answer.token_ids) == len(answer.names) == tokens:
        raise ProbeFailed(f"asked for {tokens} tokens, got {len(answer.token_ids)} ids, {len(answer.names)} names")
    return tuple(answer.token_ids), answer.names


async def _test(boot: Boot, config: OutputLawProbe, prompt: list[int], outputs: list[tuple[Ids, list[str]]]) -> LawTest:
    """Compare every position with the law after each frequent beginning."""
    positions = []
    for place in range(config.tokens):
        followed: dict[Ids, Counter[str]] = defaultdict(Counter)
        for ids, names in outputs:
            followed[ids[:place]][names[place]] += 1
        frequent = sorted(followed, key=lambda ids: (-followed[ids].total(), ids))[: config.contexts]
        laws = await asyncio.gather(*(_law(boot, [*prompt, *ids]) for ids in frequent))
        positions.append([Context(followed[ids], law) for ids, law in zip(frequent, laws, strict=True)])
    return compare_law(positions)


async def _law(boot: Boot, prompt: list[int]) -> dict[str, float]:
    """Probabilities of the likeliest next tokens, by name."""
    answer = await boot.server.complete(prompt, 1, temperature=1.0, seed=LAW_SEED, logprobs=TOP)
    if not answer.top:
        raise ProbeFailed("the engine returned no logprobs")
    return {name: math.exp(value) for name, value in answer.top[0].items()}
