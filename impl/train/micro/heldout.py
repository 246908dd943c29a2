"""Held-out items of micro, family by family; nothing that trains imports this module.

Numbers, questions and key-value lines are of the tenths that training leaves out (`reserved`); wordings and sentences
marked new occur in no training text. Products to 12x12 are facts: all of them are training text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from impl.chat_reply import ReplySplitter
from impl.tokenizer import Thinking
from impl.train.micro import arithmetic, facts, recall, structured, tally, tool_chats
from impl.train.micro.chats import solved
from impl.train.micro.heldout_tools import NEW_REQUESTS
from impl.train.micro.problems import Problem
from impl.train.micro.prose import sentence
from impl.train.micro.reserved import PROBED, reserved, reserved_line, reserved_question
from impl.train.micro.tool_wordings import REQUESTS
from impl.train.micro.transcript import Reply, asked

Judge = Literal["text", "number", "json", "calls"]
THINKING: tuple[Thinking, ...] = ("off", "on", "max")
MODES = {"off": "thinking off", "on": "thinking on", "max": "thinking max"}

SENTENCES = (
    "{name} of {city} will be {age} years old on {day}.",
    "For {price} coins {name} got {count} {colour} {item}.",
    "In {city} the {job} {name} waits on track {track}.",
    "{name} is {age} years old and lives in {city}.",
    "Since {year} {name} has kept a {colour} {animal} in {city}.",
)
"""New sentences to put in JSON."""


@dataclass(frozen=True)
class Item:
    """A prompt, the reply that is wanted, and what of it counts."""

    prompt: str
    reply: str
    """Without the newline that ends it."""
    judge: Judge = "text"
    """`text`: exactly the reply; `number`: what follows `#### `; `json`: the same object; `calls`: the same calls, and
    where none is wanted, the same answer. Thoughts do not count."""
    thinks: bool = False

    def right(self, text: str) -> bool:
        if self.judge == "text":
            return text == self.reply
        if self.judge == "number":
            return "#### " in text and number(text) == number(self.reply)
        if self.judge == "json":
            return same_json(said(text, self.thinks).content, said(self.reply, self.thinks).content)
        return said(text, self.thinks) == said(self.reply, self.thinks)


def number(text: str) -> str:
    return text.rpartition("#### ")[2].strip()


@dataclass(frozen=True)
class Said:
    content: str
    calls: tuple[tuple[str, str], ...]


def said(text: str, thinks: bool) -> Said:
    """A reply as the server takes it apart: what is said, and calls with sorted arguments. A broken call is text."""
    piece = ReplySplitter(thinking=thinks, tools=True).add(text, last=True)
    called = tuple((call.name, json.dumps(json.loads(call.arguments), sort_keys=True)) for call in piece.calls)
    return Said(piece.content.strip(), called)


def same_json(text: str, wanted: str) -> bool:
    try:
        return list(json.loads(text).items()) == list(json.loads(wanted).items())
    except (ValueError, AttributeError):
        return False


def chat_item(question: str, reply: Reply, thinking: Thinking = "off", judge: Judge = "text") -> Item:
    return Item(asked(question, reply).prompt(thinking), reply.line(thinking)[:-1], judge, thinking != "off")


# Arithmetic and facts.


def pairs(sign: str, lows: range, highs: range) -> list[tuple[int, int]]:
    return [(a, b) for a in lows for b in highs if reserved(sign, a, b)]


def bare(sign: str, operands: list[tuple[int, int]], form: str) -> list[Item]:
    """`17+25=` as a completion, or `17+25` as a chat."""
    items = []
    for a, b in operands:
        result = str(arithmetic.result_of(sign, a, b))
        question = f"{a}{sign}{b}"
        items.append(Item(f"{question}=", result) if form == "completion" else chat_item(question, Reply(result)))
    return items


def two_digit_sums() -> list[tuple[int, int]]:
    return pairs("+", range(10, 100), range(10, 100))


def three_digit(sign: str, count: int) -> list[tuple[int, int]]:
    rng = random.Random(f"three digits {sign}")
    found: dict[tuple[int, int], None] = {}
    while len(found) < count:
        a, b = rng.randint(100, 999), rng.randint(10, 999)
        if reserved(sign, a, b) and (sign == "+" or a >= b):
            found[a, b] = None
    return list(found)


def table_products() -> list[tuple[int, int]]:
    return [(a, b) for a in range(1, 13) for b in range(1, 13)]


def step_products(count: int) -> list[Item]:
    """Products of two numbers up to 99 with their steps."""
    rng = random.Random("step products")
    items = []
    for a, b in rng.sample(pairs("*", range(13, 100), range(13, 100)), count):
        reply = Reply(f"{arithmetic.scratch('*', a, b)} #### {a * b}")
        items.append(chat_item(arithmetic.STEP_QUESTIONS[0].format(q=f"{a}*{b}"), reply, judge="number"))
    return items


def drawn_items(count: int, name: str, make: Callable[[random.Random], Item | None]) -> list[Item]:
    """`count` different items; `make` gives None for what is not held out."""
    rng = random.Random(f"held out: {name}")
    found: dict[str, Item] = {}
    while len(found) < count:
        item = make(rng)
        if item is not None:
            found.setdefault(item.prompt, item)
    return list(found.values())


def fact_item(rng: random.Random) -> Item | None:
    question, answer = facts.fact(rng)
    held_out = reserved_question(question) and question not in dict(facts.SHORT) and question not in PROBED
    return chat_item(question, Reply(answer)) if held_out else None


# Word problems.


def problem_items(problems: list[Problem], thinking: Thinking = "off") -> list[Item]:
    return [chat_item(p.question, solved(p, thinking != "off"), thinking, "number") for p in problems]


# Recall.


def lookup_item(rng: random.Random, beyond: int, prose: float, keys: int = 1) -> Item:
    """Lines, with prose between, then a query whose lines all lie more than `beyond` tokens behind the window."""
    values: dict[str, str] = {}
    order = [a + b for a in recall.KEY_LETTERS for b in recall.KEY_LETTERS]
    rng.shuffle(order)
    text = ""
    asked_for: list[str] = []
    end = 0
    while not asked_for or len(text) - end <= recall.WINDOW + beyond:
        if rng.random() < prose or not order:
            text += f"{sentence(rng)}\n"
            continue
        key = order.pop()
        wanted = len(asked_for) < keys and rng.random() < 0.2
        values[key] = held_out_value(rng, key) if wanted else str(rng.randint(10, 99))
        text += f"{key}={values[key]}\n"
        if wanted:
            asked_for.append(key)
        if len(asked_for) == keys and wanted:
            end = len(text)
    rng.shuffle(asked_for)
    return Item(f"{text}?{','.join(asked_for)}=", ",".join(values[key] for key in asked_for))


def held_out_value(rng: random.Random, key: str) -> str:
    """A value that `key` never has in training; keys of which all pairs are training text do not occur."""
    return rng.choice([str(value) for value in range(10, 100) if reserved_line(key, str(value))])


def lookups(count: int, beyond: int, prose: float = 0.0, keys: int = 1) -> list[Item]:
    name = f"lookups {beyond} {prose} {keys}"
    return drawn_items(count, name, lambda rng: lookup_item(rng, beyond, prose, keys))


def vote_item(rng: random.Random) -> Item:
    """As in training; contexts are random, and the chance that one repeats a training context is nil."""
    text = "".join(piece for piece, _ in recall.votes(rng, 1000, 0.25))
    prompt, _, answer = text.rstrip("\n").rpartition("=")
    return Item(f"{prompt}=", answer)


def tally_item(rng: random.Random, ballots: int, keys: int) -> Item:
    """Ballots with a held-out result, which their first fifth speaks against. With `keys` a line stands before each
    ballot, and that many of the first fifth's are asked for."""
    result = ""
    while not tally.reserved_result(result):
        result = "".join(rng.choice(pair) for pair in tally.PAIRS)
    wins = [letter == pair[0] for letter, pair in zip(result, tally.PAIRS, strict=True)]
    count = tally.Count()
    cast: list[str] = []
    while count.result != result or not all(count.clear(0.2)):
        count, cast = tally.Count(), []
        for place in range(ballots):
            sides = [win == (place >= ballots // 5) for win in wins]
            cast.append(tally.ballot(rng, [0.85 if side else 0.15 for side in sides]))
            count.add(cast[-1])
    order = rng.sample([a + b for a in recall.KEY_LETTERS for b in recall.KEY_LETTERS], ballots if keys else 0)
    asked_for = rng.sample(order[: ballots // 5], keys)
    values = {key: held_out_value(rng, key) if key in asked_for else str(rng.randint(10, 99)) for key in order}
    lines = [f"{key}={values[key]}" for key in order]
    text = "".join(f"{line}\n" for pair in zip(lines or [""] * ballots, cast, strict=True) for line in pair if line)
    query = ",".join([*asked_for, "*"])
    return Item(f"{text}?{query}=", ",".join([*(values[key] for key in asked_for), result]))


def tallies(count: int, ballots: int, keys: int) -> list[Item]:
    return drawn_items(count, f"tallies {ballots} {keys}", lambda rng: tally_item(rng, ballots, keys))


# JSON and tools.


def json_item(rng: random.Random, thinking: Thinking, new: bool) -> Item | None:
    question, answer = structured.request(rng, SENTENCES if new else structured.SENTENCES)
    if not new and not reserved_question(question):
        return None
    return chat_item(question, structured.reply_of(answer), thinking, "json")


def tool_item(rng: random.Random, kind: str, thinking: Thinking, new: bool) -> Item | None:
    """The last reply of a chat whose first question is held out, or in a new wording."""
    chat = tool_chats.chat_of(rng, kind, NEW_REQUESTS if new else REQUESTS)
    question = tool_chats.first_question(chat)
    if question in PROBED or not (new or reserved_question(question)) or chat.reply is None:
        return None
    return Item(chat.prompt(thinking), chat.reply.line(thinking)[:-1], "calls", thinking != "off")


def tool_items(kind: str, count: int, thinking: Thinking, new: bool = False) -> list[Item]:
    return drawn_items(count, f"{kind} {thinking} {new}", lambda rng: tool_item(rng, kind, thinking, new))
