"""The scorer of replies to long prompts, against the public case and by its own rules."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dsbench.cli import main
from dsbench.errors import InputError
from dsbench.score.coherence import has_needle, load_rows, recalled, recalled_in_order, score_rows
from tests.dsbench.expected import differences

CASE = Path(__file__).resolve().parents[2] / "data/results/coherence_long_context.jsonl"
EXPECTED = json.loads(CASE.with_suffix(".expected.json").read_text())
NAMES = st.from_regex(r"[a-z]{3,8}-[a-z]{3,8}-[0-9]{2}", fullmatch=True)
LEAKED = "The town settles <\uff5cbegin\u2581of\u2581sentence\uff5c> into winter with amber-otter-17."


def dsbench(*args):
    return CliRunner().invoke(main, [*map(str, args)], prog_name="dsbench")


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def one(output, *sentinels, **more):
    (row,) = score_rows([{"id": "x", "output": output, **more}], sentinels)["rows"]
    return row


def test_the_public_case():
    assert differences(score_rows(load_rows(CASE)), EXPECTED) == []


def test_the_command_prints_the_case_as_json_and_as_a_table():
    done = dsbench("score", "coherence", CASE, "--json")
    assert done.exit_code == 0
    assert differences(json.loads(done.stdout), EXPECTED) == []
    table = dsbench("score", "coherence", CASE).stdout
    assert "9 of 23 letters are non-Latin" in table
    assert "passed 2 of 6; recall misses 2, incoherent 2, errors 1, truncated 0" in table


def test_sentinels_of_the_command_and_of_a_row(tmp_path):
    rows = ({"id": 1, "output": "one-two-33"}, {"id": 2, "output": "four-five-66", "sentinels": ["four-five-66"]})
    done = dsbench("score", "coherence", write(tmp_path / "r.jsonl", *rows), "--sentinel", "one-two-33", "--json")
    assert [row["class"] for row in json.loads(done.stdout)["rows"]] == ["pass", "pass"]


def test_a_byte_order_mark_is_no_part_of_a_row_and_an_id_counts_once(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"id": 1, "output": "ok"}\n{"id": 2, "output": "ok"}', encoding="utf-8-sig")
    assert [row["id"] for row in load_rows(tmp_path / "r.jsonl")] == [1, 2]
    write(tmp_path / "r.jsonl", {"id": 1, "output": "ok"}, {"id": 2, "output": "ok"}, {"id": "1", "output": "no"})
    done = dsbench("score", "coherence", tmp_path / "r.jsonl")
    assert done.exit_code == 2
    with pytest.raises(InputError, match=r"r\.jsonl:3: id '1' stands in \S*r\.jsonl:1 already"):
        load_rows(tmp_path / "r.jsonl")


def test_a_leak_inside_fluent_text_is_incoherent_and_no_miss():
    row = one(LEAKED, "amber-otter-17")
    assert (row["class"], row["reason"], row["recall_ok"]) == ("incoherent", "leaked control token", True)


@pytest.mark.parametrize(
    ("reason", "told"), [("length", {"truncated": True}), ("stop", {"truncated": False}), (None, {})]
)
def test_truncation_stands_beside_the_scores(reason, told):
    row = one("no code here", "a-b-1", finish_reason=reason)
    assert row == {"id": "x", "pass": False, "class": "recall miss", "recall_ok": False, "coherence_ok": True,
                   "missing": ["a-b-1"], **told}  # fmt: skip


def test_an_error_is_no_miss():
    row = one(None, "a-b-1", error="timed out")
    assert (row["class"], row["recall_ok"], row["coherence_ok"], row["error"]) == ("error", None, None, "timed out")


@given(st.lists(NAMES, min_size=1, max_size=6, unique=True), st.data())
def test_exactly_the_needles_that_were_named_are_found(names, data):
    named = data.draw(st.sets(st.sampled_from(names)))
    text = "Found: " + ", ".join(name.upper() for name in names if name in named) + "."
    assert recalled(text, names) == [name in named for name in names]


@given(NAMES, st.from_regex(r"[A-Za-z0-9]", fullmatch=True))
def test_a_needle_that_goes_on_is_another(name, more):
    assert has_needle(f"({name})", name)
    assert not has_needle(f"{name}{more}", name)
    assert not has_needle(f"{more}{name}", name)


@given(st.lists(st.integers(10, 99).map(str), min_size=1, max_size=6), st.data())
def test_values_count_in_their_own_place(values, data):
    given_ = data.draw(st.lists(st.one_of(st.sampled_from(values), st.text("0123456789 ", max_size=3)), max_size=8))
    scores = recalled_in_order(",".join(given_) + "\n", values)
    assert len(scores) == len(values)
    assert all(recalled_in_order(",".join(values), values))
    for place, right in enumerate(scores):
        assert right == (place < len(given_) and given_[place].strip() == values[place])


@given(st.text())
def test_any_text_has_one_class(text):
    row = one(text, "amber-otter-17")
    assert row["pass"] == (row["recall_ok"] and row["coherence_ok"])
    assert ("reason" in row) != row["coherence_ok"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nonsense", "r.jsonl:2: not JSON"),
        ("[1]", "r.jsonl:2: should be an object with id and output"),
        ({"id": 1}, "r.jsonl:2: should be an object with id and output"),
        ({"id": 1, "output": 5}, "r.jsonl:2: output should be text or null, got 5"),
        ({"id": 1, "output": "x", "sentinels": []}, r"r.jsonl:2: sentinels should be a list of texts, got \[\]"),
    ],
)
def test_lines_that_are_no_rows(tmp_path, line, said):
    file = write(tmp_path / "r.jsonl", {"id": 0, "output": "fine"}, line)
    with pytest.raises(InputError, match=said):
        load_rows(file)
    assert dsbench("score", "coherence", file).exit_code == 2


def test_an_empty_file_was_not_scored(tmp_path):
    with pytest.raises(InputError, match="nothing was scored"):
        load_rows(write(tmp_path / "r.jsonl", "", " "))
