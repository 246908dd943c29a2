"""`dsbench report`: what it writes, where, and what it refuses."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from dsbench.cli import main

ROOT = Path(__file__).resolve().parents[3]
STORED = ROOT / "results" / "h200" / "vllm-kv"


def run(*args):
    with pytest.raises(SystemExit) as stop:
        main(["report", *map(str, args)])
    return stop.value.code


def test_writes_both(tmp_path, capsys):
    assert run(STORED, "-o", tmp_path / "new") == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "new" / name) for name in ("report.md", "report.html")]
    assert (tmp_path / "new" / "report.html").read_text().startswith("<!doctype html>")


def test_one_format_beside_the_result(tmp_path):
    shutil.copytree(STORED, tmp_path / "result")
    assert run(tmp_path / "result", "--format", "md") == 0
    assert (tmp_path / "result" / "report.md").is_file()
    assert not (tmp_path / "result" / "report.html").exists()


def test_without_a_stored_verdict_the_records_are_judged(tmp_path, capsys):
    shutil.copytree(STORED, tmp_path / "result")
    (tmp_path / "result" / "verdicts.json").unlink()
    assert run(tmp_path / "result", "--format", "md") == 0
    assert "judged from its records" in capsys.readouterr().err
    assert not (tmp_path / "result" / "verdicts.json").exists()
    assert (tmp_path / "result" / "report.md").read_text().startswith("# improved: ")


def test_a_stored_verdict_that_its_records_deny_is_told(tmp_path, capsys):
    shutil.copytree(STORED, tmp_path / "result")
    (tmp_path / "result" / "records.jsonl").write_text("")
    assert run(tmp_path / "result") == 0
    told = "stored and shown is improved; judged again, its records say void"
    assert told in capsys.readouterr().err
    for name in ("report.md", "report.html"):
        assert told in (tmp_path / "result" / name).read_text()


def test_a_folder_in_the_place_of_a_page_leaves_nothing(tmp_path, capsys):
    (tmp_path / "report.html").mkdir()
    assert run(STORED, "-o", tmp_path) == 2
    assert "report.html is a folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_what_stands_in_the_place_of_a_page_is_replaced_and_nothing_is_written_through_it(tmp_path):
    """A pipe would be waited for, and a link may lead to a device."""
    os.mkfifo(tmp_path / "report.md")
    held = os.open(tmp_path / "report.md", os.O_RDONLY | os.O_NONBLOCK)  # so that no writer waits for ever
    (tmp_path / "report.html").symlink_to("/dev/full")
    assert run(STORED, "-o", tmp_path) == 0
    for name in ("report.md", "report.html"):
        assert stat.S_ISREG((tmp_path / name).lstat().st_mode)
    os.close(held)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ([STORED, "--format", "pdf"], "--format 'pdf' is unknown"),
        ([STORED, "--format", ","], "--format is empty"),
        (["nothing-there"], "no result at 'nothing-there'"),
    ],
)
def test_refused_in_one_line(args, told, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*args, "-o", tmp_path / "out") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert told in lines[0]
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run(STORED, "-o", tmp_path / "file" / "out", "--format", "md") == 2
    assert "cannot write the report to" in capsys.readouterr().err


def test_without_jinja2_the_mend_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    assert run(STORED, "-o", tmp_path / "out") == 2
    assert "dsbench-dspark[report]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run(STORED, "-o", tmp_path / "out", "--format", "md") == 0
