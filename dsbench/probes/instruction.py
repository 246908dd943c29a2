"""Instruction following: JSON and nothing else, greedy, checked against the facts of one sentence.

Prompts: `Reply with JSON only, keys age, name: <sentence>` as a chat, thinking off, temperature 0. Sentences are made
from `seed` and tell somebody's name, age, city and, in some, job; two to four of these are asked for, in any order.

Scorer: `dsbench/score/instruction.py`: one object, exactly the keys asked for, texts and whole numbers as such, the
values of the sentence, nothing around it. A code fence is a miss. One item a prompt, `instruction.correct` 1 or 0,
with the reply as text and, where it is a miss, the reason.

What failure looks like: a broken format (fences, prose, a missing bracket, keys of another prompt) points to the
sampling or to states that leak between requests; right JSON with the wrong name or age points to attention that looks
up the wrong place. It needs a model that was taught JSON: pico answers none, whatever is planted.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

from dsbench.engines.client import Reply
from dsbench.probes.boot import Boot, Reading, kept
from dsbench.probes.gsm8k import in_order
from dsbench.score.instruction import Facts, fault

NAMES = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kim", "Leo", "Mia", "Ned")
CITIES = ("Oslo", "Rome", "Paris", "Lima", "Cairo", "Delhi", "Lisbon", "Tokyo", "Berlin", "Dublin", "Madrid", "Vienna")
JOBS = ("baker", "doctor", "teacher", "pilot", "farmer", "painter", "nurse", "driver", "writer")
SENTENCES = (
    "{name} is {age} years old and lives in {city}.",
    "{name} lives in {city} and is {age} years old.",
    "{name} is a {job} in {city} and {age} years old.",
    "{name}, who is {age} years old, lives in {city} and works as a {job}.",
    "The {job} {name} is {age} years old and lives in {city}.",
)


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
    sentence = rng.choice(SENTENCES)
    told: dict[str, str | int] = {
        "name": rng.choice(NAMES), "age": rng.randint(18, 90), "city": rng.choice(CITIES), "job": rng.choice(JOBS)
    }  # fmt: skip
    known = [key for key in told if f"{{{key}}}" in sentence]
    wanted = rng.sample(known, rng.randint(2, len(known)))
    prompt = f"Reply with JSON only, keys {', '.join(wanted)}: {sentence.format(**told)}"
    return Task(prompt, {key: told[key] for key in wanted})


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """One reading a task, in their order."""
    config = boot.plan.probes.instruction
    assert config is not None
    asked = tasks(config.items, config.seed)

    async def ask(task: Task) -> Reply:
        return await boot.server.write(task.prompt, config.max_tokens, chat=True, **config.body())

    number = 0
    async for reply in in_order(asked, ask, config.concurrency):
        number += 1
        why = fault(reply.text, asked[number - 1].facts)
        told = reply.text if why is None else f"[{why}] {reply.text}"
        yield Reading("instruction.correct", int(why is None), item=f"{number:03d}", text=kept(told))
