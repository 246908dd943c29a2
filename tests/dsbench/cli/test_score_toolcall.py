"""`dsbench score toolcall` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dsbench.cli import main
from dsbench.score.tool_transcript import Called, Transcript, Turn


def run(*args: object) -> Result:
    return CliRunner().invoke(main, ["score", "toolcall", *map(str, args)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    weather = Called(name="get_weather", arguments='{"city": "Oslo"}', result='{"temp": 4}')
    rows = [
        Transcript(scenario="A1", mode="off", round=1, turns=[Turn(calls=[weather]), Turn(content="4 degrees")]),
        Transcript(scenario="A1", mode="max", round=2, turns=[Turn(reasoning='!get_weather {"city": "Oslo"}')]),
        Transcript(scenario="D2", mode="off", round=1, turns=[Turn(calls=[weather]), Turn(content="42")]),
    ]
    file = tmp_path / "toolcall.jsonl"
    file.write_text("".join(f"{row.model_dump_json()}\n" for row in rows))
    return file


def test_a_table_with_reasons_and_the_score(file: Path) -> None:
    result = run(file)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert any(line.split()[:5] == ["A1", "max", "r2", "selection", "0"] for line in lines)
    assert "needless call of get_weather" in result.output
    assert lines[-1] == (
        "score 50.0 %: 3 of 6 points, full points in 1 of 3 conversations; calls swallowed by the reasoning in 1"
    )


def test_json_has_every_row(file: Path) -> None:
    found = json.loads(run(file, "--json").output)
    assert [row["points"] for row in found["rows"]] == [2, 0, 1]
    assert found["category_percent"] == {"selection": 50, "restraint": 50}


def test_what_is_no_transcript_is_refused_by_its_line(file: Path) -> None:
    file.write_text(file.read_text() + '{"scenario": "A1"}\n')
    result = run(file)
    assert result.exit_code == 2
    assert f"{file}:4: mode: Field required" in result.output
