"""Files of existing GSM8K outputs: JSONL rows with `output` and a gold answer, or lm-eval's logged samples.

A row has `output` and a gold answer (`gold`, `question_gold`, or an official `answer` with `#### N`), and where known
`id` and `finish_reason`. A row of lm-eval's `samples_*.jsonl` has `doc_id`, `target` and `resps`; lm-eval writes one
for each of its filters, so rows of one document count once. Those do not say how a reply ended.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

from dsbench.errors import InputError
from dsbench.score.gsm8k import Scored, gold_number, score

GOLD = ("gold", "question_gold", "answer")
SHOWN = 5
"""Bad rows that are named; the others are counted."""


class BadRow(ValueError):
    """What is wrong with one row."""


def score_file(path: Path) -> list[Scored]:
    """Every reply of a file, scored. InputError names the bad rows by line number."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    rows: list[Scored] = []
    lines: dict[str, tuple[int, Any]] = {}
    bad: list[str] = []
    for number, line in enumerate(content.removeprefix(BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = _object(line)
            id, output, gold, finish_reason = _sample(row) if "resps" in row else _plain(row, number)
            if id in lines:
                first, known = lines[id]
                if "resps" not in row or (output, gold) != known:
                    raise BadRow(f"id {id!r} stands in line {first} already")
                continue
            rows.append(score(id, output, gold, finish_reason))
            lines[id] = (number, (output, gold))
        except BadRow as error:
            bad.append(f"line {number}: {error}")
    if bad:
        more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
        raise InputError(f"{path}: {'; '.join(bad[:SHOWN])}{more}")
    if not rows:
        raise InputError(f"{path}: no rows; each line should be an object with output and gold")
    return rows


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        raise BadRow("not UTF-8 text") from None
    except (ValueError, RecursionError):
        raise BadRow("not JSON") from None
    if not isinstance(row, dict):
        raise BadRow("not an object with output and gold")
    return row


Row = tuple[str, str, str, str | None]
"""Id, output, gold answer, and how the output ended."""


def _plain(row: dict[str, Any], number: int) -> Row:
    if not isinstance(row.get("output"), str):
        raise BadRow("output should be text" if "output" in row else f"no output among {_keys(row)}")
    name = next((name for name in GOLD if name in row), None)
    if name is None:
        raise BadRow(f"no gold answer ({', '.join(GOLD)}) among {_keys(row)}")
    finish_reason = row.get("finish_reason")
    if not isinstance(finish_reason, str | None):
        raise BadRow(f"finish_reason should be text or null, got {_short(finish_reason)}")
    return _id(row.get("id", number)), row["output"], _gold(row[name], name), finish_reason


def _sample(row: dict[str, Any]) -> Row:
    if "doc_id" not in row or "target" not in row:
        raise BadRow("resps without doc_id and target: no sample of lm-eval")
    match row["resps"]:
        case [[str(output)]] | [str(output)]:
            return _id(row["doc_id"]), output, _gold(row["target"], "target"), None
    raise BadRow(f"resps should hold one reply, got {_short(row['resps'])}")


def _id(value: Any) -> str:
    if not isinstance(value, str | int):
        raise BadRow(f"the id should be a text or a whole number, got {_short(value)}")
    return str(value)


def _gold(value: Any, name: str) -> str:
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if not isinstance(text, str) or gold_number(text) is None:
        raise BadRow(f"{name} is no number: {_short(value)}")
    return text


def _keys(row: dict[str, Any]) -> str:
    return ", ".join(list(row)[:6]) or "no keys"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:20]}...{text[-17:]}"
