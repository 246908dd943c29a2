"""JSON text whose strings can all be printed and stored: halves of surrogate pairs become question marks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def opens(text: str) -> int:
    """Brackets that open in a text: no JSON of it is nested deeper, and to count them takes no time."""
    return text.count("[") + text.count("{")


def read_json(text: str, constant: Callable[[str], Any] = float) -> Any:
    """The content of a JSON text; `constant` reads NaN and the infinities.

    JSONDecodeError, RecursionError, or ValueError for integers of thousands of digits.
    """
    content = json.loads(text, parse_constant=constant)
    if _SURROGATE.search(text):
        plain = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
        content = json.loads(plain, parse_constant=constant)
    return content
