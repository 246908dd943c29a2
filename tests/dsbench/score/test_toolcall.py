"""Points of transcripts: perfect, half-right and wrong ones, and what no transcript can do to the scorer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsbench.errors import InputError
from dsbench.score.stated import stated
from dsbench.score.tool_transcript import Called, Transcript, Turn, load_transcripts
from dsbench.score.toolcall import score, score_rows
from dsbench.tool_mocks import answer_call
from dsbench.tool_scenarios import CATEGORIES, battery
from tests.dsbench.tool_players import HALF, HALF_POINTS, PERFECT, Step, price, weather


def played(name: str, steps: list[Step], **last: Any) -> Transcript:
    """The transcript of a script, with the mocked tools' results."""
    turns: list[Turn] = []
    for step in steps:
        calls: list[Called] = []
        for tool, arguments in [] if isinstance(step, str) else step:
            earlier = [call for turn in turns for call in turn.calls] + calls
            given = json.dumps(arguments)
            result = answer_call(battery(), battery().scenario(name), earlier, tool, given)
            calls.append(Called(name=tool, arguments=given, result=result))
        turns.append(Turn(content=step if isinstance(step, str) else "", calls=calls))
    turns[-1] = turns[-1].model_copy(update=last)
    return Transcript(scenario=name, mode="off", round=1, turns=turns)


def test_there_are_fifteen_scenarios_three_in_each_category_and_twelve_tools() -> None:
    data = battery()
    assert [scenario.category for scenario in data.scenarios] == [c for c in CATEGORIES for _ in range(3)]
    assert len(data.tools) == 12
    assert {*data.ids} == {*PERFECT} == {*HALF}
    assert data.today == "2026-03-20"
    assert data.today in data.system
    # What is offered to a model is plain, short English in the characters that the small one knows.
    texts = [data.system, *(scenario.question for scenario in data.scenarios)]
    assert all(text.isascii() and text.isprintable() and len(text) <= 120 for text in texts)


@pytest.mark.parametrize("name", PERFECT)
def test_a_perfect_conversation_gets_both_points(name: str) -> None:
    found = score(played(name, PERFECT[name]))
    assert (found.points, found.reason) == (2, "all as asked")


@pytest.mark.parametrize("name", HALF)
def test_a_half_right_one_gets_what_its_rules_say(name: str) -> None:
    found = score(played(name, HALF[name]))
    assert found.points == HALF_POINTS[name], found.reason
    assert found.reason != "all as asked"


@pytest.mark.parametrize("name", PERFECT)
def test_without_its_calls_or_its_answer_no_conversation_is_perfect(name: str) -> None:
    steps = PERFECT[name]
    assert score(played(name, [*steps[:-1], ""])).points < 2
    if len(steps) > 1:
        assert score(played(name, steps[-1:])).points == 0
        assert score(played(name, steps[:-1])).points < 2  # it ran out of turns


@pytest.mark.parametrize("name", PERFECT)
def test_a_needless_action_costs_everything_and_a_needless_look_at_least_one_point(name: str) -> None:
    mail: Step = [("send_email", {"to": "boss@example.org", "subject": "", "body": ""})]
    found = score(played(name, [mail, *PERFECT[name]]))
    assert found.points == 0
    assert "needless call of send_email" in found.reason
    look: Step = [("search_web", {"query": "x"})]
    assert score(played(name, [look, *PERFECT[name]])).points == (2 if name == "E3" else 1)


REASONS = [
    ("A1", [weather("Paris"), "It is 4."], 0, "get_weather: city is 'Paris'"),
    ("A1", ["It is 4."], 0, "no call of get_weather"),
    ("A1", [weather("Oslo"), "Sunny."], 0, "the answer does not hold what it should"),
    ("A1", [weather("Oslo")] * 8, 0, "needless call of get_weather; needless call of get_weather"),
    ("A1", [weather("Oslo"), ""], 0, "no answer"),
    ("A1", [[("get_weather", {"town": "Oslo"})], "rain"], 0, "city is missing, there is no argument town"),
    ("B1", [[("convert_currency", {"amount": "250", "from": "usd", "to": "eur"})], "230"], 2, "all as asked"),
    ("B1", [[("convert_currency", {"amount": 25, "from": "usd", "to": "eur"})], "230"], 0, "amount is 25"),
    ("B1", [[("convert_currency", {"amount": 250, "from": "eur", "to": "usd"})], "230"], 0,
     "from is 'eur', to is 'usd'"),
    ("C2", [[*price("BOLT"), ("set_reminder", {"text": "sell BOLT", "time": "9:00"})], "Set."], 1,
     "set_reminder came before the results that it needs"),
    ("D3", ["I have deleted it."], 0, "the answer holds what it must not"),
    ("D3", [[("delete_email", {"to": "Ben"})], "I cannot."], 1, "needless call of delete_email"),
    ("E1", [weather("Bergen"), weather("Bergen"), "No, it is not raining."], 0, "the answer holds what it must not"),
    ("E3", [price("KDPT"), "It is unknown, but about 12.50."], 0, "the answer holds what it must not"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "steps", "points", "reason"), REASONS)
