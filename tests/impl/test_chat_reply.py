"""Replies taken apart: thoughts, answers and calls, whole and in pieces of any size."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.chat_reply import Call, Piece, ReplySplitter, read_calls
from impl.tokenizer import call_text


def split(pieces: list[str], *, thinking: bool = False, tools: bool = False) -> Piece:
    """Everything a reply adds up to, when it comes in these pieces."""
    splitter = ReplySplitter(thinking=thinking, tools=tools)
    found = [splitter.add(piece, last=False) for piece in pieces] + [splitter.add("", last=True)]
    calls = tuple(call for piece in found for call in piece.calls)
    return Piece("".join(p.reasoning for p in found), "".join(p.content for p in found), calls)


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        (" 7 and 8 A: 56", Piece("7 and 8", "56")),
        (" A: 56", Piece("", "56")),
        (" a A: b A: c", Piece("a", "b A: c")),
        (" never ends A", Piece("never ends A")),
        (' look A: !get {"x": 1}', Piece("look", "", (Call("get", '{"x": 1}'),))),
        (' !get {"x": 1} A: 5', Piece('!get {"x": 1}', "5")),
        (' look A: !get {"x": 1', Piece("look", '!get {"x": 1')),
        (' look A: ok !get {"x": 1}', Piece("look", 'ok !get {"x": 1}')),
        ("", Piece()),
    ],
)
def test_thoughts_answers_and_calls(text: str, piece: Piece) -> None:
    assert ReplySplitter(thinking=True, tools=True).add(text, last=True) == piece


def test_without_tools_or_thinking_it_is_text() -> None:
    text = ' I see A: !get {"x": 1}'
    assert ReplySplitter().add(text, last=True) == Piece(content=text[1:])
    assert ReplySplitter(tools=True).add(text, last=True) == Piece(content=text[1:])
    assert ReplySplitter().add(' !get {"x": 1}', last=True) == Piece(content='!get {"x": 1}')


def test_what_is_known_is_handed_out_at_once() -> None:
    splitter = ReplySplitter(thinking=True)
    assert [splitter.add(c).reasoning for c in " ab A"] == ["", "a", "b", "", ""]
    assert splitter.add("x").reasoning == " Ax"
    assert (splitter.add(" A:"), splitter.add(" 5"), splitter.add("6")) == (Piece(), Piece("", "5"), Piece("", "6"))


ALPHABET = ' A:!gx{}"1,'


@given(st.lists(st.text(ALPHABET, max_size=4), max_size=12), st.booleans(), st.booleans())
def test_any_pieces_add_up_to_the_whole(pieces: list[str], thinking: bool, tools: bool) -> None:
    whole = ReplySplitter(thinking=thinking, tools=tools).add("".join(pieces), last=True)
    assert split(pieces, thinking=thinking, tools=tools) == whole


ARGUMENTS = st.dictionaries(st.text(max_size=5), st.one_of(st.text(max_size=8), st.integers(), st.none()), max_size=3)
CALLS = st.lists(st.tuples(st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True), ARGUMENTS), min_size=1, max_size=3)


@given(CALLS)
def test_calls_survive_being_written_and_read(calls: list[tuple[str, dict[str, object]]]) -> None:
    found = read_calls(" ".join(call_text(name, arguments) for name, arguments in calls))
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


@pytest.mark.parametrize(
    "text",
    ["", "!", "!get", "!get ", "!get 5", "!get [1]", '!get {"x": 1}!get {}', '!get {"x": 1} then', "! {}",
     '!get {"x": NaN}', "get {}", '!get {"x": ' + "[" * 5000, '!get{"x": 1}', '!get {} {}'],
)  # fmt: skip
def test_what_is_malformed_is_no_call(text: str) -> None:
    assert read_calls(text) == ()
