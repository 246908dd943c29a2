"""`dsbench score gsm8k`: the shared files as JSON, a table for people, and refusals."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsbench.cli import main
from tests.dsbench.expected import differences

DATA = Path(__file__).resolve().parents[2] / "data/gsm8k"


def run(*args: object):
    return CliRunner().invoke(main, ["score", "gsm8k", *map(str, args)], prog_name="dsbench")


@pytest.mark.parametrize("name", ["replies", "more_replies"])
def test_json_is_as_expected(name):
    result = run(DATA / f"{name}.jsonl", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert differences(found, json.loads((DATA / f"{name}.expected.json").read_text())) == []
    rows = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    assert differences(found["rows"], [{key: row[key] for key in ("id", "extracted", "correct")} for row in rows]) == []


def test_a_table_for_people():
    lines = run(DATA / "more_replies.jsonl").stdout.splitlines()
    assert lines[0].endswith("more_replies.jsonl: 3 not right")
    assert [line.split() for line in lines if line.startswith("h0")] == [
        ["h01", "24", "21", "marker", "no", "21", "21"],
        ["h02", "16", "-", "open", "thinking", "yes", "[invalid]", "16"],
        ["h09", "7", "-", "none", "no", "[invalid]", "[invalid]"],
    ]
    assert lines[-2:] == ["truncated: 11.76%", "lm-eval's flexible filter calls right what is not: h02"]


def test_nothing_wrong_and_nothing_known_of_the_end(tmp_path):
    path = tmp_path / "[bold].jsonl"
    path.write_text('{"output": "#### 7", "gold": 7}\n')
    result = run(path)
    assert result.exit_code == 0
    assert "[bold].jsonl" in result.stdout
    assert "not right" not in result.stdout
    assert result.stdout.splitlines()[-1] == "truncated: unknown, no row has a finish_reason"


def test_bad_rows_end_with_2(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"output": "#### 7", "gold": 7}\n{"output": "#### 7"}\n')
    result = run(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (f"dsbench: {path}: line 2: no gold answer (gold, question_gold, answer) among output\n")
