"""Whether an answer states a thing or denies it: `41, not 42` holds a 42, and does not say that it is 42."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from dsbench.tool_scenarios import plain

Stand = Literal["stated", "denied", "open"]

_CLAUSE_ENDS = re.compile(
    r"[.!?](?=\s|$)|[,:;](?!\d)|[\n()\u2013\u2014]| - "
    r"|\b(?:but|because|since|so|although|though|while|however|instead|and (?=(?:it|there|the|i|you|that)\b))\b",
    re.IGNORECASE,
)
_OPEN = re.compile(r"\b(?:if|whether|unless)\b", re.IGNORECASE)
_DENIES_BEFORE = re.compile(
    r"\b(?:no(?! (?:problem|worries|doubt|question)\b)|not(?! (?:only|just)\b)|never|neither|nor|without|cannot|stopped"
    r"|\w+n't|(?:is|are|was|does|do|did|wo|ca)nt)\b",
    re.IGNORECASE,
)
_DENIES_BEHIND = re.compile(
    r"\w*\s+(?:(?:is|are|was|has|have|does|did|will|would)\s+)?"
    r"(?:not\b|\w+n't\b|(?:is|has|was)?\s*(?:stopped|over\b|unlikely|wrong|incorrect|false))",
    re.IGNORECASE,
)


def stated(pattern: str, text: str) -> bool:
    """Whether a text holds a pattern somewhere as its own statement, and denies it nowhere."""
    stands = set(_stands(pattern, text))
    return "stated" in stands and "denied" not in stands


def _stands(pattern: str, text: str) -> Iterator[Stand]:
    """How a text stands to each place that a pattern is found at, clause by clause."""
    for clause in _CLAUSE_ENDS.split(plain(text)):
        for found in re.finditer(pattern, clause, re.IGNORECASE):
            before = clause[: found.start()]
            if _OPEN.search(before):
                yield "open"
            elif _DENIES_BEFORE.search(before) or _DENIES_BEHIND.match(clause, found.end()):
                yield "denied"
            else:
                yield "stated"
