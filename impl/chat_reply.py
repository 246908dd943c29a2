"""What a model says in a chat, taken apart as it comes: the thought, the answer, and calls of tools (torch-free).

A thought ends at the first ` A:`. An answer that is nothing but calls, `!name {"arg": "value"}` with a blank between
two, is these calls; anything else is text. A call inside a thought is no call.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn

ANSWER = " A:"
"""What ends a thought."""
_NAME = re.compile(r"!([A-Za-z0-9_-]+) ")


@dataclass(frozen=True)
class Call:
    """One call of a tool."""

    name: str
    arguments: str
    """JSON text of an object, as the model wrote it."""


@dataclass(frozen=True)
class Piece:
    """What one piece of text adds to a reply."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


class ReplySplitter:
    """One reply. What may turn out to be the end of the thought, or a call, is held back until it is known."""

    def __init__(self, *, thinking: bool = False, tools: bool = False) -> None:
        self.thinking = thinking
        """Whether the thought still runs."""
        self._tools = tools
        self._held = ""
        self._at_start = True
        """Whether the one blank that follows a marker may still come."""
        self._in_content = False

    def add(self, text: str, *, last: bool = False) -> Piece:
        """Take the next text of the reply; `last` says that none follows."""
        self._held += text
        reasoning = self._take_thought(last) if self.thinking else ""
        if self.thinking:
            return Piece(reasoning)
        self._held = self._without_blank(self._held)
        if not self._held:
            return Piece(reasoning)
        if self._tools and not self._in_content and self._held[0] == "!":
            if not last:
                return Piece(reasoning)
            if calls := read_calls(self._held):
                return Piece(reasoning, calls=calls)
        self._in_content = True
        content, self._held = self._held, ""
        return Piece(reasoning, content)

    def _take_thought(self, last: bool) -> str:
        thought, end, rest = self._held.partition(ANSWER)
        if not end and not last:
            known = len(thought) - _held_back(thought)
            thought, rest = thought[:known], thought[known:]
        self._held = rest
        thought = self._without_blank(thought)
        if end:
            self.thinking, self._at_start = False, True
        return thought

    def _without_blank(self, text: str) -> str:
        if not text or not self._at_start:
            return text
        self._at_start = False
        return text.removeprefix(" ")


def _held_back(text: str) -> int:
    """Length of the longest end of `text` that begins the marker."""
    return next((n for n in range(len(ANSWER) - 1, 0, -1) if text.endswith(ANSWER[:n])), 0)


def read_calls(answer: str) -> tuple[Call, ...]:
    """The calls of an answer that is nothing else; none if any of it is malformed."""
    calls, at, answer = [], 0, answer.rstrip()
    while at < len(answer):
        name = _NAME.match(answer, at)
        if name is None:
            return ()
        try:
            arguments, end = _DECODER.raw_decode(answer, name.end())
        except (ValueError, RecursionError):
            return ()
        if not isinstance(arguments, dict) or answer[end : end + 1] not in ("", " "):
            return ()
        calls.append(Call(name[1], answer[name.end() : end]))
        at = end + 1
    return tuple(calls)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
