"""`dsbench ladder` and `dsbench ab --projected`: what they print, and what they refuse."""

import json

import pytest
from click.testing import CliRunner

from dsbench import projection, store
from dsbench.cli import main
from dsbench.cli.ladder import after_matrix
from dsbench.ladder import ROWS
from dsbench.plan import plan_experiment
from dsbench.suite import load_suite
from impl.dims import PICO
from tests.dsbench.test_ladder import profile, records
from tests.dsbench.test_ladder import projection as projected


@pytest.fixture
def quick(monkeypatch):
    """The arguments the projection was asked with; it answers at once."""
    asked = []

    def project(arguments, progress=None):
        asked.append(list(arguments))
        return projected()

    monkeypatch.setattr(projection, "project", project)
    return asked


def run(*args):
    return CliRunner().invoke(main, args, prog_name="dsbench")


def test_published_rows_print_without_a_projection(monkeypatch):
    result = run("ladder", "--published")
    assert result.exit_code == 0
    assert "after in-place Q cleanup" in result.stdout
    assert "1,147,140" in result.stdout
    assert "Projected" not in result.stdout


def test_without_a_choice_projected_and_published_with_their_distance(quick):
    result = run("ladder")
    assert result.exit_code == 0
    assert "Projected: flash, 43 + 3 layers, sm120, TP=2, T=8,192" in result.stdout
    assert "modelled reservation" in result.stdout
    assert "Projected less published" in result.stdout
    assert quick == [
        ["--platform=sm120", "--tp=2", "--dims=flash", "--max-num-batched-tokens=8192", "--max-model-len=524288"]
    ]


def test_json_has_the_rows_and_their_distances(quick):
    content = json.loads(run("ladder", "--projected", "--kv-budget", "10.54GiB", "--json").stdout)["projected"]
    assert content["kind"] == "projected"
    assert content["kv_budget"] == int(10.54 * 2**30)
    assert [row["step_bytes"] // 2**20 for row in content["rows"]] == [0, 256, 256, 0, 256, 256, 64]
    assert [row["blocks"] for row in content["published_distance"]] == [-5, -5, -5, -5, -5, -6, -5]


def test_ab_projected_is_of_the_full_size_unless_told(quick):
    assert run("ab", "--projected", "--toggle", "mhc_input_reuse", "-T", "4096", "--json").exit_code == 0
    assert run("ab", "--projected", "sm90:1", "--toggle", "mhc_input_reuse", "--dims", "pico", "--json").exit_code == 0
    asked = [(a[0], a[1], a[2], a[3], a[5]) for a in quick]
    tokens, toggle = "--max-num-batched-tokens=", "--toggle=mhc_input_reuse"
    assert asked == [
        ("--platform=sm120", "--tp=2", "--dims=flash", f"{tokens}4096", toggle),
        ("--platform=sm90", "--tp=1", "--dims=pico", f"{tokens}256", toggle),
    ]


def test_ab_projected_prints_bytes_and_no_verdict(quick):
    result = run("ab", "--projected", "--toggle", "q_in_place")
    assert result.exit_code == 0
    assert "Projected bytes, no measurement: flash, sm120, TP=2, T=8,192" in result.stdout
    assert "300 MiB" in result.stdout
    assert "modelled reservation" in result.stdout
    assert "improved" not in result.stdout


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["ladder", "--kv-budget", "much"], "'much' is no size in bytes"),
        (["ladder", "--from", "nowhere"], "no result at 'nowhere'"),
        (["ladder", "--tp", "3"], "'3' is not one of '1', '2'"),
        (["ab", "--projected"], "--projected needs a --toggle"),
        (["ab", "--projected", "sm70:1", "-t", "mhc_input_reuse"], "--projected 'sm70:1': write PLATFORM:TP"),
        (["ab", "--projected", "--arm", "a=toggles=x"], "--projected takes --toggle alone: leave out --arm"),
        (["ab", "--projected", "-t", "mhc_input_reus"], "did you mean mhc_input_reuse"),
    ],
)
def test_bad_input_is_one_line(args, line):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    (told,) = result.stderr.strip().splitlines()
    assert line in told


def test_a_ladder_of_some_toggles_says_what_the_table_needs(tmp_path, capsys):
    after_matrix(("mhc_input_reuse",), tmp_path, tmp_path)
    assert "the source document's table needs mtp_hidden_skip, q_in_place" in capsys.readouterr().out


def test_a_ladder_of_all_rows_shows_the_table_three_ways(quick, tmp_path, capsys):
    made = plan_experiment(ROWS, load_suite("kv"), PICO, matrix="ladder")
    folder = store.create(made, tmp_path)
    with store.RecordWriter(folder) as writer:
        for record in records(made, profile):
            writer.write(record)
    after_matrix(ROWS, folder, tmp_path)
    shown = capsys.readouterr().out
    assert [shown.count(f"{title}: ") for title in ("Measured", "Projected", "Published")] == [1, 1, 1]
    assert len(quick) == 1
