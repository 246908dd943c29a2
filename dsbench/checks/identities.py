"""Identities that the figures of one row must satisfy: acceptance, inter-token latency, time per token, speed."""

from __future__ import annotations

from typing import Any

from dsbench.checks.answer import Answer, Input, Some, read
from dsbench.errors import InputError
from dsbench.sanity import CERTAIN_POSITION

LATENCY_TOLERANCE = 0.03
"""Between TPOT and ITL / length."""
SPEED_TOLERANCE = 1.05
LENGTH_TOLERANCE = 0.01
PREDICTABLE = ("counting", "structured")


class Row(Input):
    """One result. ITL is the time between steps, TPOT the time of a token: steps emit `mean_acceptance_length`."""

    name: str = ""
    depth: int | None = None
    mean_acceptance_length: float | None = None
    accepted: int | None = None
    drafts: int | None = None
    per_position: list[float] | None = None
    itl_ms: float | None = None
    tpot_ms: float | None = None
    concurrency: int | None = None
    tokens_per_second: float | None = None


class _Rows(Input):
    rows: Some[Row]


def identities_between_metrics(content: Any) -> Answer:
    """Violations of each row, with the figures they are held against."""
    rows = read(_Rows, content).rows
    if not any(identities(row) for row in rows):
        raise InputError("rows: no row has the figures of one identity together, so nothing was checked")
    broken = [violations(row) for row in rows]
    figures = {
        "violations": broken,
        "itl_over_length_ms": [itl_over_length(row) for row in rows],
        "tokens_per_second_limit": [speed_limit(row) for row in rows],
    }
    return Answer(figures, [f"{row.name}: {what}" for row, names in zip(rows, broken, strict=True) for what in names])


def violations(row: Row) -> list[str]:
    """Names of the identities that a row breaks; what is not given is not checked."""
    return [name for name, holds in identities(row).items() if not holds]


def identities(row: Row) -> dict[str, bool]:
    """Whether each identity holds whose figures the row has."""
    held = {}
    length = row.mean_acceptance_length
    if length is not None and row.depth is not None:
        held["length above depth + 1"] = length <= row.depth + 1
    if length is not None and row.drafts and row.accepted is not None:
        expected = 1 + row.accepted / row.drafts
        held["length against accepted and drafts"] = abs(length - expected) <= LENGTH_TOLERANCE * expected
    if row.per_position:
        certain = any(rate >= CERTAIN_POSITION for rate in row.per_position)
        held["position at the ceiling"] = row.name in PREDICTABLE or not certain
    expected_tpot = itl_over_length(row)
    if row.tpot_ms and expected_tpot:
        held["tpot against itl"] = abs(row.tpot_ms - expected_tpot) <= LATENCY_TOLERANCE * expected_tpot
    limit = speed_limit(row)
    if limit is not None and row.tokens_per_second is not None:
        held["tokens per second above the limit"] = row.tokens_per_second <= limit
    return held


def itl_over_length(row: Row) -> float | None:
    """Milliseconds a token, from the time between steps."""
    return row.itl_ms / row.mean_acceptance_length if row.itl_ms and row.mean_acceptance_length else None


def speed_limit(row: Row) -> float | None:
    """Most tokens a second that the time per token allows, with 5 % to spare."""
    return SPEED_TOLERANCE * row.concurrency * 1000 / row.tpot_ms if row.concurrency and row.tpot_ms else None
