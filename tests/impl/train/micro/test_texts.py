"""Kinds of training text: the right answers, in the server's own chat format, apart from what is held out."""

from __future__ import annotations

import json
import random
import re
import tomllib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from dsbench.score.instruction import fault
from dsbench.tool_scenarios import battery
from impl.chat_reply import ReplySplitter
from impl.tokenizer import decode, encode
from impl.train.micro import arithmetic, chats, facts, prose, recall, structured, tally, tool_chats
from impl.train.micro.reserved import PROBED, allowed, operations, reserved, reserved_line, reserved_question
from impl.train.micro.tools import TOOLS
from impl.train.packing import ANSWER, Segments

SUITES = Path(__file__).resolve().parents[4] / "suites"
SEEDS = st.integers(0, 10**9)
MAKERS = (arithmetic.completions, arithmetic.training_chat, facts.training_text, structured.training_text,
          chats.problem_text, chats.small_chat, tool_chats.training_text, prose.paragraph)  # fmt: skip


def text_of(segments: Segments) -> str:
    return "".join(piece for piece, _ in segments)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_text_has_only_characters_of_the_vocabulary_and_fits_a_row(seed: int) -> None:
    for make in MAKERS:
        text = text_of(make(random.Random(seed)))
        assert decode(encode(text)) == text
        assert text.endswith("\n")
        assert len(text) <= 1022


def test_operations_are_found_however_they_are_written() -> None:
    text = "17+25=42. 3*4+5 is 17 x 23, 9 times 9, 40 minus 12, (3+4)*5, 2026-03-20, 12:30, v1.5+2"
    found = [("+", 17, 25), ("*", 3, 4), ("+", 4, 5), ("*", 17, 23), ("*", 9, 9), ("-", 40, 12), ("+", 3, 4)]
    assert operations(text)[:7] == found


def test_a_tenth_is_held_out_and_the_shown_pairs_are_not() -> None:
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    for sign in "+-*":
        assert 0.07 < sum(reserved(sign, a, b) for a, b in pairs) / len(pairs) < 0.13
        assert all(reserved(sign, a, b) == reserved(sign, b, a) for a, b in pairs)
    assert allowed("17+25 17*23 17x23 23 times 17 7*8 12*12 17*20=340 17*3=51 340+51=391")


@settings(max_examples=200, deadline=None)
@given(SEEDS)
def test_arithmetic_is_right(seed: int) -> None:
    rng = random.Random(seed)
    sign, a, b = arithmetic.training_operands(rng, large=0.3)
    result = eval(f"{a}{sign}{b}")
    assert arithmetic.result_of(sign, a, b) == result
    steps = arithmetic.scratch(sign, a, b)
    for left, right in re.findall(r"([\d+*-]+)=(\d+)\.", steps):
        assert eval(left) == int(right), steps
    assert steps.count("=") == steps.count(". ") + 1
    reply = arithmetic.chat_of(rng, sign, a, b).reply
    assert reply is not None
    assert reply.answer.endswith(str(result))
    text = text_of(arithmetic.completion_of(arithmetic.written(rng, sign, a, b), result))
    assert re.fullmatch(rf"{a}[-+*x?]{b}={result}\n", text) or re.fullmatch(rf"{a} [-+*x?] {b} = {result}\n", text)


@settings(max_examples=100, deadline=None)
@given(st.integers(10, 999), st.integers(10, 999))
def test_a_column_sum_spells_the_result(a: int, b: int) -> None:
    totals = re.findall(r"=(\d+)\.", arithmetic.column_sum(a, b))
    assert totals[-1] + "".join(total[-1] for total in reversed(totals[:-1])) == str(a + b)


def test_what_the_suites_ask_is_not_held_out() -> None:
    shown = []
    for path in SUITES.glob("*.toml"):
        smoke = tomllib.loads(path.read_text()).get("probes", {}).get("smoke", {})
        shown += [item.get("chat") or item["prompt"] for item in smoke.get("items", [])]
    assert len(set(shown)) >= 4
    assert not [text for text in shown if reserved_question(text) or not allowed(decode(encode(text)))]


def test_facts_answer_the_smoke_questions() -> None:
    rng = random.Random(0)
    known = dict(facts.training_fact(rng) for _ in range(4000))
    assert known["What is the capital of France?"] == "Paris"
    assert known["What are the first three primes?"] == "2, 3, 5"
    assert len(facts.CAPITALS) >= 40
    assert not [question for question in known if reserved_question(question) and question not in dict(facts.SHORT)]


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_json_answers_pass_the_harness_s_scorer(seed: int) -> None:
    question, answer = structured.request(random.Random(seed), structured.SENTENCES)
    assert 2 <= len(answer) <= 4
    assert fault(structured.reply_of(answer).text, answer) is None
    assert all(str(value) in question and key in question for key, value in answer.items())


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.sampled_from(("off", "on", "max")))
def test_tool_replies_are_read_by_the_server_as_they_were_meant(seed: int, thinking: str) -> None:
    chat = tool_chats.any_chat(random.Random(seed))
    assert chat.reply is not None
    line = chat.reply.line(thinking)  # type: ignore[arg-type]
    piece = ReplySplitter(thinking=thinking != "off", tools=True).add(line.rstrip("\n"), last=True)
    calls = tuple((call.name, json.loads(call.arguments)) for call in piece.calls)
    assert calls == tuple((name, dict(given)) for name, given in chat.reply.calls)
    assert piece.content.strip() == chat.reply.answer
    assert piece.reasoning.strip().startswith(chat.reply.thought if thinking != "off" else "")
    for name, arguments in calls:
        assert tuple(arguments) == TOOLS[name]
        assert name in chat.tools
    assert text_of(chat.segments(thinking)).startswith(chat.prompt(thinking))  # type: ignore[arg-type]


