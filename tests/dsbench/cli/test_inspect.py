"""`dsbench inspect` as it is typed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsbench.cli import main

DATA = Path(__file__).resolve().parents[2] / "data"
FILES = sorted([*(DATA / "logs").glob("*.log"), *(DATA / "metrics").glob("*.prom")])


def run(*args):
    return CliRunner().invoke(main, ["inspect", *map(str, args)])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_table_of_every_known_file(path):
    result = run(path)
    assert result.exit_code == 0, result.output
    assert "unknown" not in result.output.replace("unknown shape", "?").replace("unverified", "")
    assert str(path) in result.output


def test_json_is_what_was_read():
    result = run(DATA / "logs/boot_rank_spread.log", "--json")
    assert json.loads(result.output)["boots"][0]["available_kv_gib_by_rank"] == {"TP0": 10.8, "TP1": 10.2}


def test_an_unknown_file_is_called_unknown(tmp_path):
    (tmp_path / "x.txt").write_text("hello\n")
    result = run(tmp_path / "x.txt")
    assert (result.exit_code, "unknown shape" in result.output) == (0, True)
    assert json.loads(run(tmp_path / "x.txt", "--json").output) == {"shape": "unknown"}


def test_bytes_that_are_no_text_are_read_all_the_same(tmp_path):
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00INFO 01-01 00:00:00 [a.py:1] GPU KV cache size: 1,000 tokens\xff")
    assert json.loads(run(tmp_path / "x", "--json").output)["boots"][0]["kv_tokens"] == 1000


def test_a_file_that_is_not_there(tmp_path):
    result = CliRunner().invoke(main, ["inspect", str(tmp_path / "none.log")])
    assert result.exit_code == 2
    assert "none.log" in result.output
