"""Tool calls that the reasoning channel swallowed, and rates of proper calls with and without a feature."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Answer, Input, Share, read
from dsbench.decide import decide
from dsbench.errors import InputError
from dsbench.stats.proportions import compare_proportions

CALL_TAG = re.compile(r"<[|\uff5c]?\s*(?:DSML\b|tool[_▁ ]calls?\b|function_calls?\b|invoke\b)", re.IGNORECASE)
SWALLOWED, NONE, PROPER = "tool call swallowed by reasoning", "no tool call", "tool call"
ALPHA = 0.05


class _Trace(Input):
    reasoning: str | None = None
    content: str | None = None
    tool_calls: list[Any] | None = None


class _Rates(Input):
    on: Share
    off: Share


class _Calls(Input):
    traces: list[_Trace] = Field(default=[])
    rates: list[_Rates] = Field(default=[])


def tool_call_inside_reasoning(content: Any) -> Answer:
    """Class of each trace; for each pair of rates Fisher's p and the verdict of `on` against `off`."""
    given = read(_Calls, content)
    if not given.traces and not given.rates:
        raise InputError("traces and rates: neither has anything in it, so nothing was checked")
    for number, rates in enumerate(given.rates):
        for name, (calls, of) in (("on", rates.on), ("off", rates.off)):
            if not 0 <= calls <= of or not of:
                raise InputError(f"rates.{number}.{name}: should be calls and answers, got {calls} of {of}")
    classes = [trace_class(trace.reasoning, trace.tool_calls) for trace in given.traces]
    tests = [compare_proportions(*rates.off, *rates.on) for rates in given.rates]
    words = [
        decide(test.difference, margin=0.0, better="up", p=test.fisher_p, interval=test.interval, alpha=ALPHA)
        for test in tests
    ]
    found = [f"trace {n}: {what}" for n, what in enumerate(classes, start=1) if what == SWALLOWED]
    found += [f"rates {n}: {word}" for n, word in enumerate(words, start=1) if word == "regressed"]
    return Answer({"class": classes, "fisher_p": [test.fisher_p for test in tests], "verdict": words}, found)


def trace_class(reasoning: str | None, tool_calls: list[Any] | None) -> str:
    """A call that the client got is proper; one that stands in the reasoning only is swallowed."""
    if tool_calls:
        return PROPER
    return SWALLOWED if CALL_TAG.search(reasoning or "") else NONE
