"""What the nouns of an experiment are made of: names that are safe in paths, bounded figures, fixed words."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

EngineName = Literal["embedded", "vllm", "command", "endpoint"]
Phase = Literal["warm-up", "measured"]
Word = Literal["improved", "regressed", "equivalent", "inconclusive", "void", "not-run"]
Value = int | float | str | list[int]
Name = Annotated[str, Field(pattern=r"^[^\s/\\.\x00-\x1f][^/\\\x00-\x1f]*$")]
"""A name that is part of a path: it leads nowhere else."""
Figure = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=-(10**18), le=10**18)]
"""Bounded, so that sums, squares and quotients of figures are numbers, too."""
Level = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Confidence = Annotated[float, Field(ge=0.5, lt=1, allow_inf_nan=False)]
