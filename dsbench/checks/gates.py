"""Gates by their result line: without one a gate was not run, whatever its exit code."""

from __future__ import annotations

import re
from typing import Any

from dsbench.checks.answer import Answer, Input, Some, read
from dsbench.errors import InputError

RESULT = re.compile(r"\b(?:passed\s*=|score)\s*(\d+)/(\d+)")
NEVER_STARTED = (126, 127)
"""Exit codes of a shell that could not run, or not find, the command."""
NOT_RUN = "not run"


class _Gate(Input):
    rc: int
    stdout: str


class _Gates(Input):
    gates: Some[_Gate]
    must_be_full: list[bool]


def gate_that_was_not_run(content: Any) -> Answer:
    """State of each gate, and of all: one that was not run makes the whole run not run."""
    given = read(_Gates, content)
    if len(given.must_be_full) != len(given.gates):
        raise InputError(f"must_be_full: needs one entry for each of {len(given.gates)} gates")
    states = [
        gate_state(gate.rc, gate.stdout, full) for gate, full in zip(given.gates, given.must_be_full, strict=True)
    ]
    failed = any(state.startswith("fail") for state in states)
    overall = NOT_RUN if NOT_RUN in states else "fail" if failed else "pass"
    found = [f"gate {n}: {s}" for n, s in enumerate(states, start=1) if s == NOT_RUN or s.startswith("fail")]
    return Answer({"state": states, "overall": overall}, found)


def gate_state(rc: int, stdout: str, must_be_full: bool) -> str:
    """`pass`, `fail: ...`, `ran: k/n` where no full score is asked for, or `not run`."""
    found = RESULT.search(stdout)
    if rc in NEVER_STARTED or found is None or int(found[2]) == 0:
        return NOT_RUN
    score = f"{found[1]}/{found[2]}"
    if not must_be_full:
        return f"ran: {score}"
    if found[1] != found[2]:
        return f"fail: {score}"
    return "pass" if rc == 0 else f"fail: {score}, exit code {rc}"
