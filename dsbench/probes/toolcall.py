"""Tool calls: conversations with twelve mocked tools, fifteen scenarios in five categories, three ways of thinking.

Prompts: data/toolcall.toml, with the fixed date of its system line. Settings: scenarios, thinking, rounds,
temperature, top_p, seed, max_tokens of a turn, conversations at one time; at most MAX_TURNS turns.
Scorer: score/toolcall.py, 2, 1 or 0 points with a reason. Items: one a scenario, way of thinking and round, worth
points / 2 and clustered by scenario: in `toolcall.points`, and again in its category's metric.
The share of `toolcall.points` is the mean of the category percentages, as each category has as many items.
Failure looks like: calls that the reasoning swallowed, malformed calls left in the text, wrong arguments, needless
calls, or no answer within the turns. Transcripts are kept as FILE in the boot's folder (`dsbench score toolcall`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

from dsbench.engines.chat import ChatReply, Thinking
from dsbench.probe_settings import ToolcallProbe
from dsbench.probes.boot import Boot, Reading, kept
from dsbench.score.tool_transcript import Called, Transcript, Turn
from dsbench.score.toolcall import FULL_POINTS, score
from dsbench.tool_mocks import answer_call
from dsbench.tool_scenarios import Scenario, battery

MAX_TURNS = 8
FILE = "toolcall.jsonl"


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """The points of every conversation as a share, by item, with the reason and the answer as text."""
    config = boot.plan.probes.toolcall
    assert config is not None
    free = asyncio.Semaphore(config.together)

    async def hold(scenario: Scenario, thinking: Thinking, number: int) -> Transcript:
        async with free:
            return await converse(boot, config, scenario, thinking, number)

    rounds = range(1, config.rounds + 1)
    tasks = [asyncio.create_task(hold(*job)) for job in product(config.chosen(), config.thinking, rounds)]
    try:
        with (boot.folder / FILE).open("w", encoding="utf-8") as kept:
            for task in tasks:
                transcript = await task
                kept.write(f"{transcript.model_dump_json()}\n")
                for reading in _readings(transcript):
                    yield reading
    finally:
        for task in tasks:
            task.cancel()


async def converse(
    boot: Boot, config: ToolcallProbe, scenario: Scenario, thinking: Thinking, number: int
) -> Transcript:
    """One conversation, up to the first turn that calls nothing."""
    data = battery()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": data.system},
        {"role": "user", "content": scenario.question},
    ]
    turns: list[Turn] = []
    while len(turns) < MAX_TURNS:
        reply = await boot.server.chat_messages(
            messages,
            config.max_tokens,
            tools=data.offered(),
            thinking=thinking,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=config.seed + number - 1,
        )
        turns.append(_turn(reply, scenario, [call for turn in turns for call in turn.calls]))
        if not reply.calls:
            break
        messages.append(reply.as_message())
        for asked, called in zip(reply.calls, turns[-1].calls, strict=True):
            messages.append({"role": "tool", "tool_call_id": asked.id, "content": called.result})
    return Transcript(scenario=scenario.id, mode=thinking, round=number, turns=turns)


def _turn(reply: ChatReply, scenario: Scenario, earlier: list[Called]) -> Turn:
    """A reply with the results of its calls, which are answered in order."""
    called: list[Called] = []
    for call in reply.calls:
        result = answer_call(battery(), scenario, [*earlier, *called], call.name, call.arguments)
        called.append(Called(name=call.name, arguments=call.arguments, result=result))
    return Turn(content=reply.content, reasoning=reply.reasoning, calls=called, finish_reason=reply.finish_reason)


def _readings(transcript: Transcript) -> list[Reading]:
    found = score(transcript)
    said = transcript.turns[-1].content
    text = f"{found.points}/{FULL_POINTS}: {found.reason}\n{said}"
    raw = [float(found.points), float(len(transcript.turns)), float(found.swallowed)]
    return [
        Reading(
            metric,
            found.points / FULL_POINTS,
            item=transcript.item,
            cluster=transcript.scenario,
            raw=raw if metric == "toolcall.points" else None,
            text=kept(text) if metric == "toolcall.points" else None,
        )
        for metric in ("toolcall.points", f"toolcall.{found.category}")
    ]
