"""Token ids outside the vocabulary, and a fall of acceptance before a fault."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Answer, Input, read
from dsbench.errors import InputError

FALL_WORTH_TELLING = 0.10


class _Moment(Input):
    t_s: float
    mean_acceptance_length: float | None = Field(default=None, gt=0)
    fault: str | None = None


class _Ids(Input):
    vocab_size: int = Field(gt=0)
    token_ids: list[int]
    timeline: list[_Moment] = Field(default=[])
    tile: int | None = Field(default=None, gt=0)


def token_id_equals_vocab_size(content: Any) -> Answer:
    """Bad ids, what acceptance did before a fault, and which lane of the last tile is past the vocabulary."""
    given = read(_Ids, content)
    if not given.token_ids and not given.timeline:
        raise InputError("token_ids: is empty and there is no timeline, so nothing was checked")
    bad = bad_token_indices(given.token_ids, given.vocab_size)
    figures: dict[str, Any] = {"bad_token_indices": bad}
    found = [f"index {i}: token id {given.token_ids[i]} of a vocabulary of {given.vocab_size}" for i in bad]
    if told := _fall(given.timeline):
        figures |= told
        if told["report_fall_with_fault"]:
            found.append(f"acceptance fell by {told['acceptance_fall_percent_before_fault']:.1f} % before the fault")
    if given.tile:
        tiles = -(-given.vocab_size // given.tile)
        real = given.vocab_size - (tiles - 1) * given.tile
        inside = real < given.tile
        figures |= {
            "tiles": tiles,
            "real_lanes_in_last_tile": real,
            "first_invalid_lane": real if inside else None,
            "token_of_that_lane": given.vocab_size if inside else None,
        }
    return Answer(figures, found)


def bad_token_indices(ids: Sequence[int], vocab_size: int) -> list[int]:
    """Where an id is below 0 or not below the vocabulary's size: a hard failure."""
    return [index for index, token in enumerate(ids) if not 0 <= token < vocab_size]


def _fall(timeline: Sequence[_Moment]) -> dict[str, Any] | None:
    """The last window before the first fault against the mean of those before it."""
    fault = next((moment for moment in timeline if moment.fault), None)
    if fault is None:
        return None
    windows = [
        (moment.t_s, moment.mean_acceptance_length)
        for moment in timeline
        if moment.mean_acceptance_length is not None and moment.t_s <= fault.t_s
    ]
    if len(windows) < 2:
        return None
    usual = fmean(length for _, length in windows[:-1])
    at, last = windows[-1]
    fall = (usual - last) / usual
    return {
        "acceptance_fall_percent_before_fault": round(100 * fall, 1),
        "seconds_between_fall_and_fault": fault.t_s - at,
        "report_fall_with_fault": fall >= FALL_WORTH_TELLING,
    }
