"""JSON-only replies: whether a reply is one object with the right keys, types and values, and nothing around it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Facts = Mapping[str, str | int]
"""What the object should say: texts and whole numbers by key."""


def fault(reply: str, facts: Facts) -> str | None:
    """Why a reply is a miss; None if it is right. Blanks around the object are fine, and so is any order of keys."""
    text = reply.strip()
    if not text:
        return "empty"
    if "```" in text:
        return "a code fence around the JSON"
    try:
        found = json.loads(text, object_pairs_hook=_once)
    except _Twice as error:
        return f"key {error} is there twice"
    except (ValueError, RecursionError):
        return _why_not_json(text)
    if not isinstance(found, dict):
        return f"{_name(found)} instead of an object"
    missing = [key for key in facts if key not in found]
    if missing:
        return f"without {', '.join(missing)}"
    more = [key for key in found if key not in facts]
    if more:
        return f"with keys that nobody asked for: {', '.join(more)[:60]}"
    for key, right in facts.items():
        if type(found[key]) is not type(right):
            return f"{key} is {_name(found[key])}, not {_name(right)}"
    for key, right in facts.items():
        if found[key] != right:
            return f"{key} is {str(found[key])[:40]!r}, not {str(right)!r}"
    return None


def _why_not_json(text: str) -> str:
    first, last = text.find("{"), text.rfind("}")
    if first < 0:
        return "no JSON"
    try:
        json.loads(text[first : last + 1])
    except (ValueError, RecursionError):
        return "not JSON"
    return f"text {'before' if first else 'after'} the JSON"


class _Twice(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(key)
        found[key] = value
    return found


def _name(value: Any) -> str:
    names = {str: "a text", int: "a whole number", float: "a number with a point", bool: "true or false",
             list: "a list", dict: "an object"}  # fmt: skip
    return names.get(type(value), "null")
