"""Token identity: the greedy token ids of fixed prompts, each alone and then several at a time.

Prompts: the suite's texts, and with `lengths` so many random token ids that never change. Settings: tokens of each
answer (the end token is ignored), `together`, how many run at one time in the second part; 0 leaves that part out.
Temperature 0.

Scorer: equality of the list of ids, of all boots of an arm among themselves and with the baseline's; one id is enough.
Rows: items `alone/N` and `together/N` of `identity.tokens`, the ids as value and their text.

Failure looks like other ids from some position on, alone or, where rows of one request get into another's batch, only
together. Boots of one arm that differ are said not to be deterministic. What is behind the prompt is short and the
prompts are short, so a fault of long contexts can pass: of `c128_row_corrupt:50` and `:10` on micro the prompts of
`full` show nothing; one of 1,095 tokens shows both (results/battery/dose).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

from dsbench.engines.client import Completion
from dsbench.probes.boot import Boot, ProbeFailed, Reading, kept


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """The ids of every prompt as one item `alone/N`, and of the same prompts in a batch as `together/N`."""
    config = boot.plan.probes.identity
    assert config is not None
    prompts: list[str | list[int]] = [*config.prompts, *(_ids(length, boot.vocab_size) for length in config.lengths)]
    for number, prompt in enumerate(prompts, start=1):
        yield _reading(f"alone/{number}", await boot.server.complete(prompt, config.tokens))
    for first in range(0, len(prompts), config.together) if config.together else ():
        group = prompts[first : first + config.together]
        # A group that is short is filled up with its own prompts, so that every item ran in a batch of one size.
        filled = [group[i % len(group)] for i in range(config.together)]
        answers = await asyncio.gather(*(boot.server.complete(prompt, config.tokens) for prompt in filled))
        for number, answer in enumerate(answers[: len(group)], start=first + 1):
            yield _reading(f"together/{number}", answer)


def _ids(length: int, vocab_size: int) -> list[int]:
    """Token ids that are the same in every experiment."""
    return random.Random(f"identity {length}").choices(range(vocab_size), k=length)


def _reading(item: str, answer: Completion) -> Reading:
    if answer.token_ids is None:
        raise ProbeFailed("the engine returned no token_ids")
    if len(answer.token_ids) != answer.completion_tokens:
        raise ProbeFailed(f"{len(answer.token_ids)} token_ids came back for {answer.completion_tokens} tokens")
    return Reading("identity.tokens", answer.token_ids, item=item, text=kept(answer.text))