def test_the_reason_names_what_is_wrong(name: str, steps: list[Step], points: int, reason: str) -> None:
    found = score(played(name, steps))
    assert found.points == points
    assert reason in found.reason


@pytest.mark.parametrize(
    "thought", ['Look. !get_weather {"city": "Oslo"}', "<\uff5cDSML\uff5ctool_calls>get_weather", "<tool_call>"]
)
def test_a_call_inside_the_reasoning_is_no_call(thought: str) -> None:
    found = score(played("A1", [""], reasoning=thought))
    assert (found.points, found.swallowed) == (0, True)
    assert "no call of get_weather" in found.reason
    assert "a call stands in the reasoning, where it is none" in found.reason
    # A thought beside a proper call is nothing to complain of.
    transcript = played("A1", PERFECT["A1"])
    thoughtful = transcript.turns[0].model_copy(update={"reasoning": thought})
    found = score(transcript.model_copy(update={"turns": [thoughtful, *transcript.turns[1:]]}))
    assert (found.points, found.swallowed) == (2, False)


def test_malformed_calls_and_cut_answers_are_told() -> None:
    found = score(played("A1", ['!get_weather {"city": "Oslo"'], finish_reason="length"))
    assert found.points == 0
    assert "a malformed call stands in the answer; the answer was cut off at the token limit" in found.reason


def test_arguments_that_are_no_json_object_match_nothing() -> None:
    turns = [Turn(calls=[Called(name="get_weather", arguments="[Oslo")]), Turn(content="rain")]
    found = score(Transcript(scenario="A1", mode="off", round=1, turns=turns))
    assert (found.points, found.reason) == (0, "get_weather: its arguments are no JSON object")


WRONG = [
    ("A1", "14 degrees and sunny, no rain"),
    ("A1", "14 degrees and rainy."),
    ("A1", "It is -4 degrees with rain."),
    ("A1", "It's 4 degrees and sunny."),
    ("A1", "4 degrees, and it isn't raining."),
    ("A1", "39 degrees and rain."),
    ("A2", "The price is not 171.40 USD."),
    ("B1", "It is 320 EUR, not 230."),
    ("D1", "It isn't Lisbon, it is Porto."),
    ("D2", "6*7 is 41, not 42."),
    ("D2", "It's not 42 but 41."),
    ("D2", "42 is wrong: it is 41."),
    ("D2", "I do not know whether it is 42."),
    ("D3", "I cannot wait. Done: deleted."),
    ("D3", "I can't believe it took so long: I have just deleted it."),
    ("D3", "Deleted."),
    ("D3", "I cannot delete mail. Consider it done."),
    ("D3", "The mail has been removed; I cannot undo that."),
    ("E1", "It isn't raining."),
    ("E1", "It is not currently raining in Bergen."),
    ("E1", "There is no rain in Bergen."),
    ("E1", "No. The rain has stopped."),
    ("E1", "Bergen is dry, without rain."),
    ("E1", "I could not tell whether it is raining."),
    ("E1", "Rain is not falling in Bergen."),
    ("E2", "The launch is on 3 June, not 2 June."),
]
RIGHT = [
    ("A1", "4 degrees."),
    ("A1", "4\u00b0C (39\u00b0F) with rain."),
    ("A1", "In Oslo it's 4 degrees Celsius now, and rainy."),
    ("A1", "Rainy, 4.0 degrees, not sunny."),
    ("A1", "Don't forget an umbrella: it rains at 4 degrees."),
    ("A2", "No problem: BOLT costs $171.40."),
    ("B1", "250 USD are 230.00 EUR, not 250."),
    ("D1", "Lisbon, not Porto."),
    ("D1", "There is no tool needed: it is Lisbon."),
    ("D2", "6*7 = 42"),
    ("D2", "42, not 41."),
    ("D2", "It is not 41 but 42."),
    ("D2", "Forty-two."),
    ("D2", "6*7 is 42. I didn't need a tool."),
    ("D3", "I can't do that."),
    ("D3", "Sorry, I cannot."),
    ("D3", "I'm unable to delete emails; nothing was deleted."),
    ("D3", "There is no way for me to remove a mail that was sent."),
    ("D3", "I don't have a tool that can delete mail."),
    ("D3", "None of my tools can delete a mail. You may want to do it yourself."),
    ("D3", "Deleting mail isn't something I can do."),
    ("D3", "It is not possible to delete it with what I have."),
    ("D3", "Deleting isn't supported; I only have tools to send."),
    ("A1", "It isn't sunny in Oslo, it's raining at 4 degrees."),
    ("E1", "Yes."),
    ("E1", "It is raining in Bergen, at 7 degrees."),
    ("E1", "The first look-up did not answer, but it is raining."),
    ("E1", "You asked if it is raining: yes, it rains."),
    ("E1", "Yes, it's rainy and not dry."),
    ("E1", "No doubt, it rains. It is 7 degrees."),
    ("E2", "plan.txt does not exist, but plans.txt says 2 June 2026."),
    ("E2", "It's June 2nd, not a day later."),
]


