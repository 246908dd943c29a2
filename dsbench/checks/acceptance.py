"""Acceptance against the depth of the draft: too good to be true, or deeper than the draft was trained for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Answer, Input, Some, read
from dsbench.errors import InputError
from dsbench.sanity import plausible


class _Line(Input):
    num_speculative_tokens: int
    mean_acceptance_length: float | None = None
    per_position: list[float] | None = None
    workload: str = "prose"


class _Lines(Input):
    lines: Some[_Line]


def acceptance_too_good(content: Any) -> Answer:
    """What each printed acceptance is worth."""
    lines = read(_Lines, content).lines
    words = [
        plausible(line.mean_acceptance_length, line.num_speculative_tokens, line.per_position, line.workload)
        for line in lines
    ]
    if set(words) == {"unknown"}:
        raise InputError("lines: no line has a mean_acceptance_length, so nothing was checked")
    found = [
        f"line {n}: {word}; check coherence and the output law before any claim"
        for n, word in enumerate(words, start=1)
        if word.startswith("imp")
    ]
    return Answer({"verdict": words}, found)


class _Config(Input):
    num_speculative_tokens: int
    block_size: int = Field(gt=0)


class _Depths(Input):
    configs: Some[_Config]
    sweep_depths_run: list[int] | None = None
    sweep_depths_asked: Some[int] | None = None


def draft_depth_against_block_size(content: Any) -> Answer:
    """Warnings by configuration, what the printed positions show, and whether a sweep over the depth is complete.

    Positions are given as `per_position_kN` for the depth N.
    """
    given = read(_Depths, content)
    warn = [config.num_speculative_tokens > config.block_size for config in given.configs]
    figures: dict[str, Any] = {"warn": warn}
    found = [
        f"depth {config.num_speculative_tokens} on blocks of {config.block_size}: drafts past the block are never "
        "right, and acceptance falls at every position"
        for config, bad in zip(given.configs, warn, strict=True)
        if bad
    ]
    blocks = {config.num_speculative_tokens: config.block_size for config in given.configs}
    positions = _positions(content)
    for depth, rates in positions.items():
        zeros = len(rates) - max((k for k, rate in enumerate(rates, start=1) if rate), default=0)
        figures[f"mean_length_from_positions_k{depth}"] = 1 + sum(rates)
        figures[f"trailing_zero_positions_k{depth}"] = zeros
        if zeros and depth > blocks.get(depth, depth):
            structural = zeros >= depth - blocks[depth]
            figures["trailing_zero_reason"] = (
                "structural: depth exceeds block size" if structural else "fewer than the depth exceeds the block size"
            )
    for depth, rates in positions.items():
        for other in sorted(positions):
            if depth > other and rates and positions[other] and positions[other][0]:
                figures[f"position_0_ratio_k{depth}_over_k{other}"] = rates[0] / positions[other][0]
    if given.sweep_depths_asked is not None:
        missing = sorted(set(given.sweep_depths_asked) - set(given.sweep_depths_run or []))
        figures |= {"sweep_complete": not missing, "sweep_missing_depths": missing}
        found += [f"the sweep lacks depths {', '.join(map(str, missing))}"] if missing else []
    return Answer(figures, found)


def _positions(content: dict[str, Any]) -> dict[int, Sequence[float]]:
    found: dict[int, Sequence[float]] = {}
    for key, rates in content.items():
        if match := re.fullmatch(r"per_position_k(\d+)", key):
            if not isinstance(rates, list) or not rates or not all(map(_is_rate, rates)):
                raise InputError(f"{key}: should be a list of rates, got {rates!r}")
            found[int(match[1])] = rates
    return found


def _is_rate(rate: Any) -> bool:
    return type(rate) in (int, float) and 0 <= rate <= 1
