"""Points of one conversation with tools: 2, 1 or 0, and why. A pure function of the transcript.

The rules are the scenarios' own (data/toolcall.toml). A call that stands in the reasoning, or malformed in the
answer's text, is no call; the reason says that it was there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dsbench.checks.tool_calls import CALL_TAG
from dsbench.score.stated import stated
from dsbench.score.tool_transcript import Called, Transcript
from dsbench.tool_scenarios import CATEGORIES, Battery, Category, ExpectedCall, Rule, battery, fits, holds

FULL_POINTS = 2
_PLAIN_CALL = re.compile(r"!([A-Za-z0-9_-]+) \{")
"""A call as the embedded engine's model writes it."""


@dataclass(frozen=True)
class Score:
    points: int
    """2 all as asked, 1 half, 0 not."""
    reason: str
    category: Category
    swallowed: bool
    """Whether a call stands in the reasoning of a turn that called nothing."""


def score(transcript: Transcript, data: Battery | None = None) -> Score:
    """Points by the first rule of the scenario that holds. Raises ValueError for an unknown scenario."""
    data = data or battery()
    scenario = data.scenario(transcript.scenario)
    full, *halves = scenario.rules
    problems = _unmet(full, transcript, data)
    points = FULL_POINTS
    if problems:
        points = next((rule.points for rule in halves if not _unmet(rule, transcript, data)), 0)
    swallowed = any(not turn.calls and _looks_like_call(turn.reasoning, data) for turn in transcript.turns)
    notes = [*(["a call stands in the reasoning, where it is none"] if swallowed else [])]
    if (final := transcript.final) is not None:
        if _looks_like_call(final.content, data):
            notes.append("a malformed call stands in the answer")
        if final.finish_reason == "length":
            notes.append("the answer was cut off at the token limit")
    return Score(points, "; ".join([*(problems or ["all as asked"]), *notes]), scenario.category, swallowed)


def score_rows(transcripts: Sequence[Transcript]) -> dict[str, Any]:
    """Scores by transcript, percentages of the points by category, and their mean, the score."""
    scored = [score(transcript) for transcript in transcripts]
    rows = [
        {
            "item": transcript.item,
            "category": one.category,
            "points": one.points,
            "reason": one.reason,
            "swallowed": one.swallowed,
        }
        for transcript, one in zip(transcripts, scored, strict=True)
    ]
    by_category = {
        category: 100 * fmean(points) / FULL_POINTS
        for category in CATEGORIES
        if (points := [one.points for one in scored if one.category == category])
    }
    return {
        "rows": rows,
        "points": sum(one.points for one in scored),
        "max_points": FULL_POINTS * len(scored),
        "full": sum(one.points == FULL_POINTS for one in scored),
        "of": len(scored),
        "swallowed": sum(one.swallowed for one in scored),
        "category_percent": by_category,
        "score_percent": fmean(by_category.values()),
    }


def _unmet(rule: Rule, transcript: Transcript, data: Battery) -> list[str]:
    """Conditions of a rule that do not hold, in words."""
    left = transcript.calls
    problems, known = [], -1
    for expected in rule.calls:
        taken = next((call for call in left if _is(expected, call, known)), None)
        if taken is None:
            # The call that was meant, wrong as it is, is not needless too.
            taken = next((call for call in left if call[1].name == expected.tool), None)
            problems.append(_why_missing(expected, taken))
        else:
            known = max(known, taken[0])
        left = [call for call in left if call is not taken]
    refused = {"none": left, "reading": [call for call in left if _acts(call[1], data)], "any": []}[rule.others]
    problems += [f"needless call of {call.name}" for _, call in refused]
    answer = transcript.final.content if transcript.final else ""
    if not answer.strip() and (rule.answer or rule.states or rule.points == FULL_POINTS):
        problems.append("no answer" if transcript.final else f"no answer after {len(transcript.turns)} turns")
    elif not all([holds(p, answer) for p in rule.answer] + [stated(p, answer) for p in rule.states]):
        problems.append("the answer does not hold what it should")
    if any(holds(pattern, answer) for pattern in rule.never):
        problems.append("the answer holds what it must not")
    return problems


def _is(expected: ExpectedCall, call: tuple[int, Called], known: int) -> bool:
    """Whether a call is the expected one; `known` is the last turn of the calls before it."""
    return (not expected.after or call[0] > known) and _same(expected, call[1])


def _same(expected: ExpectedCall, call: Called) -> bool:
    return expected.tool == call.name and call.values is not None and not _wrong_arguments(expected, call.values)


def _wrong_arguments(expected: ExpectedCall, values: dict[str, Any]) -> list[str]:
    wrong = [
        f"{key} is {values[key]!r:.60}" if key in values else f"{key} is missing"
        for key, wanted in expected.arguments.items()
        if key not in values or not fits(wanted, values[key])
    ]
    return wrong + [f"there is no argument {key}" for key in values if key not in expected.arguments]


def _why_missing(expected: ExpectedCall, meant: tuple[int, Called] | None) -> str:
    if meant is None:
        return f"no call of {expected.tool}"
    values = meant[1].values
    if values is None:
        return f"{expected.tool}: its arguments are no JSON object"
    wrong = _wrong_arguments(expected, values)
    return f"{expected.tool}: {', '.join(wrong)}" if wrong else f"{expected.tool} came before the results that it needs"


def _acts(call: Called, data: Battery) -> bool:
    return call.name in data.tools and data.tools[call.name].acts


def _looks_like_call(text: str, data: Battery) -> bool:
    if CALL_TAG.search(text):
        return True
    return any(found[1] in data.tools for found in _PLAIN_CALL.finditer(text))
