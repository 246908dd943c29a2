"""Word problems: exact, repeatable, and in two parts that share no number combination."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsbench
from impl.train.micro import heldout_problems, wordings
from impl.train.micro.__main__ import main
from impl.train.micro.problems import Problem, training_problem
from impl.train.micro.reserved import operations, reserved, reserved_numbers

SHIPPED = Path(dsbench.__file__).parent / "data" / "word_problems.jsonl"
HELD_OUT = heldout_problems.problem_set()


def check(problem: Problem) -> None:
    """Every step is true, uses known numbers, and the last one is the answer."""
    known = set(problem.numbers) | {2}
    for step in problem.steps:
        a, sign, b, result = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", step).groups()  # type: ignore[union-attr]
        a, b, result = int(a), int(b), int(result)
        assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign] == result
        assert {a, b} <= known, problem
        known.add(result)
    assert 2 <= len(problem.steps) <= 4
    assert problem.steps[-1].endswith(f"={problem.answer}")
    assert problem.solution.endswith(f". #### {problem.answer}")
    assert 1 <= problem.answer <= 999


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9))
def test_training_problems_are_right_and_not_held_out(seed: int) -> None:
    problem = training_problem(random.Random(seed))
    check(problem)
    assert not reserved_numbers(problem.numbers)
    assert not any(reserved(*op) for op in operations(problem.solution))


def test_held_out_problems_are_right_and_apart_from_training() -> None:
    assert len(HELD_OUT) == heldout_problems.SET_SIZE == len({p.question for p in HELD_OUT})
    for problem in HELD_OUT:
        check(problem)
        assert reserved_numbers(problem.numbers)
    trained = [training_problem(random.Random(seed)).numbers for seed in range(3000)]
    assert {p.numbers for p in HELD_OUT}.isdisjoint(trained)


def test_held_out_problems_compute_with_pairs_that_training_leaves_out() -> None:
    used = [any(reserved(*op) for op in operations(p.solution)) for p in HELD_OUT]
    assert sum(used) > 100


def test_there_are_enough_wordings_and_the_new_ones_are_new() -> None:
    known = {wording for wording, _ in wordings.TEMPLATES}
    new = {wording for wording, _ in heldout_problems.NEW_WORDINGS}
    assert len(known) == len(wordings.TEMPLATES) >= 40
    assert len(new) >= 8
    assert known.isdisjoint(new)
    share = sum(any(item in p.question for item in heldout_problems.NEW_ITEMS) for p in HELD_OUT) / len(HELD_OUT)
    assert 0.05 < share < 0.3


def test_the_shipped_file_is_the_held_out_set(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    assert main([str(path)]) == 0
    assert path.read_bytes() == SHIPPED.read_bytes()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["question"], row["answer"]) for row in rows] == [(p.question, p.solution) for p in HELD_OUT]


def test_no_file_is_written_where_there_is_no_folder(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path / "none" / "problems.jsonl")])
    assert "is no folder" in capsys.readouterr().err
