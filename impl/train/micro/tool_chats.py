"""Chats with tools: one call, calls side by side, chains, missing arguments, failed calls, and nothing to call.

Each generator takes its wordings as an argument, so held-out chats can bring their own. A chat may stop at any reply;
the last one is the one that a thinking mode is about.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from impl.train.micro import facts
from impl.train.micro.reserved import allowed, reserved_question
from impl.train.micro.tool_chains import CHAINS, Day, answering, calling
from impl.train.micro.tool_wordings import BEHAVIOURS, BEYOND, INCOMPLETE, JOINS, NO_TOOL, REQUESTS, SMALL_TALK
from impl.train.micro.tools import (
    LANGUAGES,
    PHRASES,
    SYMBOLS,
    TOOLS,
    asked_for,
    result,
    some_day,
    told,
    worded,
)
from impl.train.micro.transcript import Reply, Transcript, some_thinking
from impl.train.micro.words import CITIES, ITEMS, NAMES, WEEKDAYS
from impl.train.packing import Segments

Wordings = Mapping[str, Sequence[str]]


def some_tools(rng: random.Random, needed: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """All tools in their order, or at times a few of them that hold the `needed` ones."""
    if rng.random() < 0.6:
        return dict(TOOLS)
    others = [name for name in TOOLS if name not in needed]
    chosen = [*needed, *rng.sample(others, rng.randint(1, len(others) - 2))]
    if rng.random() < 0.5:
        rng.shuffle(chosen)
    else:
        chosen.sort(key=list(TOOLS).index)
    return {name: TOOLS[name] for name in chosen}


def opened(rng: random.Random, *needed: str) -> tuple[Transcript, Day]:
    """A chat with tools and at times a system line; and the day, where that line tells it."""
    chat = Transcript(tools=some_tools(rng, needed))
    today: Day = None
    line: list[str] = []
    if rng.random() < 0.5:
        today = some_day(rng)
        line.append(f"Today is {WEEKDAYS[today.weekday()]}, {today.isoformat()}.")
    line += rng.sample(BEHAVIOURS, rng.choice((0, 0, 1, 2)))
    if line:
        chat.system(" ".join(line))
    return chat, today


def requested(
    rng: random.Random, tool: str, wordings: Wordings, today: Day, **fixed: str
) -> tuple[str, dict[str, Any]]:
    """A request for one call, and the arguments of the call."""
    spoken, given = asked_for(rng, tool, today, **fixed)
    return worded(rng.choice(wordings[tool]), spoken), given


def single(rng: random.Random, wordings: Wordings) -> Transcript:
    tool = rng.choice(list(TOOLS))
    chat, today = opened(rng, tool)
    question, given = requested(rng, tool, wordings, today)
    chat.user(question)
    return called(rng, chat, tool, given)


def called(rng: random.Random, chat: Transcript, tool: str, given: dict[str, Any]) -> Transcript:
    """`chat` with the call, and at times with its result and the answer."""
    chat.say(calling((tool, given)))
    if rng.random() < 0.5:
        found, answer = result(rng, tool, given)
        chat.result(told(found))
        chat.say(answering(answer))
    return chat


def parallel(rng: random.Random, wordings: Wordings) -> Transcript:
    """Two or three calls in one answer: one tool for several things, or different tools."""
    if rng.random() < 0.5:
        tool, name, values = rng.choice(
            (
                ("get_weather", "city", CITIES),
                ("get_stock_price", "symbol", SYMBOLS),
                ("translate", "language", LANGUAGES),
            )
        )
        chosen = rng.sample(values, rng.choice((2, 2, 3)))
        listed = f"{', '.join(chosen[:-1])} and {chosen[-1]}"
        chat, today = opened(rng, tool)
        fixed = {"text": rng.choice(PHRASES)} if tool == "translate" else {}
        question, given = requested(rng, tool, wordings, today, **fixed, **{name: listed})
        calls = [(tool, {**given, name: value}) for value in chosen]
    else:
        one, other = rng.sample(list(TOOLS), 2)
        chat, today = opened(rng, one, other)
        (first, given), (second, also) = requested(rng, one, wordings, today), requested(rng, other, wordings, today)
        question = rng.choice(JOINS).format(a=first, b=second)
        calls = [(one, given), (other, also)]
    chat.user(question)
    chat.say(calling(*calls))
    if rng.random() < 0.5:
        answers = []
        for tool, given in calls:
            found, answer = result(rng, tool, given)
            chat.result(told(found))
            answers.append(answer)
        chat.say(answering(" ".join(answers)))
    return chat


def chain(rng: random.Random, wordings: Wordings) -> Transcript:
    """A result decides the next call; the wordings are the chains' own."""
    steps, needed = rng.choice(CHAINS)
    chat, today = opened(rng, *needed)
    steps(rng, chat, today)
    return chat


def missing(rng: random.Random, wordings: Wordings) -> Transcript:
    """An argument is not given: the assistant asks, the user tells, then comes the call."""
    tool, request, question, answer = rng.choice(INCOMPLETE)
    chat, today = opened(rng, tool)
    spoken, given = asked_for(rng, tool, today)
    chat.user(worded(request, spoken))
    chat.say(Reply(question, thought=f"For {tool} something is missing.", check="I must not guess. I ask."))
    if rng.random() < 0.4:
        chat.user(answer.format(**spoken))
        called(rng, chat, tool, given)
    return chat


