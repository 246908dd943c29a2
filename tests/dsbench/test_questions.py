"""Question sets: ours, files, the online one, and what a plan keeps of them."""

import json
import sys
import types

import pytest

from dsbench.answer_settings import Gsm8kProbe
from dsbench.errors import InputError
from dsbench.floors import probe_digest
from dsbench.questions import digest, load_questions, own_examples, prompts
from dsbench.score.gsm8k import extract, gold_number
from tests.dsbench.probes.serving import plan_of


@pytest.fixture
def file(tmp_path):
    def write(*rows):
        path = tmp_path / "questions.jsonl"
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return str(path)

    return write


ONE, TWO = {"question": "1+1?", "answer": "#### 2"}, {"question": "1,000+1?", "answer": "easy\n#### 1,001"}


def test_our_own_set_and_examples():
    own, examples = load_questions("own"), own_examples()
    assert len(own) == len({row.question for row in own}) == 1319
    assert len(examples) == 8
    assert not {row.question for row in own} & {row.question for row in examples}
    for row in (*own, *examples):
        gold = gold_number(row.answer)
        assert gold is not None
        assert extract(row.answer).value == gold
        # The sums before the marker lead to it.
        assert extract(row.answer.rpartition("####")[0]).value == gold


def test_the_examples_add_up():
    for row in own_examples():
        for part in row.answer.replace(". ", "\n").splitlines():
            left, equals, right = part.rpartition(" = ")
            if equals:
                words = left.replace("(", " ( ").replace(")", " ) ").split()
                sum_ = "".join(word for word in words[::-1][: _arithmetic(words)][::-1])
                assert eval(sum_) == int(right.split()[0]), part


def _arithmetic(words):
    """How many words at the end are part of a sum."""
    count = 0
    for word in reversed(words):
        if not (word.isdigit() or word in "+-*/()"):
            break
        count += 1
    return count


def test_a_file(file):
    found = load_questions(file(ONE, "", TWO))
    assert [(row.question, gold_number(row.answer)) for row in found] == [("1+1?", 2), ("1,000+1?", 1001)]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{", ":2: not JSON in UTF-8"),
        ("7", ":2: should be an object with question and answer"),
        ({"question": "?"}, ":2: should be an object with question and answer"),
        ({"question": " ", "answer": "#### 2"}, ":2: question and answer should be texts"),
        ({"question": "?", "answer": 2}, ":2: question and answer should be texts"),
        ({"question": "?", "answer": "2"}, ":2: the answer should end in #### and a number"),
        ({"question": "?", "answer": "#### two"}, ":2: the answer should end in #### and a number"),
    ],
)
def test_a_bad_file_is_named_with_its_line(file, row, problem):
    path = file(ONE, row)
    with pytest.raises(InputError) as caught:
        load_questions(path)
    assert str(caught.value) == path + problem


def test_sources_that_are_not_there(tmp_path, file):
    with pytest.raises(InputError, match=r"question file .*none\.jsonl: No such file"):
        load_questions(str(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match="no questions"):
        load_questions(file())
    with pytest.raises(InputError, match="question source 'hf:gsm9k' is unknown: use hf:gsm8k"):
        load_questions("hf:gsm9k")


def test_the_online_set_without_its_package_without_a_network_and_with_both(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="needs the package datasets, which is not installed: give the path"):
        load_questions("hf:gsm8k")

    asked = []

    def load_dataset(*names, split):
        asked.append((*names, split))
        if len(asked) == 1:
            raise ConnectionError("Couldn't reach\n'openai/gsm8k' on the Hub")
        return [ONE, TWO]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(InputError, match="cannot be read, ConnectionError: Couldn't reach 'openai/gsm8k' on the Hub; "):
        load_questions("hf:gsm8k")
    assert [row.question for row in load_questions("hf:gsm8k")] == ["1+1?", "1,000+1?"]
    assert asked == [("openai/gsm8k", "main", "test")] * 2


def test_prompts():
    own = load_questions("own")[:2]
    assert prompts(own, [], "{question}") == [row.question for row in own]
    shown = prompts(own[:1], own[1:], "Q: {question}\nA:")
    assert shown == [f"Q: {own[1].question}\nA: {own[1].answer}\n\nQ: {own[0].question}\nA:"]


def test_a_plan_keeps_number_and_digest(file):
    path = file(ONE, TWO)
    plan = plan_of(f'[probes.gsm8k]\nsource = "{path}"\nshots = 0\n')
    kept = plan.probes.gsm8k
    assert (kept.limit, len(kept.digest)) == (2, 16)
    assert plan.probes.items("gsm8k") == 2
    assert type(plan).model_validate_json(plan.model_dump_json()).probes == plan.probes
    # Any other text, gold answer, order or example gives another digest, and with it another floor.
    rows = load_questions(path)
    other = {
        kept.digest, digest(["1+1?", "x"], rows), digest(["1+1?", "1,000+1?"], [rows[1], rows[0]]),
        plan_of(f'[probes.gsm8k]\nsource = "{path}"\nshots = 1\n').probes.gsm8k.digest,
        plan_of(f'[probes.gsm8k]\nsource = "{path}"\nshots = 0\nlimit = 1\n').probes.gsm8k.digest,
    }  # fmt: skip
    assert len(other) == 5
    before = probe_digest(plan, "gsm8k.correct")
    file(ONE, {**TWO, "answer": "#### 1002"})
    assert probe_digest(plan_of(f'[probes.gsm8k]\nsource = "{path}"\nshots = 0\n'), "gsm8k.correct") != before


def test_settings_that_cannot_be(file):
    path = file(ONE)
    for fields, problem in (
        ({"source": path, "limit": 2}, "limit is 2, and .* has 1 questions"),
        ({"source": path, "shots": 9}, "shots is 9, and there are 8 examples"),
        ({"source": path, "examples": path, "shots": 2}, "shots is 2, and there are 1 examples"),
        ({"source": path, "digest": "0" * 16}, "the suite asks for 0000"),
    ):
        with pytest.raises(InputError, match=problem):
            Gsm8kProbe(**fields).pinned()
    with pytest.raises(ValueError, match=r"has no \{question\} in it"):
        Gsm8kProbe(template="Q:")


def test_answers_are_not_graded_where_drafts_are_accepted_at_will():
    tables = "[probes.gsm8k]\nlimit = 3\n[probes.instruction]\n"
    plan = plan_of(tables, speculative="dspark", engine_args=["--synthetic-acceptance-rates", "0.9"])
    assert (plan.probes.gsm8k, plan.probes.instruction) == (None, None)
    assert any("gsm8k, instruction: not-run" in note for note in plan.notes)
