"""GSM8K: word problems with one number as the answer, greedy, each asked once a boot.

Prompts: our own set asks the bare question as a chat; any other set puts `shots` worked examples in front, in the
`template`, as one text. Thinking is off, temperature 0, at most `concurrency` questions at one time. The first
`limit` questions are the same in every arm: their digest stands in the plan, and other questions are refused.

Scorer: `dsbench/score/gsm8k.py`, compared as numbers. One item a question, named by its number from 1:
`gsm8k.correct` (1 or 0, with the reply as text and, where it is wrong, what was read), `gsm8k.truncated` (1 where
the limit of tokens ended the reply), and with `filters` what lm-eval's two filters would have counted.

What failure looks like: damage to attention or to the sums shows as wrong numbers behind a well-formed `####`, damage
to the text as missing markers, and a reply that never ends as `gsm8k.truncated`, which can also mean that `max_tokens`
is too small for both arms. A defect must be coarse to show. With index rows corrupted (`c128_row_corrupt:N`), one boot
an arm: micro (results/battery/dose) had 1,009 of 1,319 right, with 1 row in 50 1,001 (8 lost, p = 0.008: not called
among the guards of `full`), with 1 in 10 964 (47 lost, 2 gained: regressed). pico, the shape of the unit tests, on
held-out problems in the wordings it knows: 1 in 50 changed none of 100 (87 right); 1 in 10 turned 87 % into 84 % of
200 (7 lost, 1 gained, p = 0.07: inconclusive); 1 in 3 turned 87 into 79 of 100 (8 lost, p = 0.008: regressed).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from dsbench.answer_settings import Gsm8kProbe
from dsbench.engines.client import Reply
from dsbench.probes.boot import Boot, ProbeFailed, Reading, kept
from dsbench.questions import Question, digest
from dsbench.score.gsm8k import Scored, score

Job = TypeVar("Job")


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """Two readings a question, in the order of the questions; four with `filters`."""
    config = boot.plan.probes.gsm8k
    assert config is not None
    questions, texts = config.load()
    if config.digest != digest(texts, questions):
        raise ProbeFailed(f"the questions of '{config.source}' are not those of the plan: its digest differs")

    async def ask(text: str) -> Reply:
        chat = config.mode == "chat"
        return await boot.server.write(text, config.max_tokens, chat=chat, stop=config.stop, **config.body())

    replies = in_order(texts, ask, config.concurrency)
    number = 0
    async for reply in replies:
        number += 1
        for reading in _readings(number, questions[number - 1], reply, config):
            yield reading


def _readings(number: int, question: Question, reply: Reply, config: Gsm8kProbe) -> list[Reading]:
    item = f"{number:04d}"
    scored = score(item, reply.text, question.answer, reply.finish_reason)
    readings = [
        Reading("gsm8k.correct", int(scored.correct), item=item, text=kept(_told(scored, reply.text))),
        Reading("gsm8k.truncated", None if scored.truncated is None else int(scored.truncated), item=item),
    ]
    if config.filters:
        readings.append(Reading("gsm8k.strict", int(scored.lm_eval_strict_correct), item=item))
        readings.append(Reading("gsm8k.flexible", int(scored.lm_eval_flexible_correct), item=item))
    return readings


def _told(scored: Scored, reply: str) -> str:
    return reply if scored.correct else f"[{scored.extracted or scored.source}, not {scored.gold}] {reply}"


async def in_order(
    jobs: Sequence[Job], ask: Callable[[Job], Awaitable[Reply]], concurrency: int
) -> AsyncIterator[Reply]:
    """Replies in the order of the jobs, at most `concurrency` asked at one time; the first failure ends them all."""
    free = asyncio.Semaphore(concurrency)

    async def one(job: Job) -> Reply:
        async with free:
            return await ask(job)

    tasks = [asyncio.create_task(one(job)) for job in jobs]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
