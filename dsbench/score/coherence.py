"""Replies to long prompts: which needles came back, and whether the text is sound, scored apart.

A reply passes when it has every needle and is coherent (measurement.md section 6.2). A request without a reply is
neither a miss nor incoherent, and a reply that was cut off says so beside its scores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsbench.checks.text import incoherence
from dsbench.errors import InputError
from dsbench.score.jsonl import check_once, lines_of

SOURCE_SENTINELS = ("alpha-cobalt-17", "beta-quartz-29", "gamma-onyx-43")
"""Needles of the source document's own probe, for result files that do not name theirs."""
CUT = "length"
"""Finish reason of a reply that ended at its token limit."""


def has_needle(text: str, needle: str) -> bool:
    """Whether a needle stands in a text as a whole, in any case: `-17` is not found in `-179`."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(needle)}(?![A-Za-z0-9])", text, re.IGNORECASE) is not None


def recalled(text: str, needles: Sequence[str]) -> list[bool]:
    """By needle, whether a text names it."""
    return [has_needle(text, needle) for needle in needles]


def recalled_in_order(text: str, values: Sequence[str]) -> list[bool]:
    """By value, whether it stands in its own place of a list such as `42,17,93`; a value in another place is lost."""
    given = [part.strip() for part in text.strip().split(",")]
    return [place < len(given) and given[place] == value for place, value in enumerate(values)]


def score_rows(rows: Sequence[dict[str, Any]], sentinels: Sequence[str] = SOURCE_SENTINELS) -> dict[str, Any]:
    """Scores by row of `id`, `output`, `error` and, where known, `finish_reason` and `sentinels` of its own."""
    scored = [_score_row(row, row.get("sentinels") or sentinels) for row in rows]
    return {
        "sentinels": list(sentinels),
        "rows": scored,
        "passed": sum(row["pass"] for row in scored),
        "of": len(scored),
        "recall_misses": sum(row["recall_ok"] is False for row in scored),
        "incoherent": sum(row["coherence_ok"] is False for row in scored),
        "errors": sum(row["class"] == "error" for row in scored),
        "truncated": sum(row.get("truncated", False) for row in scored),
    }


def _score_row(row: dict[str, Any], sentinels: Sequence[str]) -> dict[str, Any]:
    text = row.get("output")
    if text is None:
        error = row.get("error") or "no output"
        return {"id": row["id"], "pass": False, "class": "error", "recall_ok": None, "coherence_ok": None,
                "error": error}  # fmt: skip
    missing = [name for name, found in zip(sentinels, recalled(text, sentinels), strict=True) if not found]
    reason = incoherence(text)
    wrong = [*(["recall miss"] if missing else []), *(["incoherent"] if reason else [])]
    scored = {
        "id": row["id"],
        "pass": not wrong,
        "class": " and ".join(wrong) or "pass",
        "recall_ok": not missing,
        "coherence_ok": reason is None,
        **({"missing": missing} if missing else {}),
        **({"reason": reason} if reason else {}),
    }
    if row.get("finish_reason") is not None:
        scored["truncated"] = row["finish_reason"] == CUT
    return scored


def load_rows(file: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file. InputError names the line and what is wrong with it."""
    lines = lines_of(file)
    rows = [_row(line, where) for line, where in lines]
    check_once((str(row["id"]), where) for row, (_, where) in zip(rows, lines, strict=True))
    return rows


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: not JSON; the file should have one object a line") from None
    if not isinstance(row, dict) or "id" not in row or "output" not in row:
        raise InputError(f"{where}: should be an object with id and output")
    for key in ("output", "error", "finish_reason"):
        if not isinstance(row.get(key), str | None):
            raise InputError(f"{where}: {key} should be text or null, got {str(row[key])[:40]}")
    own = row.get("sentinels")
    if own is not None and not (isinstance(own, list) and own and all(isinstance(name, str) and name for name in own)):
        raise InputError(f"{where}: sentinels should be a list of texts, got {str(own)[:40]}")
    return row
