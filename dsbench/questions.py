"""Question sets of the gsm8k probe: our own, a JSONL file such as the official one, or `hf:gsm8k` through datasets.

Rows have `question` and `answer`, which ends in `#### N`. The prompts of one plan are the same in every arm: the plan
keeps a digest of them, and the probe refuses to run on others.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from dsbench.errors import InputError
from dsbench.score.gsm8k import gold_number

OWN = "own"
"""The set that ships with dsbench."""
ONLINE = "hf:gsm8k"
OWN_FILE, EXAMPLES_FILE = "word_problems.jsonl", "worked_examples.jsonl"
OWN_TEMPLATE, TEMPLATE = "Q: {question}\nA:", "Question: {question}\nAnswer:"


@dataclass(frozen=True)
class Question:
    """One question and its worked answer, which ends in `#### N`."""

    question: str
    answer: str


def load_questions(source: str) -> list[Question]:
    """`own`, `hf:gsm8k`, or the path of a JSONL file. InputError names the file and the line."""
    if source == OWN:
        return _shipped(OWN_FILE)
    if source == ONLINE:
        return _online("test")
    if source.startswith("hf:"):
        raise InputError(f"question source '{source}' is unknown: use {ONLINE}, the path of a JSONL file, or '{OWN}'")
    try:
        return _rows(Path(source).read_bytes(), source)
    except OSError as error:
        raise InputError(f"question file {source}: {error.strerror or error}") from None


def own_examples() -> list[Question]:
    """Eight worked examples, written for dsbench."""
    return _shipped(EXAMPLES_FILE)


def prompts(questions: Sequence[Question], examples: Sequence[Question], template: str) -> list[str]:
    """What is sent for each question: the examples and then the question, each in the template."""
    before = "".join(f"{_filled(template, row)} {row.answer}\n\n" for row in examples)
    return [before + _filled(template, row) for row in questions]


def _filled(template: str, row: Question) -> str:
    return template.replace("{question}", row.question)


def digest(texts: Sequence[str], questions: Sequence[Question]) -> str:
    """Digest of prompts and gold answers, in their order."""
    golds = [str(gold_number(row.answer)) for row in questions]
    return hashlib.sha256(json.dumps([list(texts), golds]).encode()).hexdigest()[:16]


def _shipped(name: str) -> list[Question]:
    return _rows((resources.files("dsbench") / "data" / name).read_bytes(), f"dsbench/data/{name}")


def _rows(content: bytes, source: str) -> list[Question]:
    found = [_row(line, f"{source}:{n}") for n, line in enumerate(content.split(b"\n"), start=1) if line.strip()]
    if not found:
        raise InputError(f"{source}: no questions; each line should be an object with question and answer")
    return found


def _row(line: bytes, where: str) -> Question:
    try:
        row = json.loads(line.decode())
        question, answer = row["question"], row["answer"]
    except (ValueError, RecursionError):
        raise InputError(f"{where}: not JSON in UTF-8") from None
    except (KeyError, TypeError):
        raise InputError(f"{where}: should be an object with question and answer") from None
    if not isinstance(question, str) or not question.strip() or not isinstance(answer, str):
        raise InputError(f"{where}: question and answer should be texts")
    if "####" not in answer or gold_number(answer) is None:
        raise InputError(f"{where}: the answer should end in #### and a number")
    return Question(question, answer)


def _online(split: str) -> list[Question]:
    instead = "give the path of a JSONL file as the source instead"
    try:
        datasets = importlib.import_module("datasets")
    except ImportError:
        raise InputError(f"source {ONLINE} needs the package datasets, which is not installed: {instead}") from None
    try:
        rows = datasets.load_dataset("openai/gsm8k", "main", split=split)
    except Exception as error:  # whatever a hub, a proxy or a cache may raise
        why = " ".join(str(error).split())[:120]
        raise InputError(f"source {ONLINE} cannot be read, {type(error).__name__}: {why}; {instead}") from None
    return [Question(str(row["question"]), str(row["answer"])) for row in rows]
