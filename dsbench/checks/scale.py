"""Ratios of norms, candidate over reference, by number of tokens: one factor everywhere, or from one size on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Answer, Input, Some, read
from dsbench.errors import InputError

FACTORS = {
    "sqrt(2)": math.sqrt(2),
    "1/sqrt(2)": math.sqrt(0.5),
    "2": 2.0,
    "1/2": 0.5,
    "4": 4.0,
    "1/4": 0.25,
}
"""Factors with a usual cause, such as a group of twice the width."""
WITHIN = "within tolerance"


class _Series(Input):
    tokens: Some[int]
    ratio_series: Some[Some[float]]
    tolerance: float = Field(ge=0)


def uniform_scale_error(content: Any) -> Answer:
    """Class of each series, and how far a uniform one is from the square root of two."""
    given = read(_Series, content)
    for number, series in enumerate(given.ratio_series, start=1):
        if len(series) != len(given.tokens):
            raise InputError(f"ratio_series.{number - 1}: needs one ratio for each of {len(given.tokens)} token counts")
    classes = [scale_class(given.tokens, series, given.tolerance) for series in given.ratio_series]
    figures: dict[str, Any] = {"class": classes, "sqrt_2": math.sqrt(2)}
    for number, (series, what) in enumerate(zip(given.ratio_series, classes, strict=True), start=1):
        if what.startswith("uniform"):
            figures[f"relative_gap_of_series_{number}_to_sqrt_2"] = abs(_middle(series) / math.sqrt(2) - 1)
    return Answer(figures, [f"series {n}: {what}" for n, what in enumerate(classes, start=1) if what != WITHIN])


def scale_class(tokens: Sequence[int], ratios: Sequence[float], tolerance: float) -> str:
    """Within tolerance of 1, one factor at every count, or an error from some count on."""
    off = [count for count, ratio in zip(tokens, ratios, strict=True) if abs(ratio - 1) > tolerance]
    if not off:
        return WITHIN
    middle = _middle(ratios)
    if len(off) == len(ratios) and all(abs(ratio - middle) <= tolerance * abs(middle) for ratio in ratios):
        name = next(
            (name for name, factor in FACTORS.items() if abs(middle / factor - 1) <= tolerance), f"{middle:.4g}"
        )
        return f"uniform scale error, about {name}"
    return f"size-dependent error from {min(off)} tokens"


def _middle(ratios: Sequence[float]) -> float:
    return sorted(ratios)[len(ratios) // 2]
