"""Held-out items are apart from training text, and their judges know right from wrong."""

from __future__ import annotations

import random
import re

import pytest

from impl.train.micro import heldout, recall, tally, tool_chats
from impl.train.micro.heldout import Item
from impl.train.micro.heldout_tools import NEW_REQUESTS
from impl.train.micro.reserved import operations, reserved, reserved_line, reserved_question
from impl.train.micro.structured import SENTENCES
from impl.train.micro.tool_wordings import REQUESTS
from impl.train.micro.tools import TOOLS


def question_of(item: Item) -> str:
    found = re.findall(r"^Q: (.*)$", item.prompt, re.MULTILINE)
    return str(found[0])


def test_arithmetic_asks_for_held_out_pairs_only() -> None:
    items = heldout.bare("+", heldout.two_digit_sums(), "chat") + heldout.bare(
        "+", heldout.three_digit("+", 50), "chat"
    )
    items += heldout.bare("-", heldout.three_digit("-", 50), "completion") + heldout.step_products(50)
    for item in items:
        ((sign, a, b),) = operations(item.prompt)
        assert reserved(sign, a, b)
        assert item.reply.strip().endswith(str({"+": a + b, "-": a - b, "*": a * b}[sign]))
    assert len({item.prompt for item in items}) == len(items) > 900


@pytest.mark.parametrize(("beyond", "prose", "keys"), [(100, 0.0, 1), (1000, 0.0, 1), (1000, 0.7, 1), (1000, 0.0, 6)])
def test_lookups_lie_beyond_the_window_on_held_out_lines(beyond: int, prose: float, keys: int) -> None:
    for item in heldout.lookups(20, beyond, prose, keys):
        context, _, query = item.prompt.rpartition("?")
        asked = query[:-1].split(",")
        assert len(asked) == keys
        for key, value in zip(asked, item.reply.split(","), strict=True):
            line = f"{key}={value}\n"
            assert context.count(line) == 1
            assert len(context) - context.index(line) - len(line) > recall.WINDOW + beyond
            assert reserved_line(key, value)
        assert len(item.prompt) < 5000


@pytest.mark.parametrize("keys", [0, 2])
def test_tallies_are_held_out_and_their_beginning_says_the_opposite(keys: int) -> None:
    for item in heldout.tallies(20, 80, keys):
        *lines, query = item.prompt.split("\n")
        *values, result = item.reply.split(",")
        ballots = [line for line in lines if "=" not in line]
        assert len(ballots) == 80
        assert tally.reserved_result(result)
        whole, early = tally.Count(), tally.Count()
        for place, ballot in enumerate(ballots):
            whole.add(ballot)
            if place < 16:
                early.add(ballot)
        assert whole.result == result
        assert all(whole.clear(0.2))
        assert sum(a == b for a, b in zip(early.result, result, strict=True)) <= 3
        assert query == f"?{','.join([*asked_lines(item, values), '*'])}="


def asked_lines(item: Item, values: list[str]) -> list[str]:
    """The asked keys, each of which has its value in a held-out line more than 1,000 tokens beyond the window."""
    context, _, query = item.prompt.rpartition("?")
    keys = query[:-1].split(",")[:-1]
    for key, value in zip(keys, values, strict=True):
        assert len(context) - context.index(f"{key}={value}\n") > recall.WINDOW + 1000
        assert reserved_line(key, value)
    return keys


def test_every_key_has_held_out_values() -> None:
    rng = random.Random(0)
    assert all(heldout.held_out_value(rng, a + b) for a in recall.KEY_LETTERS for b in recall.KEY_LETTERS)


@pytest.mark.parametrize("kind", list(tool_chats.KINDS))
def test_tool_chats_open_with_held_out_questions(kind: str) -> None:
    for item in heldout.tool_items(kind, 20, "off"):
        assert reserved_question(question_of(item))
        assert item.right(item.reply)
        assert not item.right("")
        assert not item.right(' !get_weather {"city": "Nowhere"}')


def test_new_wordings_and_sentences_are_new() -> None:
    assert set(NEW_REQUESTS) == set(TOOLS)
    assert all(set(NEW_REQUESTS[tool]).isdisjoint(REQUESTS[tool]) for tool in TOOLS)
    assert set(heldout.SENTENCES).isdisjoint(SENTENCES)
    new = heldout.drawn_items(20, "new", lambda rng: heldout.json_item(rng, "off", True))
    known = heldout.drawn_items(20, "known", lambda rng: heldout.json_item(rng, "off", False))
    assert all(reserved_question(question_of(item)) for item in known)
    assert all(item.right(item.reply) for item in new + known)


@pytest.mark.parametrize(
    ("item", "right", "wrong"),
    [
        (Item("", " 42"), [" 42"], ["42", " 43", ""]),
        (Item("", " 1+2=3. #### 3", "number"), [" 2+1=3. #### 3", "#### 3"], [" 3", " #### 4", " #### 33"]),
        (Item("", ' {"a": 1, "b": 2}', "json"), [' {"a":1,"b":2}'], [' {"b": 2, "a": 1}', ' {"a": 1}', " {", " 3"]),
        (
            Item("", ' !f {"a": 1, "b": 2}', "calls"),
            [' !f {"b": 2, "a": 1}'],
            [' !f {"a": 1}', ' !g {"a": 1, "b": 2}', ' !f {"a": 1', " no", ' Well: !f {"a": 1, "b": 2}'],
        ),
        (Item("", " Which city?", "calls"), [" Which city?"], [' !f {"a": 1}', " Why?"]),
        (
            Item("", ' I think. A: !f {"a": 1}', "calls", thinks=True),
            [' Hm. A: !f {"a": 1}'],
            [' !f {"a": 1}', " A: no", ' Hm. A: !f {"a": 2}'],
        ),
    ],
)  # fmt: skip
def test_judges(item: Item, right: list[str], wrong: list[str]) -> None:
    assert [text for text in right if not item.right(text)] == []
    assert [text for text in wrong if item.right(text)] == []
