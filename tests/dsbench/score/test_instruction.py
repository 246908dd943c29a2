"""JSON-only replies: what is right, and each way to miss."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.score.instruction import fault

FACTS = {"name": "Ann", "age": 31}


@pytest.mark.parametrize("reply", ['{"name": "Ann", "age": 31}', '\n {"age":31,\n "name":"Ann"} \n'])
def test_right(reply):
    assert fault(reply, FACTS) is None


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("", "empty"),
        ('```json\n{"name": "Ann", "age": 31}\n```', "a code fence around the JSON"),
        ('Sure: {"name": "Ann", "age": 31}', "text before the JSON"),
        ('{"name": "Ann", "age": 31} Done.', "text after the JSON"),
        ('{"name": "Ann", "age": 31}{"name": "Ann"}', "not JSON"),
        ('{"name": "Ann", "age": 31', "not JSON"),
        ("{'name': 'Ann', 'age': 31}", "not JSON"),
        ("Ann is 31.", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"a":' * 100_000, "not JSON"),
        ('["Ann", 31]', "a list instead of an object"),
        ("31", "a whole number instead of an object"),
        ("null", "null instead of an object"),
        ('{"name": "Ann"}', "without age"),
        ('{"Name": "Ann", "age": 31}', "without name"),
        ('{"name": "Ann", "age": 31, "city": "Oslo"}', "with keys that nobody asked for: city"),
        ('{"name": "Ann", "name": "Ann", "age": 31}', "key name is there twice"),
        ('{"name": "Ann", "age": "31"}', "age is a text, not a whole number"),
        ('{"name": "Ann", "age": 31.0}', "age is a number with a point, not a whole number"),
        ('{"name": true, "age": 31}', "name is true or false, not a text"),
        ('{"name": null, "age": 31}', "name is null, not a text"),
        ('{"name": "Ben", "age": 31}', "name is 'Ben', not 'Ann'"),
        ('{"name": "Ann", "age": 13}', "age is '13', not '31'"),
    ],
)
def test_misses(reply, why):
    assert fault(reply, FACTS) == why


VALUES = st.text(max_size=6) | st.integers(-(10**9), 10**9)


@given(st.dictionaries(st.text(min_size=1, max_size=6), VALUES, min_size=1, max_size=4), st.text(max_size=4))
def test_an_object_is_right_and_anything_around_it_is_not(facts, around):
    written = json.dumps(facts)
    if "```" not in written:
        assert fault(written, facts) is None
    if around.strip():
        assert fault(around + written, facts) is not None
        assert fault(written + around, facts) is not None


@given(st.text(max_size=40))
def test_any_text_has_an_answer(reply):
    assert fault(reply, FACTS) is not None
