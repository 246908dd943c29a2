import json

import pytest
from click.testing import CliRunner

from dsbench.cli.simulate import simulate
from dsbench.errors import InputError


def test_figures_as_json_and_files(tmp_path):
    options = ["--kind", "exact", "--experiments", "20", "--seed", "1", "--seed", "2", "-j", "1"]
    done = CliRunner().invoke(simulate, [*options, "--json", "-o", str(tmp_path / "new")], standalone_mode=False)
    assert done.exception is None
    assert done.return_value == 0
    told = json.loads(done.stdout)
    assert told["seeds"] == [1, 2]
    assert told["missed"] == []
    first, second = told["rows"]
    assert (first["experiments"], first["false_claims"]["value"], first["power"]["value"]) == (20, 0.0, 1.0)
    assert first["targets"] == {"false claims": "met", "power": "met"}
    assert second["targets"] == {}
    assert json.loads((tmp_path / "new" / "table.json").read_text()) == told
    page = (tmp_path / "new" / "table.md").read_text()
    assert "--seed 1 --seed 2" in page
    assert "| exact | kv.available_bytes | 2 + 2 boots | 20 |" in page
    assert "sd 0.46 GiB of four boots" in page


def test_a_table_is_printed():
    done = CliRunner().invoke(simulate, ["--suite", "kv", "--experiments", "4", "-j", "1"], standalone_mode=False)
    assert done.return_value == 0
    assert "by suite" in done.stdout
    assert "by kind" not in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--kind", "speed"], "--kind 'speed' is not simulated; known: exact, sample-blocked"),
        (["--suite", "nightly"], "--suite 'nightly' is not simulated; known: kv, quick"),
        (["--quick", "--experiments", "5"], "leave out --experiments 5"),
    ],
)
def test_what_is_not_known_is_refused(options, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        simulate.main(options, standalone_mode=False)
