"""What a result's own figures say against each other: flags for people, one line each."""

from __future__ import annotations

from dsbench.checks.identities import LATENCY_TOLERANCE, Row, itl_over_length, violations
from dsbench.parse.prometheus import FEW_DRAFTS

SPEED_AGREES = 0.01
"""Between a printed speed and tokens over seconds."""


def identity_flags(row: Row) -> list[str]:
    """One line for each identity that does not hold."""
    return [_line(name, row) for name in violations(row)]


def _line(name: str, row: Row) -> str:
    length, tpot, itl = row.mean_acceptance_length, row.tpot_ms, row.itl_ms
    if name == "tpot against itl" and tpot and itl:
        if abs(tpot - itl) <= LATENCY_TOLERANCE * itl:
            told = f"mean TPOT equals mean ITL although the acceptance length is {length:g}"
            return f"{told}: the two blocks cannot come from one run"
        return f"mean TPOT is {tpot:g} ms, but ITL over acceptance length is {itl_over_length(row):.4g} ms"
    if name == "length against accepted and drafts":
        return f"acceptance length {length:g} is not 1 + {row.accepted} accepted / {row.drafts} drafts"
    if name == "length above depth + 1":
        return f"acceptance length {length:g} is above {row.depth} drafts + 1"
    if name == "tokens per second above the limit":
        speed = f"{row.tokens_per_second:g} tokens/s at concurrency {row.concurrency}"
        return f"{speed} is more than a mean TPOT of {tpot:g} ms allows"
    return f"{name}: {', '.join(f'{rate:g}' for rate in row.per_position or ())}"


def draft_flags(drafts: int | None, drafted: int | None) -> list[str]:
    """Whether drafts had one depth, and whether they are enough to say something."""
    flags = []
    if drafts and drafted is not None and drafted % drafts:
        flags.append(f"{drafted} drafted over {drafts} drafts: depth varies")
    if drafts is not None and 0 < drafts < FEW_DRAFTS:
        flags.append(f"only {drafts} drafts: too few")
    return flags


def speed_flags(printed: float | None, recomputed: float | None) -> list[str]:
    if printed is None or recomputed is None or abs(printed - recomputed) <= SPEED_AGREES * abs(recomputed):
        return []
    return [f"output speed is printed as {printed:g} tokens/s, but tokens over seconds are {recomputed:.6g}"]


def request_flags(asked: int | None, completed: int | None, failed: int | None) -> list[str]:
    if failed:
        return [f"{failed} of {asked if asked is not None else failed + (completed or 0)} requests failed"]
    if asked is not None and completed is not None and completed < asked:
        return [f"{completed} of {asked} requests completed"]
    return []
