"""Mocked tools: what they give, when they fail, and that they always give the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsbench.score.tool_transcript import Called
from dsbench.tool_mocks import answer_call
from dsbench.tool_scenarios import Battery, battery, fits

JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def ask(tool: str, scenario: str = "A1", earlier: list[Called] | None = None, **arguments: Any) -> dict[str, Any]:
    data = battery()
    return json.loads(answer_call(data, data.scenario(scenario), earlier or [], tool, json.dumps(arguments)))


@pytest.mark.parametrize(
    ("tool", "arguments", "gives"),
    [
        ("get_weather", {"city": " oslo "}, {"temp": 4, "sky": "rainy"}),
        ("get_weather", {"city": "Atlantis"}, {"error": "no weather for this place"}),
        ("get_weather", {}, {"error": "argument city is missing"}),
        ("get_weather", {"city": "Oslo", "unit": "F"}, {"error": "there is no argument unit"}),
        ("get_moon", {}, {"error": "there is no tool get_moon"}),
        ("find_contact", {"name": "Jon"}, {"error": "no such contact"}),
        ("send_email", {"to": "nobody", "subject": "", "body": ""}, {"error": "to is no email address"}),
        ("send_email", {"to": "a@b.example", "subject": "", "body": ""}, {"status": "sent"}),
        ("create_event", {"title": "x", "date": "tomorrow", "time": "9:00"},
         {"error": "date must be YYYY-MM-DD and time HH:MM"}),
        ("list_events", {"date": "2026-03-21"}, {"events": []}),
        ("convert_currency", {"amount": "250", "from": "usd", "to": "EUR"}, {"result": 230.0}),
        ("convert_currency", {"amount": 1, "from": "euro", "to": "USD"}, {"error": "currencies are codes such as USD"}),
        ("convert_currency", {"amount": "x", "from": "EUR", "to": "USD"},
         {"error": "currencies are codes such as USD"}),
        ("calculate", {"expression": "6*7"}, {"result": 42}),
        ("calculate", {"expression": "1/3"}, {"result": 0.333333}),
        ("calculate", {"expression": "1/0"}, {"error": "only numbers, + - * / and brackets"}),
        ("calculate", {"expression": "9**9**9"}, {"error": "only numbers, + - * / and brackets"}),
        ("calculate", {"expression": "__import__('os')"}, {"error": "only numbers, + - * / and brackets"}),
        ("calculate", {"expression": "(" * 5000}, {"error": "only numbers, + - * / and brackets"}),
        ("calculate", {"expression": "1e308*10"}, {"error": "only numbers, + - * / and brackets"}),
    ],
)  # fmt: skip
def test_what_a_call_gives(tool: str, arguments: dict[str, Any], gives: dict[str, Any]) -> None:
    assert ask(tool, **arguments) == gives


def test_a_passing_failure_passes() -> None:
    call = Called(name="get_weather", arguments='{"city": "Bergen"}')
    assert ask("get_weather", "E1", city="Bergen") == {"error": "timeout, try again"}
    assert ask("get_weather", "E1", [call], city="Bergen")["sky"] == "rainy"
    assert ask("get_weather", "E1", [call.model_copy(update={"arguments": '{"city": "Oslo"}'})], city="Bergen") == {
        "error": "timeout, try again"}  # fmt: skip
    assert ask("get_weather", "A1", city="Bergen")["sky"] == "rainy"


@given(st.sampled_from(battery().ids), st.sampled_from([*battery().tools]), st.data())
@settings(deadline=None)
def test_anything_gets_one_line_of_json_and_always_the_same(scenario: str, tool: str, data: st.DataObject) -> None:
    keys = [*battery().tools[tool].parameters]
    arguments = data.draw(
        st.one_of(st.text(max_size=8), st.fixed_dictionaries(dict.fromkeys(keys, JSON)).map(json.dumps))
    )
    results = {answer_call(battery(), battery().scenario(scenario), [], tool, arguments) for _ in range(2)}
    (result,) = results
    assert "\n" not in result
    assert isinstance(json.loads(result, parse_constant=pytest.fail), dict)


@given(st.integers(-99, 99), st.sampled_from("+-*"), st.integers(0, 99), st.sampled_from("+-*"), st.integers(0, 99))
def test_calculate_is_arithmetic(a: int, first: str, b: int, second: str, c: int) -> None:
    text = f"{a} {first} ({b} {second} {c})"
    assert ask("calculate", expression=text) == {"result": eval(text)}


def test_arguments_fit_as_text_and_as_numbers() -> None:
    assert fits(250, "250.0")
    assert fits("09:00", " 09:00 ")
    assert fits("5", 5)
    assert not fits(250, "abc")
    assert not fits(1, True)
    assert not fits("x", ["x"])
    assert fits("can't", "Can\u2019t")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"results": {"fly": []}}, "A1 names unknown tools: fly"),
        ({"rules": [{"points": 1}]}, "the first rule gives 2 points"),
        ({"rules": [{"points": 2, "answer": ["("]}]}, "unterminated subpattern"),
        ({"rules": [{"points": 2, "calls": [{"tool": "get_weather", "arguments": {}}]}]}, "each of its arguments"),
        ({"id": "A2"}, "two scenarios have one id"),
    ],
)
def test_data_that_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    raw = battery().model_dump()
    raw["scenarios"][0] |= change
    with pytest.raises(Exception, match=message):
        Battery.model_validate(raw)
