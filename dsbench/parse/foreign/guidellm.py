"""GuideLLM's `benchmarks.json`: one benchmark a rate or number of streams, statistics by kind of request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Input
from dsbench.parse.foreign.records import Count, Figure, Record, Tool, quotient, read_each

NAME = "guidellm"
SATURATED = 0.9
"""Share of the rate asked for below which the server, not the schedule, sets the rate."""


class _Summary(Input):
    mean: Figure = None
    median: Figure = None


class _Statistic(Input):
    successful: _Summary | None = None


class _Metrics(Input):
    requests_per_second: _Statistic | None = None
    request_latency: _Statistic | None = None
    inter_token_latency_ms: _Statistic | None = None
    time_per_output_token_ms: _Statistic | None = None
    time_to_first_token_ms: _Statistic | None = None
    output_tokens_per_second: _Statistic | None = None


class _Strategy(Input):
    type_: str | None = None
    rate: Figure = None
    streams: Count = None


class _Settings(Input):
    strategy: _Strategy | None = None


class _Benchmark(Input):
    config: _Settings | None = None
    args: _Settings | None = None
    """The older name of config."""
    metrics: _Metrics


class _File(Input):
    benchmarks: list[_Benchmark] = Field(min_length=1)


def _is_mine(record: Record) -> bool:
    runs = record.get("benchmarks")
    return isinstance(runs, list) and bool(runs) and isinstance(runs[0], dict) and "metrics" in runs[0]


def _read(records: Sequence[Record]) -> dict[str, Any]:
    return {"tool": NAME, "rows": [_row(run) for file in read_each(_File, records) for run in file.benchmarks]}


def _row(run: _Benchmark) -> dict[str, Any]:
    settings = run.config or run.args
    strategy = (settings.strategy if settings else None) or _Strategy()
    metrics = run.metrics
    requests = _of(metrics.requests_per_second).mean
    latency = _of(metrics.request_latency).median
    reached = quotient(requests, strategy.rate)
    return {
        "strategy": strategy.type_,
        "concurrency": strategy.streams,
        "rate_asked_per_second": strategy.rate,
        "requests_per_second": requests,
        # The only figure in seconds.
        "median_latency_ms": None if latency is None else 1000 * latency,
        "median_itl_ms": _of(metrics.inter_token_latency_ms).median,
        "median_tpot_ms": _of(metrics.time_per_output_token_ms).median,
        "median_ttft_ms": _of(metrics.time_to_first_token_ms).median,
        "median_output_tokens_per_second": _of(metrics.output_tokens_per_second).median,
        "saturated": None if reached is None else reached < SATURATED,
    }


def _of(statistic: _Statistic | None) -> _Summary:
    """Of successful requests only."""
    return (statistic.successful if statistic else None) or _Summary()


TOOL = Tool(NAME, _is_mine, _read)
