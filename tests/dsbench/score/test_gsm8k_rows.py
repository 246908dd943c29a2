"""Files of GSM8K outputs: the shapes that are taken, and bad rows by their line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.errors import InputError
from dsbench.score.gsm8k_rows import score_file


@pytest.fixture
def written(tmp_path):
    def write(*rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return path

    return write


def sample(doc, reply, filtered, **more):
    """A row as lm-eval logs it, once for each filter."""
    return {
        "doc_id": doc, "doc": {"question": "?", "answer": "5 + 5 = 10\n#### 10"}, "target": "5 + 5 = 10\n#### 10",
        "arguments": {"gen_args_0": {}}, "resps": [[reply]], "filtered_resps": [filtered], "filter": "strict-match",
        "exact_match": 1.0, **more,
    }  # fmt: skip


def test_rows_of_every_shape(written):
    rows = score_file(
        written(
            {"id": "a", "output": "#### 18", "question_gold": "18", "finish_reason": "stop"},
            "",
            {"output": "It is 7.", "gold": 7},
            {"output": "It is 2.5", "gold": 2.5, "finish_reason": None},
            {"output": "It is 9", "answer": "16 - 7 = <<16-7=9>>9\n#### 9", "finish_reason": "length"},
        )
    )
    assert [(row.id, row.gold, row.correct, row.truncated) for row in rows] == [
        ("a", "18", True, False), ("3", "7", True, None), ("4", "2.5", True, None), ("5", "9", True, True),
    ]  # fmt: skip


def test_a_byte_order_mark_is_no_part_of_the_first_row(written):
    path = written({"output": "#### 5", "gold": 5})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [row.correct for row in score_file(path)] == [True]


def test_lm_eval_samples_count_once(written):
    path = written(
        sample(0, "So #### 10", "10"),
        sample(1, "12, or #### 11", "11"),
        sample(0, "So #### 10", "10", filter="flexible-extract"),
        sample(1, "12, or #### 11", "11", filter="flexible-extract"),
    )
    rows = score_file(path)
    assert [(row.id, row.extracted, row.correct, row.truncated) for row in rows] == [
        ("0", "10", True, None), ("1", "11", False, None)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("7", "line 2: not an object with output and gold"),
        ({"gold": "7"}, "line 2: no output among gold"),
        ({"output": None, "gold": "7"}, "line 2: output should be text"),
        ({"output": "7"}, "line 2: no gold answer (gold, question_gold, answer) among output"),
        ({"output": "7", "gold": "seven"}, 'line 2: gold is no number: "seven"'),
        ({"output": "7", "gold": True}, "line 2: gold is no number: true"),
        ('{"output": "7", "gold": NaN}', "line 2: gold is no number: NaN"),
        ({"output": "7", "gold": "7", "finish_reason": 1}, "line 2: finish_reason should be text or null, got 1"),
        ({"output": "7", "gold": "7", "id": [1]}, "line 2: the id should be a text or a whole number, got [1]"),
        ({"output": "7", "gold": "7", "id": "first"}, "line 2: id 'first' stands in line 1 already"),
        ({"resps": [["7"]]}, "line 2: resps without doc_id and target: no sample of lm-eval"),
        ({"resps": [["7", "8"]], "doc_id": 1, "target": "7"}, 'line 2: resps should hold one reply, got [["7", "8"]]'),
    ],
)
def test_a_bad_row_is_named_by_its_line(written, row, problem):
    with pytest.raises(InputError) as caught:
        score_file(written({"id": "first", "output": "7", "gold": "7"}, row))
    assert str(caught.value).endswith(f"rows.jsonl: {problem}")


def test_replies_of_one_document_that_differ(written):
    with pytest.raises(InputError, match="line 2: id '0' stands in line 1 already"):
        score_file(written(sample(0, "#### 10", "10"), sample(0, "#### 11", "11")))


def test_many_bad_rows_are_counted(written):
    with pytest.raises(InputError, match=r"line 1: not JSON; .*line 5: not JSON; and 3 more$"):
        score_file(written(*["?"] * 8))


def test_files_without_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    with pytest.raises(InputError, match=r"cannot read .*rows\.jsonl: No such file"):
        score_file(path)
    path.write_bytes(b"\n \n")
    with pytest.raises(InputError, match="no rows"):
        score_file(path)
    path.write_bytes(b'{"output": "\xff", "gold": "1"}')
    with pytest.raises(InputError, match="line 1: not UTF-8 text"):
        score_file(path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
KEYS = st.sampled_from(["id", "output", "gold", "answer", "finish_reason", "doc_id", "target", "resps", "other"])


@given(row=st.dictionaries(KEYS, JSON, max_size=6))
def test_any_row_is_scored_or_refused_in_one_line(tmp_path_factory, row):
    path = tmp_path_factory.getbasetemp() / "any_gsm8k_row.jsonl"
    path.write_text(json.dumps(row))
    try:
        told = f"scored {len(score_file(path))}"
    except InputError as error:
        told = str(error)
    assert told == "scored 1" or told.startswith(f"{path}: line 1: ")
    assert "\n" not in told
