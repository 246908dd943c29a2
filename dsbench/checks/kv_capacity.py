"""KV capacity: ranks that differ, and tokens that are derived from memory and maximum length."""

from __future__ import annotations

from itertools import combinations
from typing import Annotated, Any

from pydantic import Field

from dsbench.checks.answer import Answer, Input, Some, read
from dsbench.errors import InputError

CONCURRENCY_ROUNDING = 0.005
Pair = Annotated[tuple[str, str], Field(strict=False)]


class _Stage(Input):
    gib: float
    layers: int = Field(gt=0)


class _Ranks(Input):
    cases: Some[dict[str, float | None]]
    blocks: dict[str, int] | None = None
    pipeline: dict[str, _Stage] | None = None


def rank_capacity_mismatch(content: Any) -> Answer:
    """Capacity is the smallest rank's; a rank that printed nothing makes it unknown, never fine."""
    given = read(_Ranks, content)
    capacity: list[float | None] = []
    spread: list[float | None] = []
    flags: list[str | None] = []
    for ranks in given.cases:
        known = [value for value in ranks.values() if value is not None]
        silent = [name for name, value in ranks.items() if value is None]
        if silent or not known:
            capacity.append(None)
            spread.append(None)
            flags.append(f"rank {', '.join(silent)} unknown" if silent else "no rank")
        else:
            capacity.append(min(known))
            spread.append(100 * (max(known) - min(known)) / max(known) if max(known) else None)
            flags.append("ranks differ" if max(known) > min(known) else None)
    figures: dict[str, Any] = {"capacity_gib": capacity, "spread_percent_of_larger": spread, "flag": flags}
    found = [f"case {n}: {flag}" for n, flag in enumerate(flags, start=1) if flag]
    if given.blocks:
        figures["usable_blocks"] = min(given.blocks.values())
        if len(set(given.blocks.values())) > 1:
            found.append(f"block ids above {min(given.blocks.values()) - 1} are past the end of the smallest rank")
    if given.pipeline:
        a_layer = {name: stage.gib / stage.layers for name, stage in given.pipeline.items()}
        figures |= {"gib_per_layer": a_layer, "limiting_stage": min(a_layer, key=a_layer.__getitem__)}
    return Answer(figures, found)


class _Serves(Input):
    serves: dict[str, list[float | None]]
    columns: list[str]
    pairs: Some[Pair]


def kv_tokens_are_derived(content: Any) -> Answer:
    """Tokens may be compared only with equal maximum length, lines that agree, and memory that was read."""
    given = read(_Serves, content)
    rows = {name: dict(zip(given.columns, values, strict=False)) for name, values in given.serves.items()}
    for name, row in rows.items():
        if lacking := [key for key in ("kv_tokens", "max_concurrency", "max_model_len") if row.get(key) is None]:
            raise InputError(f"serves.{name}: {', '.join(lacking)} is missing")
        if _of(row, "max_model_len") <= 0:
            raise InputError(f"serves.{name}: max_model_len should be above 0, got {row['max_model_len']:g}")
    requests = {name: _of(row, "kv_tokens") / _of(row, "max_model_len") for name, row in rows.items()}
    consistent = {
        name: consistent_concurrency(requests[name], _of(row, "max_concurrency"), _of(row, "max_model_len"))
        for name, row in rows.items()
    }
    for a, b in given.pairs:
        if a not in rows or b not in rows:
            raise InputError(f"pairs: no serve '{a if a not in rows else b}'; known: {', '.join(rows)}")
    comparable = [
        rows[a]["max_model_len"] == rows[b]["max_model_len"] and consistent[a] and consistent[b] for a, b in given.pairs
    ]
    figures: dict[str, Any] = {
        "tokens_comparable": comparable,
        "tokens_over_max_model_len": requests,
        "consistent": consistent,
    }
    for a, b in combinations(rows, 2):
        memory = rows[a].get("available_kv_gib"), rows[b].get("available_kv_gib")
        if memory[0] is not None and memory[1] is not None:
            figures[f"gib_delta_{a}_{b}"] = memory[1] - memory[0]
    found = [
        f"tokens of {a} and {b} may not be compared"
        for (a, b), ok in zip(given.pairs, comparable, strict=True)
        if not ok
    ]
    return Answer(figures, found)


def consistent_concurrency(requests: float, printed: float, max_model_len: float) -> bool:
    """Whether tokens / max_model_len is the concurrency that was printed with two decimals; tokens are cut to whole."""
    return abs(requests - printed) <= CONCURRENCY_ROUNDING + 1 / max_model_len


def _of(row: dict[str, float | None], key: str) -> float:
    value = row[key]
    assert value is not None
    return value