TRANSIENT = ("timeout, try again", "server busy, try again", "network error, try again", "busy, please try again")
LASTING = ("not available", "access denied", "unknown {first}", "no such {first}", "service closed")


def failed(rng: random.Random, wordings: Wordings) -> Transcript:
    """A call fails. A hiccup is tried again, a wrong value is put right, what stays broken is told."""
    tool = rng.choice(list(TOOLS))
    chat, today = opened(rng, tool)
    question, given = requested(rng, tool, wordings, today)
    chat.user(question)
    chat.say(calling((tool, given)))
    first = TOOLS[tool][0]
    form = rng.random()
    sorry = Reply(f"Sorry, I could not do it: {tool} failed.", thought="It failed.", check="I tell the user.")
    if form < 0.25:
        chat.result(told({"error": rng.choice(LASTING).format(first=first)}))
        chat.say(sorry)
        return chat
    again = given
    if form < 0.55 and isinstance(given[first], str) and tool != "calculate":
        again = {**given, first: similar(rng, str(given[first]))}
        chat.result(told({"error": mended(rng, first, str(given[first]), again[first])}))
    else:
        chat.result(told({"error": rng.choice(TRANSIENT)}))
    chat.say(
        Reply(calls=((tool, again),), thought=f"The call failed. I try {tool} again.", check="The error says how.")
    )
    form = rng.random()
    if form < 0.4:
        found, answer = result(rng, tool, again)
        chat.result(told(found))
        chat.say(answering(answer))
    elif form < 0.6:
        chat.result(told({"error": rng.choice(LASTING).format(first=first)}))
        chat.say(sorry)
    return chat


def similar(rng: random.Random, value: str) -> str:
    """A value that is spelt a little differently: a letter more, or one twice."""
    stem, dot, ending = value.rpartition(".")
    word = stem if dot and "/" not in ending else value
    place = rng.randrange(1, len(word) + 1)
    changed = f"{word[:place]}{word[place - 1]}{word[place:]}" if rng.random() < 0.5 else f"{word}s"
    return f"{changed}.{ending}" if word != value else changed


def mended(rng: random.Random, name: str, wrong: str, right: str) -> str:
    """An error that tells the right value."""
    return rng.choice(
        (
            f"{name} {wrong} not found, use {right}",
            f"no {name} {wrong}; did you mean {right}?",
            f"unknown {name}; there is {right}",
            f"not found; similar: {right}",
        )
    )


def nothing(rng: random.Random, wordings: Wordings) -> Transcript:
    """No tool fits, the one that would is not there, or the question needs none."""
    form = rng.random()
    chat, today = opened(rng)
    refusal = Reply(NO_TOOL, thought="No tool fits.", check="I looked at all of them.")
    if form < 0.35:
        chat.user(rng.choice(BEYOND).format(city=rng.choice(CITIES), item=rng.choice(ITEMS), name=rng.choice(NAMES)))
        chat.say(refusal)
    elif form < 0.5:
        tool = rng.choice([name for name in TOOLS if name != "calculate"])
        chat.tools = {name: names for name, names in some_tools(rng, ()).items() if name != tool}
        chat.user(requested(rng, tool, wordings, today)[0])
        chat.say(refusal)
    elif form < 0.7:
        question, answer = facts.training_fact(rng)
        chat.user(question)
        chat.say(Reply(answer, thought="I know this without a tool.", check="I am sure."))
    elif form < 0.85:
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        chat.user(rng.choice(wordings["calculate"]).format(expression=f"{a}*{b}"))
        chat.say(Reply(str(a * b), thought="This is in the times table.", check="No tool is needed."))
    else:
        question, answer = rng.choice(SMALL_TALK)
        chat.user(question)
        chat.say(Reply(answer, thought="No tool is needed.", check="I just answer."))
    return chat


KINDS: dict[str, tuple[Callable[[random.Random, Wordings], Transcript], float]] = {
    "single": (single, 0.24), "parallel": (parallel, 0.26), "chain": (chain, 0.18), "missing": (missing, 0.08),
    "failed": (failed, 0.08), "nothing": (nothing, 0.16),
}  # fmt: skip
"""Kinds of chat and how often training has them."""

FIXED = (
    frozenset(BEYOND) | set(dict(SMALL_TALK)) | set(dict(facts.SHORT)) | {request for _, request, _, _ in INCOMPLETE}
)
"""Questions without variable parts; they are never held out."""


def chat_of(rng: random.Random, kind: str, wordings: Wordings = REQUESTS) -> Transcript:
    """A chat of a kind, which stops at any of its replies: most often at the last."""
    chat = KINDS[kind][0](rng, wordings)
    if chat.earlier and rng.random() < 0.35:
        chat.stop_at(rng.randrange(len(chat.earlier)))
    return chat


def any_chat(rng: random.Random) -> Transcript:
    (kind,) = rng.choices(list(KINDS), weights=[share for _, share in KINDS.values()])
    return chat_of(rng, kind)


def first_question(chat: Transcript) -> str:
    return next(str(message["content"]) for message in chat.messages if message["role"] == "user")


def may_train(chat: Transcript) -> bool:
    """Whether no held-out question opens the chat, and no held-out pair is computed in it."""
    question = first_question(chat)
    said = chat.prompt("off") + (chat.reply.line("max") if chat.reply else "")
    return (question in FIXED or not reserved_question(question)) and allowed(said)


def training_text(rng: random.Random) -> Segments:
    while True:
        chat = any_chat(rng)
        if may_train(chat):
            return chat.segments(some_thinking(rng, 0.5))
