"""SpecBundle's results: by data set one entry a batch size, with speed, acceptance length and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Input
from dsbench.parse.foreign.records import Count, Figure, Record, Share, Tool, common, read_each

NAME = "SpecBundle"
FEW_PROMPTS = 20


class _Metric(Input):
    latency: Figure = None
    output_throughput: Figure = None
    accept_length: Figure = None
    accuracy: Share = None
    num_questions: Count = None


class _Entry(Input):
    batch_size: Count
    num_draft_tokens: Count = None
    metrics: list[_Metric] = Field(min_length=1)
    num_samples: Count = None


class _File(Input):
    datasets: dict[str, list[_Entry]]


def _is_mine(record: Record) -> bool:
    entries = next(iter(record.values()), None)
    first = entries[0] if isinstance(entries, list) and entries else None
    return isinstance(first, dict) and "batch_size" in first and isinstance(first.get("metrics"), list)


def _read(records: Sequence[Record]) -> dict[str, Any]:
    files = read_each(_File, [{"datasets": record} for record in records])
    entries = [(name, entry) for file in files for name, of in file.datasets.items() for entry in of]
    rows = [_row(name, entry, metric) for name, entry in entries for metric in entry.metrics]
    return {
        "tool": NAME,
        "rows": rows,
        "num_draft_tokens": common([entry.num_draft_tokens for _, entry in entries]),
        "flags": [
            f"n={row['n']} prompts on {row['dataset']}: too few"
            for row in rows
            if row["n"] is not None and row["n"] < FEW_PROMPTS
        ],
    }


def _row(dataset: str, entry: _Entry, metric: _Metric) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "batch_size": entry.batch_size,
        "num_draft_tokens": entry.num_draft_tokens,
        "duration_seconds": metric.latency,
        "output_tokens_per_second": metric.output_throughput,
        "mean_acceptance_length": metric.accept_length,
        "accuracy": metric.accuracy,
        "n": entry.num_samples if entry.num_samples is not None else metric.num_questions,
    }


TOOL = Tool(NAME, _is_mine, _read)