def test_a_chat_may_stop_at_any_reply() -> None:
    chat = tool_chats.KINDS["chain"][0](random.Random(2), tool_chats.REQUESTS)
    whole = chat.prompt("off")
    first = chat.earlier[0][1]
    chat.stop_at(0)
    assert chat.reply == first
    assert first.calls
    assert whole.startswith(f"{chat.prompt('off')}{first.line('off')}R: ")
    assert chat.prompt("max").endswith("H:")


def test_a_chat_with_tools_has_every_kind_and_never_a_question_of_the_probe() -> None:
    assert {scenario.question for scenario in battery().scenarios} <= PROBED
    assert {name: tuple(tool.parameters) for name, tool in battery().tools.items()} == TOOLS
    rng = random.Random(3)
    asked = []
    for _ in range(3000):
        chat = tool_chats.any_chat(rng)
        if tool_chats.may_train(chat):
            asked.append(tool_chats.first_question(chat))
    assert not PROBED & set(asked)
    assert len(set(asked)) > 1500


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(200, 4600), st.sampled_from((0.0, 0.6)), st.floats(0, 1))
def test_recall_answers_are_those_of_the_lines(seed: int, characters: int, prose_share: float, chat: float) -> None:
    stage = recall.Stage(distinct=0.3, prose=(prose_share,), chats=chat)
    segments = recall.lookup(random.Random(seed), characters, stage)
    text = text_of(segments)
    assert characters - 130 < len(text) <= characters or prose_share
    assert len(text) <= characters
    values: dict[str, str] = {}
    for line in text.replace("\nA:", "").split("\n"):
        found = re.fullmatch(r"(?:Q: )?\??([a-z,]+)=( ?[\d,]+)", line)
        if found:
            for key, value in zip(found[1].split(","), found[2].strip().split(","), strict=True):
                assert values.setdefault(key, value) == value
                assert not reserved_line(key, value)
    assert any(weight == ANSWER for _, weight in segments) or len(values) < 3


def test_most_queries_reach_beyond_the_window() -> None:
    text = text_of(recall.lookup(random.Random(1), 4000, recall.Stage()))
    back = []
    for query in re.finditer(r"\?([a-z]{2})=(\d\d)\n", text):
        last = text.rfind(f"{query[1]}={query[2]}", 0, query.start() + 1)
        back.append(query.start() - last)
    assert len(back) > 50
    assert sum(b > recall.WINDOW for b in back) > 0.75 * len(back)
    assert max(back) > 1500


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(300, 1000), st.floats(0.1, 0.5))
def test_votes_are_counted_right(seed: int, characters: int, margin: float) -> None:
    text = text_of(recall.votes(random.Random(seed), characters, margin))
    *lines, query, _ = text.split("\n")
    value = query.partition("=")[2]
    counts = sorted(((line.partition("=")[2]) for line in lines), key=lambda v: v != value)
    assert len(text) <= characters
    assert counts.count(value) > len(lines) / 2
    assert len(set(counts)) == 2


def counted(lines: list[str]) -> str:
    """The letters that lead in the ballots among lines; the first of a pair where they are level."""
    ballots = [line for line in lines if re.fullmatch("[A-X]{12}", line)]
    return "".join(
        max(pair, key=lambda letter: sum(letter == ballot[place] for ballot in ballots))
        for place, pair in enumerate(tally.PAIRS)
    )


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(300, 2302), st.booleans())
def test_tallies_are_right_at_every_point_and_none_is_held_out(seed: int, size: int, once: bool) -> None:
    made = tally.tally(random.Random(seed), size, once=once)
    text = text_of(made)
    assert size - 75 <= len(text) <= size
    lines = text.splitlines()
    values = dict(line.split("=") for line in lines if re.fullmatch("[a-z]{2}=[0-9]{2}", line))
    asked = [place for place, line in enumerate(lines) if line.startswith("?")]
    assert asked
    assert not once or asked == [len(lines) - 1]
    for place in asked:
        query, answer = lines[place].split("=")
        *keys, star = query[1:].split(",")
        *found, result = answer.split(",")
        assert star == "*"
        assert found == [values[key] for key in keys]
        assert result == counted(lines[:place])
        assert not tally.reserved_result(result)
    assert not any(reserved_line(key, value) for key, value in values.items())


def test_letters_that_hardly_lead_count_little() -> None:
    count = tally.Count()
    for ballot in ("ACEGIKMOQSUW", "ACEGIKMOQSUX", "BCEGIKMOQSUW", "BCEGIKMOQSUW"):
        count.add(ballot)
    assert count.result == "ACEGIKMOQSUW"
    assert count.clear(0.1) == [False] + [True] * 11
    assert count.clear(0.6) == [False] + [True] * 10 + [False]