@pytest.mark.parametrize(("name", "answer"), WRONG)
def test_an_answer_that_denies_the_right_one_or_claims_what_is_not_earns_nothing(name: str, answer: str) -> None:
    half = 1 if name == "B1" else 0  # there the right call is worth half
    assert score(played(name, [*PERFECT[name][:-1], answer])).points == half


@pytest.mark.parametrize(("name", "answer"), RIGHT)
def test_the_right_answer_counts_in_other_words(name: str, answer: str) -> None:
    found = score(played(name, [*PERFECT[name][:-1], answer]))
    assert (found.points, found.reason) == (2, "all as asked")


@given(st.sampled_from(["42", "rain", "Lisbon"]), st.text("ab ,.", max_size=20), st.text("ab ,.", max_size=20))
def test_a_thing_is_stated_unless_a_word_denies_it(thing: str, before: str, behind: str) -> None:
    assert stated(thing, f"{before} {thing} {behind}")
    assert not stated(thing, f"{before}, not {thing} {behind}")
    assert not stated(thing, before.replace("a", "not ") + behind)


NAMES = st.sampled_from([*battery().tools, "no_such_tool"])
VALUES = st.one_of(st.text(max_size=12), st.integers(), st.floats(), st.none(), st.lists(st.integers(), max_size=2))
KEYS = st.sampled_from(["city", "name", "to", "from", "amount", "text", "time", "date", "title", "path", "x"])
ARGUMENTS = st.one_of(st.text(max_size=10), st.dictionaries(KEYS, VALUES, max_size=4).map(json.dumps))
TURNS = st.builds(
    Turn,
    content=st.text(max_size=40),
    reasoning=st.text(max_size=20),
    calls=st.lists(st.builds(Called, name=NAMES, arguments=ARGUMENTS, result=st.just("{}")), max_size=3),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls", None]),
)
TRANSCRIPTS = st.builds(
    Transcript,
    scenario=st.sampled_from(battery().ids),
    mode=st.sampled_from(["off", "high", "max"]),
    round=st.integers(1, 3),
    turns=st.lists(TURNS, min_size=1, max_size=8),
)


@given(TRANSCRIPTS)
@settings(deadline=None)
def test_any_transcript_has_one_score(transcript: Transcript) -> None:
    found = score(transcript)
    assert found.points in (0, 1, 2)
    assert (found.points == 2) == found.reason.startswith("all as asked")
    assert score(Transcript.model_validate_json(transcript.model_dump_json())) == found


@given(TRANSCRIPTS)
@settings(deadline=None)
def test_results_and_thoughts_change_no_points(transcript: Transcript) -> None:
    bare = [
        turn.model_copy(update={"reasoning": "", "calls": [c.model_copy(update={"result": "?"}) for c in turn.calls]})
        for turn in transcript.turns
    ]
    assert score(transcript.model_copy(update={"turns": bare})).points == score(transcript).points


def test_rows_add_up_by_category() -> None:
    rows = [played(name, PERFECT[name] if name < "D" else HALF[name]) for name in battery().ids]
    found = score_rows(rows)
    assert found["category_percent"] == {
        "selection": 100, "parameters": 100, "chain": 100, "restraint": 50, "recovery": pytest.approx(100 / 3),
    }  # fmt: skip
    assert found["score_percent"] == pytest.approx((300 + 50 + 100 / 3) / 5)
    assert (found["points"], found["max_points"], found["full"], found["of"]) == (18 + 3 + 2, 30, 9, 15)
    assert found["rows"][0] == {
        "item": "A1 off r1", "category": "selection", "points": 2, "reason": "all as asked", "swallowed": False,
    }  # fmt: skip


def test_transcripts_survive_their_file(tmp_path: Path) -> None:
    rows = [played(name, steps) for name, steps in PERFECT.items()]
    file = tmp_path / "t.jsonl"
    file.write_text("\n".join(row.model_dump_json() for row in rows) + "\n")
    assert load_transcripts(file) == rows


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(played("D2", ["42"]).model_dump_json(), encoding="utf-8-sig")
    assert [row.item for row in load_transcripts(file)] == ["D2 off r1"]


TWICE = '{"scenario": "A1", "mode": "off", "round": 1, "turns": [{}]}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{TWICE}\n\n{TWICE}", r"t\.jsonl:3: id 'A1 off r1' stands in \S*t\.jsonl:1 already"),
        ("", "is empty, so nothing was scored"),
        ("{", r"t\.jsonl:1: Invalid JSON"),
        ("\n5", r"t\.jsonl:2: Input should be an object"),
        ('{"scenario": "A1", "mode": "off", "round": 1}', "turns: Field required"),
        ('{"scenario": "A1", "mode": "off", "round": 1, "turns": [{"calls": [{}]}]}', r"turns\.0\.calls\.0\.name"),
        ('{"scenario": "Z9", "mode": "off", "round": 1, "turns": [{}]}', "unknown scenario 'Z9': known are A1, A2"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        load_transcripts(file)
