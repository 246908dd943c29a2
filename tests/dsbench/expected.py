"""How an answer is compared with an expected file: numbers to 1e-3, p values to 0.005, the rest as it is."""

from __future__ import annotations

import math
from typing import Any

FOR_PEOPLE = ("why", "notes")


def differences(got: Any, expected: Any, where: str = "") -> list[str]:
    """Every place where `got` is not as expected; keys that only `got` has are ignored."""
    if isinstance(expected, dict):
        if not isinstance(got, dict):
            return [f"{where}: {got!r} is no object"]
        missing = [f"{where}.{key}: missing" for key in expected if key not in got and key not in FOR_PEOPLE]
        both = [key for key in expected if key in got and key not in FOR_PEOPLE]
        return missing + [told for key in both for told in differences(got[key], expected[key], f"{where}.{key}")]
    if isinstance(expected, list):
        if not isinstance(got, list) or len(got) != len(expected):
            return [f"{where}: {got!r} is not {expected!r}"]
        pairs = zip(got, expected, strict=True)
        return [told for i, (g, e) in enumerate(pairs) for told in differences(g, e, f"{where}.{i}")]
    number = isinstance(expected, int | float) and not isinstance(expected, bool)
    if number and isinstance(got, int | float) and not isinstance(got, bool):
        absolute = 0.005 if is_p(where.rpartition(".")[2]) else 0.0
        same = math.isclose(got, expected, rel_tol=1e-3, abs_tol=max(absolute, 1e-12))
    else:
        same = got == expected and type(got) is type(expected)
    return [] if same else [f"{where}: {got!r} is not {expected!r}"]


def is_p(key: str) -> bool:
    return key.endswith("_p") or key.startswith("p_") or "_p_" in key
