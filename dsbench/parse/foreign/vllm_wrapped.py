"""Runs of `vllm bench serve` as a driver script kept them: the command, and printed figures under keys of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dsbench.checks.answer import Input
from dsbench.checks.identities import Row
from dsbench.parse.foreign import consistency
from dsbench.parse.foreign.records import Count, Figure, Record, Tool, common, option, quotient, read_each

NAME = "vllm bench serve, wrapped"


class _Printed(Input):
    successful_requests: Count = None
    benchmark_duration_s: Figure = None
    total_input_tokens: Count = None
    total_generated_tokens: Count = None
    request_throughput_req_s: Figure = None
    output_token_throughput_tok_s: Figure = None
    mean_ttft_ms: Figure = None
    mean_tpot_ms: Figure = None
    mean_itl_ms: Figure = None


class _Run(Input):
    concurrency: Count = None
    ok: bool | None = None
    detail: str | None = None
    metrics: _Printed | None
    command: list[str]


def _is_mine(record: Record) -> bool:
    command = record.get("command")
    return "metrics" in record and isinstance(command, list) and "bench" in command and "serve" in command


def _read(records: Sequence[Record]) -> dict[str, Any]:
    runs = read_each(_Run, records)
    rows = [_row(run) for run in runs]
    temperature = common([row["temperature"] for row in rows])
    totals = [row["output_tokens"] for row in rows]
    flags = [flag for run, row in zip(runs, rows, strict=True) for flag in _flags(run, row)]
    if temperature and len(set(totals)) > 1 and None not in totals:
        flags.append(f"temperature {temperature:g}: output tokens differ ({', '.join(map(str, totals))})")
    return {"tool": NAME, "rows": rows, "temperature": temperature, "flags": flags}


def _row(run: _Run) -> dict[str, Any]:
    printed = run.metrics or _Printed()
    return {
        "model": option(run.command, "model"),
        "concurrency": run.concurrency,
        "temperature": _number(option(run.command, "temperature")),
        "requests_completed": printed.successful_requests,
        "requests_asked": _asked(run),
        "input_tokens": printed.total_input_tokens,
        "output_tokens": printed.total_generated_tokens,
        "duration_seconds": printed.benchmark_duration_s,
        "request_per_second": printed.request_throughput_req_s,
        "output_tokens_per_second": printed.output_token_throughput_tok_s,
        "output_tokens_per_second_recomputed": quotient(printed.total_generated_tokens, printed.benchmark_duration_s),
        "mean_ttft_ms": printed.mean_ttft_ms,
        "mean_tpot_ms": printed.mean_tpot_ms,
        "mean_itl_ms": printed.mean_itl_ms,
    }


def _asked(run: _Run) -> int | None:
    """From the command, or from a detail such as `successful_requests 80/80`."""
    told = re.search(r"[0-9]{1,15}/([0-9]{1,15})(?![0-9])", (run.detail or "")[:1000])
    number = option(run.command, "num-prompts") or (told[1] if told else "")
    return int(number) if re.fullmatch(r"[0-9]{1,15}", number) else None


def _number(text: str | None) -> float | None:
    return float(text) if text and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text) else None


def _flags(run: _Run, row: dict[str, Any]) -> list[str]:
    where = f"concurrency {run.concurrency}: "
    told = Row(
        itl_ms=row["mean_itl_ms"],
        tpot_ms=row["mean_tpot_ms"],
        concurrency=run.concurrency,
        tokens_per_second=row["output_tokens_per_second"],
    )
    flags = [
        *([f"failed{f' ({run.detail[:200]})' if run.detail else ''}"] if run.ok is False else []),
        *consistency.identity_flags(told),
        *consistency.speed_flags(row["output_tokens_per_second"], row["output_tokens_per_second_recomputed"]),
        *consistency.request_flags(row["requests_asked"], row["requests_completed"], None),
    ]
    return [where + flag for flag in flags]


TOOL = Tool(NAME, _is_mine, _read)
