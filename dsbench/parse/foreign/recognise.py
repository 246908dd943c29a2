"""Which program wrote a result file, by the keys of its first record, and what the file says. Else it is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsbench.errors import InputError
from dsbench.parse.foreign import (
    guidellm,
    llama_bench,
    llama_benchy,
    lm_eval,
    long_context,
    sglang,
    specbundle,
    tool_scenarios,
    vllm_serve,
    vllm_wrapped,
)
from dsbench.parse.foreign.records import Record, Tool, load_records

UNKNOWN = "unknown"
LONGEST = 300
TOOLS: tuple[Tool, ...] = (
    vllm_serve.TOOL,
    vllm_wrapped.TOOL,
    sglang.TOOL,
    llama_benchy.TOOL,
    guidellm.TOOL,
    llama_bench.TOOL,
    lm_eval.TOOL,
    lm_eval.FLAT_TOOL,
    specbundle.TOOL,
    tool_scenarios.TOOL,
    long_context.TOOL,
)


def tool_of(record: Record) -> Tool | None:
    return next((tool for tool in TOOLS if tool.is_mine(record)), None)


def import_result(path: Path) -> dict[str, Any]:
    """What a file says, by the keys that `dsbench import --json` prints; `tool` is `unknown` if nobody claims it.

    InputError is one line with the file, the program, the record, the key and the value.
    """
    records = load_records(path)
    if not records:
        return {"tool": UNKNOWN, "why": "not an object, a list of objects, or one object a line"}
    tool = tool_of(records[0])
    if tool is None:
        keys = ", ".join(repr(key)[1:-1] for key in list(records[0])[:6]) or "none"
        return {"tool": UNKNOWN, "why": f"no known program's result has the keys {keys:.200}"}
    try:
        return tool.read(records)
    except InputError as error:
        raise InputError(f"{path}: {tool.name}: {_one_line(str(error))}") from None


def _one_line(text: str) -> str:
    """Keys and values of the file may hold anything."""
    plain = "".join(c if c.isprintable() else " " for c in text)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}..."
