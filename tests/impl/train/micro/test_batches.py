"""A step's batches: repeatable, within their shapes, nearly full, and free of everything that is held out."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

from hypothesis import example, given, settings
from hypothesis import strategies as st

from impl.dims import MICRO
from impl.tokenizer import BOS, EOS, NEWLINE, PAD, decode
from impl.train.micro.batches import RECALL_ONLY, SETTLED, batches
from impl.train.micro.reserved import operations, reserved
from impl.train.packing import ANSWER, COARSE, COUNTED

STEPS = st.integers(0, 10**6)


def test_a_step_is_a_function_of_seed_and_number() -> None:
    for progress in (0.1, 0.6):
        assert batches(3, 17, progress) == batches(3, 17, progress)
        assert batches(3, 17, progress) != batches(3, 18, progress)
        assert batches(3, 17, progress) != batches(4, 17, progress)


@settings(max_examples=40, deadline=None)
@given(step=STEPS, progress=st.floats(0, 1), scale=st.integers(1, 2))
def test_shapes(step: int, progress: float, scale: int) -> None:
    work = batches(0, step, progress, scale)
    lengths = {name: {len(row) for row in (*batch.ids, *batch.weights)} for name, batch in work.items()}
    rows = {name: len(batch.ids) for name, batch in work.items()}
    if progress < RECALL_ONLY:
        assert lengths == {"copying": {256}, "recall": {256} if rows["recall"] == 8 * scale else {512}}
    else:
        assert list(work)[:3] == ["drills", "numbers", "forms"]
        assert list(work)[3:] == ["near", "far"] if progress < SETTLED else len(work) == (4 if progress == 1 else 5)
        assert set(list(work)[3:]) <= {"near", "far", COARSE, COUNTED, "tally"}
        for name, found in lengths.items():
            (length,) = found
            if name in (COUNTED, "tally"):
                assert length in (512, 1024, 2304)
            elif name == "far":
                assert progress >= {1024: 0, 2304: 0.4, 4608: 0.55}[length]
            else:
                assert length == (256 if name == "drills" else 1024)
            assert rows[name] == max(1, 2048 // length) * scale
    assert max(itertools.chain.from_iterable(lengths.values())) < MICRO.max_model_len


@settings(max_examples=20, deadline=None)
@given(step=STEPS, progress=st.floats(0, 1))
def test_tokens_and_weights(step: int, progress: float) -> None:
    for name, batch in batches(0, step, progress).items():
        for ids, weights in zip(batch.ids, batch.weights, strict=True):
            assert ids[0] == BOS
            assert all(0 <= i <= NEWLINE or i in (PAD, BOS, EOS) for i in ids)
            assert all(0 <= w <= ANSWER for w in weights)
            assert all(w == 0 for i, w in zip(ids, weights, strict=True) if i in (PAD, BOS))
            assert all(b == PAD or (a == EOS) == (b == BOS) for a, b in itertools.pairwise(ids))
            if name != "forms":  # a row of forms may be all prose
                assert weights.count(ANSWER) > 0


def test_rows_are_nearly_full() -> None:
    rows = [row for step in range(24) for batch in batches(5, step, step / 24).values() for row in batch.ids]
    assert sum(row.count(PAD) for row in rows) < 0.05 * sum(map(len, rows))


def test_long_rows_come_and_are_rare() -> None:
    steps = [batches(1, step, 0.8) for step in range(60)]
    lengths = [len(work["far"].ids[0]) for work in steps if "far" in work]
    assert {1024, 2304, 4608} == set(lengths)
    assert lengths.count(1024) > len(lengths) / 3
    assert len(lengths) < 40


def test_late_steps_hold_recall_without_c4a_one_line_to_a_large_entry() -> None:
    found = [work[COARSE] for work in (batches(2, step, 0.9) for step in range(20)) if COARSE in work]
    assert 1 <= len(found) <= 10
    lines = [len(re.findall("^[a-z]{2}=[0-9]{2}$", decode(row), re.M)) for batch in found for row in batch.ids]
    assert sum(lines) / len(lines) < 2 * 1024 / 128


def test_late_steps_hold_tallies_that_ask_often_without_c4a_and_once_with_it() -> None:
    steps = [batches(3, step, 0.9) for step in range(30)]
    for name, least, most in ((COUNTED, 2, 40), ("tally", 1, 1)):
        rows = [decode(row) for work in steps if name in work for row in work[name].ids]
        assert len(rows) > 15
        asked = [row.count("*=") for row in rows]
        assert least <= sum(asked) / len(asked) <= most
        assert min(asked) >= 1


def test_steps_of_a_refinement_look_back_or_count() -> None:
    steps = [set(batches(6, step, 1.0)) - {"drills", "numbers", "forms"} for step in range(60)]
    assert all(len(kinds) == 1 for kinds in steps)
    assert {kind for kinds in steps for kind in kinds} == {"near", "far", COARSE, COUNTED, "tally"}
    assert 20 <= sum(kinds <= {COUNTED, "tally"} for kinds in steps) <= 40


def test_drills_are_dense_and_mostly_answered_at_once() -> None:
    rows = [decode(row) for step in range(8) for row in batches(4, step, 0.6)["drills"].ids]
    chat = [answer for row in rows for answer in re.findall("A: (.*)\n", row)]
    assert len(chat) > 3 * len(rows)
    assert sum(answer.isdigit() for answer in chat) > 0.75 * len(chat)
    assert sum(len(re.findall("^[0-9 +*x?-]+= ?[0-9]+$", row, re.M)) for row in rows) > 2 * len(rows)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), step=STEPS, progress=st.floats(RECALL_ONLY, 1))
@example(seed=597, step=4850, progress=1.0)  # a call of calculate that ends a chat
def test_no_held_out_pair_is_ever_computed(seed: int, step: int, progress: float) -> None:
    work = batches(seed, step, progress)
    for row in (*work["drills"].ids, *work["numbers"].ids, *work["forms"].ids):
        assert not [op for op in operations(decode(row)) if reserved(*op)]


def test_training_text_needs_neither_torch_nor_the_held_out_modules() -> None:
    code = (
        "import sys; from impl.train.micro.batches import batches; batches(0, 0, 0.5)\n"
        "bad = [m for m in sys.modules if m.partition('.')[0] == 'torch' or 'heldout' in m]\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
