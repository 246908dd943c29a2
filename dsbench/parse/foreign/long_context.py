"""Replies to long prompts, one a line: scored for recall and coherence as `dsbench score coherence` does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Input
from dsbench.parse.foreign.records import Record, Tool, read_each
from dsbench.score.coherence import score_rows
from dsbench.score.gsm8k_rows import GOLD

NAME = "long-context coherence"


class _Reply(Input):
    id: str | int
    output: str | None
    error: str | None
    finish_reason: str | None = None
    sentinels: list[str] | None = Field(default=None, min_length=1)


def _is_mine(record: Record) -> bool:
    """Neither "output" nor "error" is rare, but both beside an id, and no gold answer, are."""
    return {"id", "output", "error"} <= record.keys() and not any(key in record for key in GOLD)


def _read(records: Sequence[Record]) -> dict[str, Any]:
    return {"tool": NAME, **score_rows([reply.model_dump() for reply in read_each(_Reply, records)])}


TOOL = Tool(NAME, _is_mine, _read)
