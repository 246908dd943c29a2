"""`llama-bench -o json` or `-o jsonl`: one record a test. Its samples are repeats inside one process, not boots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsbench.checks.answer import Input
from dsbench.parse.foreign.records import Count, Figure, Figures, Record, Tool, read_each

NAME = "llama-bench"
MARKS = ("n_prompt", "n_gen", "avg_ts")


class _Test(Input):
    model_filename: str | None = None
    model_type: str | None = None
    build_commit: str | None = None
    n_prompt: Count
    n_gen: Count
    n_depth: Count = None
    avg_ts: Figure
    stddev_ts: Figure = None
    samples_ts: Figures | None = None


def _is_mine(record: Record) -> bool:
    return all(key in record for key in MARKS)


def _read(records: Sequence[Record]) -> dict[str, Any]:
    return {"tool": NAME, "rows": [_row(test) for test in read_each(_Test, records)]}


def _row(test: _Test) -> dict[str, Any]:
    samples = test.samples_ts
    return {
        "model": test.model_type or test.model_filename,
        "build": test.build_commit,
        "test": _name(test),
        "tokens_per_second": test.avg_ts,
        # As llama-bench's own table prints it.
        "stddev_tokens_per_second": None if test.stddev_ts is None else round(test.stddev_ts, 2),
        "samples": None if samples is None else len(samples),
        "first_sample_is_slowest": _first_is_slowest(samples or []),
    }


def _name(test: _Test) -> str:
    parts = [f"prefill {test.n_prompt}"] if test.n_prompt else []
    parts += [f"decode {test.n_gen}"] if test.n_gen else []
    return " + ".join(parts) + (f" at depth {test.n_depth}" if test.n_depth else "")


def _first_is_slowest(samples: Sequence[float | None]) -> bool | None:
    """As it is without a warm-up."""
    speeds = [speed for speed in samples if speed is not None]
    if len(speeds) < 2 or len(speeds) < len(samples):
        return None
    return speeds[0] < min(speeds[1:])


TOOL = Tool(NAME, _is_mine, _read)
