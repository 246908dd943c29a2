"""`vllm bench serve --save-result`: one run, or one a line where runs were appended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Input
from dsbench.checks.identities import Row
from dsbench.parse.foreign import consistency
from dsbench.parse.foreign.records import Count, Figure, Record, Share, Tool, flat_or_rows, quotient, read_each
from dsbench.sanity import LEAST_ROUNDS

NAME = "vllm bench serve"
MARKS = ("model_id", "num_prompts", "completed", "output_throughput")


class _Run(Input):
    model_id: str | None
    num_prompts: Count
    request_rate: Figure | str = None
    max_concurrency: Count = None
    duration: Figure = None
    completed: Count
    failed: Count = None
    total_input_tokens: Count = None
    total_output_tokens: Count = None
    request_throughput: Figure = None
    output_throughput: Figure
    total_token_throughput: Figure = None
    mean_ttft_ms: Figure = None
    median_ttft_ms: Figure = None
    mean_tpot_ms: Figure = None
    median_tpot_ms: Figure = None
    mean_itl_ms: Figure = None
    median_itl_ms: Figure = None
    acceptance_percent: Figure = Field(default=None, alias="spec_decode_acceptance_rate")
    acceptance_length: Figure = Field(default=None, alias="spec_decode_acceptance_length")
    drafts: Count = Field(default=None, alias="spec_decode_num_drafts")
    drafted: Count = Field(default=None, alias="spec_decode_draft_tokens")
    accepted: Count = Field(default=None, alias="spec_decode_accepted_tokens")
    per_position: list[Share] | None = Field(
        default=None, max_length=1000, alias="spec_decode_per_position_acceptance_rates"
    )


def _is_mine(record: Record) -> bool:
    return all(key in record for key in MARKS) and "total_output_tokens_retokenized" not in record


def _read(records: Sequence[Record]) -> dict[str, Any]:
    return flat_or_rows(NAME, [_row(run) for run in read_each(_Run, records)])


def _row(run: _Run) -> dict[str, Any]:
    recomputed = quotient(run.total_output_tokens, run.duration)
    return {
        "model": run.model_id,
        "concurrency": run.max_concurrency,
        "rate_asked_per_second": run.request_rate,
        "requests_asked": run.num_prompts,
        "requests_completed": run.completed,
        "requests_failed": run.failed,
        "input_tokens": run.total_input_tokens,
        "output_tokens": run.total_output_tokens,
        "duration_seconds": run.duration,
        "output_tokens_per_second": run.output_throughput,
        "output_tokens_per_second_recomputed": recomputed,
        "total_tokens_per_second": run.total_token_throughput,
        "request_per_second": run.request_throughput,
        "mean_ttft_ms": run.mean_ttft_ms,
        "median_ttft_ms": run.median_ttft_ms,
        "mean_tpot_ms": run.mean_tpot_ms,
        "median_tpot_ms": run.median_tpot_ms,
        "mean_itl_ms": run.mean_itl_ms,
        "median_itl_ms": run.median_itl_ms,
        # Printed in percent, the positions as shares.
        "draft_acceptance_rate": quotient(run.acceptance_percent, 100),
        "mean_acceptance_length": run.acceptance_length,
        "num_drafts": run.drafts,
        "drafted_tokens": run.drafted,
        "accepted_tokens": run.accepted,
        "per_position": run.per_position,
        "flags": _flags(run, recomputed),
    }


def _flags(run: _Run, recomputed: float | None) -> list[str]:
    positions = [rate for rate in run.per_position or () if rate is not None]
    row = Row(
        depth=len(positions) or None,
        mean_acceptance_length=run.acceptance_length,
        accepted=run.accepted,
        drafts=run.drafts,
        # Of a few drafts, a position that was never rejected says nothing.
        per_position=positions if (run.drafts or 0) >= LEAST_ROUNDS else None,
        itl_ms=run.mean_itl_ms,
        tpot_ms=run.mean_tpot_ms,
        concurrency=run.max_concurrency,
        tokens_per_second=run.output_throughput,
    )
    return [
        *consistency.draft_flags(run.drafts, run.drafted),
        *consistency.identity_flags(row),
        *consistency.speed_flags(run.output_throughput, recomputed),
        *consistency.request_flags(run.num_prompts, run.completed, run.failed),
    ]


TOOL = Tool(NAME, _is_mine, _read)
