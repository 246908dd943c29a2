"""llama-benchy's JSON report: one run a concurrency, context and prompt size, over an OpenAI-compatible server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Input
from dsbench.parse.foreign.records import Count, Figure, Figures, Record, Tool, read_each

NAME = "llama-benchy"
MARKS = ("latency_mode", "prefix_caching_enabled", "benchmarks")


class _Metric(Input):
    mean: Figure = None
    std: Figure = None
    values: Figures | None = None


class _Run(Input):
    concurrency: Count
    context_size: Count
    prompt_size: Count
    response_size: Count
    is_context_prefill_phase: bool = False
    pp_throughput: _Metric | None = None
    tg_throughput: _Metric | None = None
    ttfr: _Metric | None = None
    e2e_ttft: _Metric | None = None


class _Report(Input):
    model: str | None = None
    prefix_caching_enabled: bool | None = None
    benchmarks: list[_Run] = Field(min_length=1)


def _is_mine(record: Record) -> bool:
    return all(key in record for key in MARKS)


def _read(records: Sequence[Record]) -> dict[str, Any]:
    reports = read_each(_Report, records)
    return {"tool": NAME, "rows": [_row(report, run) for report in reports for run in report.benchmarks]}


def _row(report: _Report, run: _Run) -> dict[str, Any]:
    prefill, decode = run.pp_throughput or _Metric(), run.tg_throughput or _Metric()
    return {
        "model": report.model,
        "prefix_caching": report.prefix_caching_enabled,
        "concurrency": run.concurrency,
        "context_tokens": run.context_size,
        "prompt_tokens": run.prompt_size,
        "response_tokens": run.response_size,
        "context_prefill": run.is_context_prefill_phase,
        "output_tokens_per_second": decode.mean,
        "stddev_output_tokens_per_second": decode.std,
        "prefill_tokens_per_second": prefill.mean,
        "stddev_prefill_tokens_per_second": prefill.std,
        "mean_ttfr_ms": run.ttfr.mean if run.ttfr else None,
        "mean_ttft_ms": run.e2e_ttft.mean if run.e2e_ttft else None,
        "samples": None if decode.values is None else len(decode.values),
    }


TOOL = Tool(NAME, _is_mine, _read)
