"""lm-eval's `results_*.json`, and the flattened form that a driver script keeps of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from dsbench.checks.answer import Input
from dsbench.parse.foreign.records import Count, Figure, Record, Share, Tool, flat_or_rows, option, quotient, read_each

NAME = "lm-eval"
FLATTENED = "lm-eval, flattened"
EXACT = 1e-6
"""How closely a stderr must follow from a share and n before n is taken from the two: more than rounding leaves."""
MOST_ITEMS = 10**6


class _Scores(Input):
    strict: Share = Field(default=None, alias="exact_match,strict-match")
    strict_stderr: Figure = Field(default=None, alias="exact_match_stderr,strict-match")
    flexible: Share = Field(default=None, alias="exact_match,flexible-extract")
    flexible_stderr: Figure = Field(default=None, alias="exact_match_stderr,flexible-extract")
    acc: Share = Field(default=None, alias="acc,none")
    acc_stderr: Figure = Field(default=None, alias="acc_stderr,none")


class _Samples(Input):
    original: Count = None
    effective: Count = None


class _Generation(Input):
    temperature: Figure = None


class _Task(Input):
    generation_kwargs: _Generation | None = None


class _Run(Input):
    model: str | None = None
    model_args: dict[str, Any] | str | None = None
    limit: Figure = None


class _File(Input):
    results: dict[str, _Scores] = Field(min_length=1)
    n_shot: dict[str, Count] = Field(default={}, alias="n-shot")
    n_samples: dict[str, _Samples] = Field(default={}, alias="n-samples")
    configs: dict[str, _Task] = Field(default={})
    config: _Run | None = None


def _is_mine(record: Record) -> bool:
    return isinstance(record.get("results"), dict) and any(key in record for key in ("n-samples", "n-shot", "configs"))


def _read(records: Sequence[Record]) -> dict[str, Any]:
    rows = [_row(file, task) for file in read_each(_File, records) for task in file.results]
    return flat_or_rows(NAME, rows)


def _row(file: _File, task: str) -> dict[str, Any]:
    scores, samples = file.results[task], file.n_samples.get(task, _Samples())
    run = file.config or _Run()
    generation = (file.configs.get(task) or _Task()).generation_kwargs or _Generation()
    n, full = samples.effective, samples.original
    return {
        "model": _model(run.model_args),
        "task": task,
        "n": n,
        "n_is_printed": n is not None,
        "n_full": full,
        "fewshot": file.n_shot.get(task),
        **_counted(scores.strict, scores.flexible, scores.acc, n),
        "strict_stderr": scores.strict_stderr,
        "flexible_stderr": scores.flexible_stderr,
        "acc_stderr": scores.acc_stderr,
        "stderr": _one(scores.strict_stderr, scores.flexible_stderr, scores.acc_stderr),
        "temperature": generation.temperature,
        "limit": run.limit,
        "comparable_with_full_run": None if n is None or full is None else n == full,
        "flags": [
            *([f"{n} of {full} items: not comparable with a full run"] if None not in (n, full) and n != full else []),
            *_flags(scores.strict, scores.flexible),
        ],
    }


def _model(args: Mapping[str, Any] | str | None) -> str | None:
    """From lm-eval's `--model_args`, which is a text such as `model=NAME,base_url=URL`, or an object of the same."""
    if isinstance(args, str):
        args = dict(part.partition("=")[::2] for part in args.split(","))
    name = (args or {}).get("model") or (args or {}).get("pretrained")
    return name if isinstance(name, str) else None


def _counted(strict: float | None, flexible: float | None, acc: float | None, n: int | None) -> dict[str, Any]:
    return {
        "strict": strict,
        "flexible": flexible,
        "acc": acc,
        "strict_correct": _correct(strict, n),
        "flexible_correct": _correct(flexible, n),
        "acc_correct": _correct(acc, n),
    }


def _correct(share: float | None, n: int | None) -> int | None:
    """Right answers of n; None if the share is not a whole number of them."""
    if share is None or not n or abs(share * n - round(share * n)) > 1e-3:
        return None
    return round(share * n)


def _one(*stderrs: float | None) -> float | None:
    """The stderr, where all that are there are the same."""
    told = {stderr for stderr in stderrs if stderr is not None}
    return told.pop() if len(told) == 1 else None


def _flags(strict: float | None, flexible: float | None) -> list[str]:
    if strict is None or flexible is None or strict <= flexible:
        return []
    return ["strict is above flexible: keep both and compare like with like"]


# --- flattened --------------------------------------------------------------------------------------------------------


class _FlatTask(Input):
    task: str
    flexible: Share = Field(default=None, alias="exact_match_flexible")
    strict: Share = Field(default=None, alias="exact_match_strict")
    flexible_stderr: Figure = Field(default=None, alias="exact_match_flexible_stderr")
    strict_stderr: Figure = Field(default=None, alias="exact_match_strict_stderr")
    acc: Share = None
    acc_stderr: Figure = None


class _FlatConfig(Input):
    num_fewshot: Count = None
    limit: Figure = None
    temperature: Figure = None


class _Flat(Input):
    ok: bool | None = None
    returncode: int | None = None
    command: list[str] | None = None
    config: _FlatConfig | None = None
    tasks: list[_FlatTask] = Field(min_length=1)


def _is_flat(record: Record) -> bool:
    tasks = record.get("tasks")
    first = tasks[0] if isinstance(tasks, list) and tasks else None
    return isinstance(first, dict) and "task" in first and any(key in first for key in ("exact_match_strict", "acc"))


def _read_flat(records: Sequence[Record]) -> dict[str, Any]:
    rows = [_flat_row(file, task) for file in read_each(_Flat, records) for task in file.tasks]
    return flat_or_rows(FLATTENED, rows)


def _flat_row(file: _Flat, task: _FlatTask) -> dict[str, Any]:
    config = file.config or _FlatConfig()
    pairs = [(task.strict, task.strict_stderr), (task.flexible, task.flexible_stderr), (task.acc, task.acc_stderr)]
    n = items_behind(pairs)
    return {
        "model": _model(option(file.command or [], "model_args")),
        "task": task.task,
        "n": n,
        "n_is_printed": False,
        "fewshot": config.num_fewshot,
        **_counted(task.strict, task.flexible, task.acc, n),
        "strict_stderr_recomputed": stderr(task.strict, n),
        "flexible_stderr_recomputed": stderr(task.flexible, n),
        "temperature": config.temperature,
        "limit": config.limit,
        "flags": [
            *([f"the run ended with exit code {file.returncode}"] if file.ok is False else []),
            *_flags(task.strict, task.flexible),
        ],
    }


def stderr(share: float | None, n: int | None) -> float | None:
    """lm-eval's standard error of a mean of n answers that are right or wrong."""
    return None if share is None or n is None or n < 2 else math.sqrt(share * (1 - share) / (n - 1))


def items_behind(pairs: Sequence[tuple[float | None, float | None]]) -> int | None:
    """The number of items that shares and their standard errors follow from; None if they do not agree on one."""
    found = {n for share, error in pairs if share and share < 1 and error and (n := _items(share, error))}
    return found.pop() if len(found) == 1 else None


def _items(share: float, error: float) -> int | None:
    ratio = quotient(share * (1 - share), error * error)
    if ratio is None or not 1 <= ratio < MOST_ITEMS:
        return None
    n = round(ratio) + 1
    again = stderr(share, n)
    return n if again is not None and _correct(share, n) and abs(again - error) <= EXACT * error else None


TOOL = Tool(NAME, _is_mine, _read)
FLAT_TOOL = Tool(FLATTENED, _is_flat, _read_flat)
