"""Instruction following: JSON and nothing else, greedy, checked against the facts of one sentence.

Prompts: `Reply with JSON only, keys name, age: <sentence>` as a chat, thinking off, temperature 0. Sentences are made
from `seed`: who somebody is, how old, where they live and how many pets they have, two to four of these a prompt, each
as a key.

Scorer: `dsbench/score/instruction.py`: one object, exactly the keys asked for, texts and whole numbers as such, the
values of the sentence, nothing around it. A code fence is a miss. One item a prompt, `instruction.correct` 1 or 0,
with the reply as text and, where it is a miss, the reason.

What failure looks like: a broken format (fences, prose, a missing bracket, keys of another prompt) points to the
sampling or to a lost system of the text; right JSON with the wrong name or age points to attention that looks up the
wrong place.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from dsbench.engines.client import Reply
from dsbench.probes.boot import Boot, Reading
from dsbench.probes.gsm8k import in_order
from dsbench.score.instruction import Facts, fault

NAMES = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kim", "Leo", "Mia", "Ned")
CITIES = ("Oslo", "Rome", "Paris", "Lima", "Cairo", "Delhi", "Quito", "Tokyo", "Berlin", "Dublin", "Madrid", "Vienna")
PHRASES = {"age": "is {} years old", "city": "lives in {}", "pets": "has {} pets"}


@dataclass(frozen=True)
class Task:
    """One prompt and the object that answers it."""

    prompt: str
    facts: Facts


def tasks(count: int, seed: int) -> list[Task]:
    """`count` different tasks, the same for the same seed."""
    rng = random.Random(f"instruction {seed}")
    made: dict[str, Task] = {}
    while len(made) < count:
        task = _task(rng)
        made.setdefault(task.prompt, task)
    return list(made.values())


def _task(rng: random.Random) -> Task:
    values: dict[str, str | int] = {
        "name": rng.choice(NAMES), "age": rng.randint(18, 90), "city": rng.choice(CITIES), "pets": rng.randint(2, 9)
    }  # fmt: skip
    told = [key for key in PHRASES if key in rng.sample(list(PHRASES), rng.randint(1, len(PHRASES)))]
    facts = {key: values[key] for key in ("name", *told)}
    clauses = [PHRASES[key].format(values[key]) for key in told]
    sentence = " and ".join(part for part in (", ".join(clauses[:-1]), clauses[-1]) if part)
    return Task(f"Reply with JSON only, keys {', '.join(facts)}: {values['name']} {sentence}.", facts)


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """One reading a task, in their order."""
    config = boot.plan.probes.instruction
    assert config is not None
    asked = tasks(config.items, config.seed)

    async def ask(task: Task) -> Reply:
        more: dict[str, Any] = {"chat_template_kwargs": config.chat_template_kwargs} if config.chat_template_kwargs else {}
        return await boot.server.write(task.prompt, config.max_tokens, chat=True, **more)

    number = 0
    async for reply in in_order(asked, ask, config.concurrency):
        number += 1
        why = fault(reply.text, asked[number - 1].facts)
        told = reply.text if why is None else f"[{why}] {reply.text}"
        yield Reading("instruction.correct", int(why is None), item=f"{number:03d}", text=told)
