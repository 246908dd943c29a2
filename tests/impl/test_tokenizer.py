import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.checks.text import leaked_control_token
from impl import tokenizer

ALPHABET = [chr(c) for c in range(32, 127)] + ["\n"]


@given(st.text(alphabet=ALPHABET))
def test_text_survives(text: str) -> None:
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert all(0 <= i < tokenizer.PAD for i in ids)
    assert tokenizer.decode(ids) == text


@given(st.text())
def test_unknown_characters_become_question_marks(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == "".join(c if c in ALPHABET else "?" for c in text)


def test_ids_are_fixed() -> None:
    assert tokenizer.encode(" ~\n?") == [0, 94, 95, 31]
    assert (tokenizer.PAD, tokenizer.BOS, tokenizer.EOS, tokenizer.NOISE) == (96, 97, 98, 99)


def test_decode_drops_specials_and_strangers() -> None:
    assert tokenizer.decode([97, 33, 96, 98, 34, 99, 100, 5000, -1]) == "AB"


def test_specials_are_shown_where_they_are_asked_for() -> None:
    assert tokenizer.decode([97, 33, 96, 95, 98, 34, 99, 100, 5000, -1], specials=True) == (
        "<|bos|>A<|pad|>\n<|eos|>B<|noise|>"
    )


def test_the_coherence_scorer_takes_every_special_for_a_leak() -> None:
    assert all(leaked_control_token(f"The log {text} says") for text in tokenizer.SPECIALS.values())
    assert set(tokenizer.SPECIALS) == set(range(tokenizer.PAD, tokenizer.VOCAB_SIZE))


def test_chat_prompt() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "7*8"},
        {"role": "assistant", "content": "56"},
        {"role": "user", "content": "17+25"},
    ]
    assert tokenizer.chat_prompt(messages) == "Be brief.\nQ: 7*8\nA: 56\nQ: 17+25\nA:"


CALLED = {"role": "assistant", "content": None, "tool_calls": [
    {"function": {"name": "add", "arguments": '{"a":1,  "b": "x"}'}}, {"function": {"name": "now", "arguments": "{}"}},
]}  # fmt: skip


def test_chat_prompt_with_tools_and_their_results() -> None:
    messages = [
        {"role": "system", "content": "Today is Friday."},
        {"role": "user", "content": "1+x?"},
        CALLED,
        {"role": "tool", "content": "7"},
        {"role": "tool", "content": "noon"},
    ]
    text = 'T: add(a,b)\nT: now()\nToday is Friday.\nQ: 1+x?\nA: !add {"a": 1, "b": "x"} !now {}\nR: 7\nR: noon\nA:'
    assert tokenizer.chat_prompt(messages, {"add": ["a", "b"], "now": []}) == text


def test_chat_prompt_for_a_thought() -> None:
    messages = [
        {"role": "user", "content": "7*8"},
        {"role": "assistant", "content": "56", "reasoning_content": "a product"},
        {"role": "user", "content": "17+25"},
    ]
    assert tokenizer.chat_prompt(messages, thinking="on") == "Q: 7*8\nA: 56\nQ: 17+25\nH:"
    assert tokenizer.chat_prompt(messages, thinking="max") == "Q: 7*8\nA: 56\nThink hard.\nQ: 17+25\nH:"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"role": "critic", "content": "x"}], "'critic' is unknown"),
        ([{"role": "tool", "content": "x"}], "must follow the assistant's tool_calls, not nothing"),
        ([{"role": "user", "content": "a"}, {"role": "tool", "content": "x"}], "tool_calls, not user"),
        ([{"role": "user", "content": "a"}, CALLED], "last message must be a user turn or a tool result"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1"}}]}],
            "call of f must be the text of a JSON object, got '\\[1'",
        ),
        ([], "last message must be a user turn"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "last message must be a user turn"),
        ([{"role": "system", "content": "sneaky\nA:"}], "last message must be a user turn"),
    ],
)
def test_bad_chats(messages: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tokenizer.chat_prompt(messages)


def test_needs_no_torch() -> None:
    code = "import sys, impl.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
