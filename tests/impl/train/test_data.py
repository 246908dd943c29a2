"""Training text is repeatable, right, and apart from the held-out set."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from impl.tokenizer import BOS, EOS, PAD, decode
from impl.train import data, heldout

PAIRS = frozenset(heldout.sum_pairs())
HELD_OUT_PROBLEMS = heldout.problems(300) + heldout.problems(300, new_wording=True)


def documents(batch: data.Batch) -> list[str]:
    texts = []
    for row in batch.ids:
        assert row[0] == BOS
        for part in " ".join(str(i) for i in row if i != PAD).split(str(BOS))[1:]:
            texts.append(decode(int(i) for i in part.split()))
    return texts


def test_a_step_is_a_function_of_seed_and_number() -> None:
    assert data.batches(3, 17, 0.5) == data.batches(3, 17, 0.5)
    assert data.batches(3, 17, 0.5) != data.batches(3, 18, 0.5)
    assert data.batches(3, 17, 0.5) != data.batches(4, 17, 0.5)


@settings(max_examples=25, deadline=None)
@given(step=st.integers(0, 10**6), progress=st.floats(0, 1), scale=st.integers(1, 3))
def test_batches_are_whole_rows(step: int, progress: float, scale: int) -> None:
    for batch in data.batches(0, step, progress, scale).values():
        lengths = {len(row) for row in batch.ids} | {len(row) for row in batch.weights}
        assert len(lengths) == 1
        assert lengths.pop() % 32 == 0
        for ids, weights in zip(batch.ids, batch.weights, strict=True):
            assert all(w == 0 for i, w in zip(ids, weights, strict=True) if i in (PAD, BOS))
            assert sum(weights) > 1


def test_a_sequence_may_hold_several_documents() -> None:
    ids = data.batches(0, 0, 0.5)["arithmetic"].ids
    assert any(row.count(BOS) > 1 for row in ids)
    for row in ids:
        assert all(b == PAD or (a == EOS) == (b == BOS) for a, b in itertools.pairwise(row))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), step=st.integers(0, 10**6), progress=st.floats(0, 1))
def test_no_held_out_pair_is_ever_added(seed: int, step: int, progress: float) -> None:
    for batch in data.batches(seed, step, progress).values():
        for text in documents(batch):
            for a, b in re.findall(r"(?<!\d)(\d+)\+(\d+)", text):
                assert (int(a), int(b)) not in PAIRS, text


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_no_held_out_problem_is_ever_asked(seed: int) -> None:
    text = "".join(piece for piece, _ in data.word_problem(random.Random(seed)))
    question, _, solution = text.partition("\nA:")
    numbers = re.findall(r"\d+", question)
    for item in HELD_OUT_PROBLEMS:
        assert re.findall(r"\d+", item.prompt) != numbers
    assert not any(word in question for word in heldout.NEW_ITEMS)
    steps = re.findall(r"(\d+)([-+*])(\d+)=(\d+)", solution)
    assert len(steps) == 2
    for a, sign, b, result in steps:
        assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(result)
    assert solution.endswith(f"#### {steps[-1][-1]}\n")


def test_held_out_wordings_are_new() -> None:
    known = {wording for wording, _ in data.PROBLEMS}
    assert known.isdisjoint(wording for wording, _ in heldout.NEW_WORDINGS)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_sums_are_right(seed: int) -> None:
    question, answer = data.arithmetic(random.Random(seed))
    a, sign, b = re.fullmatch(r"(\d+)([-+*])(\d+)", question).groups()  # type: ignore[union-attr]
    assert {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign] == int(answer)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**9), characters=st.integers(60, 600))
def test_lookup_asks_beyond_the_window(seed: int, characters: int) -> None:
    context, queries = data.lookup(random.Random(seed), characters, questions=5)
    assert characters <= len(context) < characters + 90
    for query, answer in queries:
        line = f"{query[1:]}{answer}"
        assert context.count(f"\n{line}") + context.startswith(line) == 1
        assert len(context) - context.index(line) > 32 or not re.search(r"(^|\n)\w\w=", context[:-38])


def test_held_out_lookups_lie_beyond_the_window() -> None:
    for characters in (150, 300, 600):
        for item in heldout.lookups(100, characters):
            context, _, key = item.prompt.rpartition("?")
            assert len(context) >= characters
            assert len(item.prompt) - context.index(f"{key}{item.answer}\n") > 38


def test_the_shown_prompts_are_not_held_out() -> None:
    assert (17, 25) not in PAIRS
    assert 700 < len(PAIRS) < 900


def test_training_never_imports_the_held_out_module(tmp_path) -> None:
    code = (
        "import sys; from impl.train.__main__ import main\n"
        f"assert main(['--steps', '1', '--threads', '1', '--out', {str(tmp_path / 'run')!r}]) == 0\n"
        "assert 'impl.train.loop' in sys.modules\n"
        "sys.exit('impl.train.heldout' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
