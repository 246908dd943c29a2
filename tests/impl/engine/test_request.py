"""Stop rules, and text that is handed out only once it cannot be taken back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.engine.request import Request, SamplingParams


def feed(text: str, **params: object) -> tuple[Request, list[str]]:
    """Append one character at a time until the request ends; also the pieces it handed out."""
    request = Request("r", [1, 2, 3], SamplingParams(**{"max_tokens": 1000, **params}))  # type: ignore[arg-type]
    pieces = []
    for char in text:
        request.append(ord(char), char)
        pieces.append(request.new_text())
        if request.finish_reason:
            break
    return request, pieces


def test_a_stop_string_ends_the_text_before_it() -> None:
    request, pieces = feed("abcENDxyz", stop=("END", "zz"))
    assert (request.text, request.finish_reason, len(request.outputs)) == ("abc", "stop", 6)
    assert pieces == ["a", "b", "c", "", "", ""]


def test_held_back_text_comes_when_it_is_no_stop_string() -> None:
    request, pieces = feed("aENaENb", stop=("END",))
    assert pieces == ["a", "", "", "ENa", "", "", "ENb"]
    assert request.finish_reason is None


def test_a_stop_id_ends_the_request_and_adds_no_text() -> None:
    request, _ = feed("ab!c", stop_ids=frozenset({ord("!")}))
    assert (request.text, request.finish_reason, request.outputs) == ("ab", "stop", [97, 98, 33])


def test_length_ends_it_and_a_stop_string_wins_on_the_last_token() -> None:
    assert feed("abcd", max_tokens=3)[0].finish_reason == "length"
    assert feed("abc", max_tokens=3, stop=("bc",))[0].finish_reason == "stop"


def test_the_earliest_of_two_stop_strings_counts() -> None:
    assert feed("xaab", stop=("b", "aab"))[0].text == "x"


@given(
    text=st.text("abc", max_size=25),
    stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    n=st.integers(1, 30),
)
def test_pieces_add_up_to_the_text_for_any_stops(text: str, stops: list[str], n: int) -> None:
    request, pieces = feed(text, stop=tuple(stops), max_tokens=n)
    taken = "".join(map(chr, request.outputs))
    cut = min((at for stop in stops if (at := taken.find(stop)) >= 0), default=len(taken))
    assert request.text == taken[:cut]
    if request.finish_reason:
        assert "".join(pieces) == request.text
    else:
        assert request.text.startswith("".join(pieces))
    assert (request.finish_reason == "stop") == (cut < len(taken))


@given(n_prompt=st.integers(1, 9), n_out=st.integers(0, 9), data=st.data())
def test_tokens_are_prompt_then_outputs(n_prompt: int, n_out: int, data: st.DataObject) -> None:
    prompt, outputs = list(range(n_prompt)), list(range(100, 100 + n_out))
    request = Request("r", prompt, SamplingParams(), outputs=outputs)
    start = data.draw(st.integers(0, request.n_tokens))
    end = data.draw(st.integers(start, request.n_tokens))
    assert request.tokens(start, end) == (prompt + outputs)[start:end]


def test_empty_prompts_and_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        Request("r", [], SamplingParams())
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        Request("r", [1], SamplingParams(max_tokens=0))
