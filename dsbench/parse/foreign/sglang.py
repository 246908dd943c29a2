"""`sglang.bench_serving --output-file`: every run is appended as one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsbench.checks.answer import Input
from dsbench.checks.identities import Row, identities
from dsbench.parse.foreign import consistency
from dsbench.parse.foreign.records import Count, Figure, Record, Tool, quotient, read_each

NAME = "sglang bench_serving"
MARKS = ("total_output_tokens_retokenized", "completed", "output_throughput")


class _Run(Input):
    backend: str | None = None
    dataset_name: str | None = None
    request_rate: Figure | str = None
    max_concurrency: Count = None
    duration: Figure = None
    completed: Count
    total_input_tokens: Count = None
    total_output_tokens: Count = None
    request_throughput: Figure = None
    output_throughput: Figure
    mean_e2e_latency_ms: Figure = None
    mean_ttft_ms: Figure = None
    median_ttft_ms: Figure = None
    mean_tpot_ms: Figure = None
    mean_itl_ms: Figure = None
    accept_length: Figure = None


def _is_mine(record: Record) -> bool:
    return all(key in record for key in MARKS)


def _read(records: Sequence[Record]) -> dict[str, Any]:
    return {"tool": NAME, "rows": [_row(run) for run in read_each(_Run, records)]}


def _row(run: _Run) -> dict[str, Any]:
    recomputed = quotient(run.total_output_tokens, run.duration)
    row = Row(
        mean_acceptance_length=run.accept_length,
        itl_ms=run.mean_itl_ms,
        tpot_ms=run.mean_tpot_ms,
        concurrency=run.max_concurrency,
        tokens_per_second=run.output_throughput,
    )
    return {
        "dataset": run.dataset_name,
        "concurrency": run.max_concurrency,
        "rate_asked_per_second": run.request_rate,
        "requests_completed": run.completed,
        "input_tokens": run.total_input_tokens,
        "output_tokens": run.total_output_tokens,
        "duration_seconds": run.duration,
        "request_per_second": run.request_throughput,
        "output_tokens_per_second": run.output_throughput,
        "output_tokens_per_second_recomputed": recomputed,
        "mean_latency_ms": run.mean_e2e_latency_ms,
        "mean_ttft_ms": run.mean_ttft_ms,
        "median_ttft_ms": run.median_ttft_ms,
        "mean_tpot_ms": run.mean_tpot_ms,
        "mean_itl_ms": run.mean_itl_ms,
        "mean_acceptance_length": run.accept_length,
        "tpot_recomputed_from_itl_ms": quotient(run.mean_itl_ms, run.accept_length),
        "valid": _valid(run.completed, row),
        "flags": [*consistency.identity_flags(row), *consistency.speed_flags(run.output_throughput, recomputed)],
    }


def _valid(completed: int | None, row: Row) -> bool | None:
    """Whether something was completed and the identities hold; None if none could be tried."""
    if completed == 0:
        return False
    held = identities(row)
    return all(held.values()) if held else None


TOOL = Tool(NAME, _is_mine, _read)
