"""`ab --gate`, `gate`, `compare`, `history` and `bundle` as processes, on the fake engine."""

import json
import re
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsbench.cli import main
from tests.dsbench.cli.test_ab import KV, dsbench, one_result

__all__ = ["dsbench"]

AB = ("ab", "-t", "mhc_input_reuse", *KV)


def policy(text, name="gate.toml"):
    Path(name).write_text(text)
    return name


def test_what_is_open_runs_once_more_and_then_fails(dsbench):
    rules = policy('inconclusive = "rerun"\n')
    ran = dsbench(*AB, "--gate", rules, "--json", fault="nondeterministic@baseline", code=1)
    assert ran.stderr.count("This is the second run.") == 1
    first, second = sorted(Path("results").iterdir(), key=lambda folder: (folder / "plan.json").stat().st_mtime_ns)
    content = json.loads(ran.stdout)
    assert (content["result"], content["verdict"]["id"]) == (second.name, second.name)
    assert content["gate"]["word"] == "failed"
    assert "in the rerun too" in content["gate"]["checks"][0]["why"]
    # The policy is in the plan, so that a gate needs no other.
    assert json.loads((first / "plan.json").read_text())["policy"]["inconclusive"] == "rerun"
    alone = dsbench("gate", first.name, code=3)
    assert "Gate open, run once more: mhc_input_reuse kv.peak_activation_bytes" in alone.stdout
    plans = [json.loads((folder / "plan.json").read_text()) for folder in (first, second)]
    assert [plan["rerun_of"] for plan in plans] == [None, first.name]
    for again in ("gate", second.name), ("gate", second.name, "--rerun-of", first.name):
        assert "in the rerun too" in dsbench(*again, code=1).stdout
    assert "no second run" in dsbench("gate", first.name, "--rerun-of", first.name, code=2).stderr


def test_a_second_run_that_is_resumed_stays_the_second(dsbench):
    """Cut off before its first boot: the first run ends at 3, run it once more, and the second must not."""
    rules = policy('inconclusive = "rerun"\n')
    dsbench(*AB, "--gate", rules, fault="nondeterministic@baseline", code=1)
    first, second = sorted(Path("results").iterdir(), key=lambda folder: (folder / "plan.json").stat().st_mtime_ns)
    for folder, code, said in (first, 3, "run once more"), (second, 1, "in the rerun too"):
        (folder / "records.jsonl").write_text("")
        again = ("ab", "--gate", "--resume", folder.name)
        ran = dsbench(*again, fault="nondeterministic@baseline", code=code)
        assert said in ran.stdout
        assert len(list(Path("results").iterdir())) == 2


def test_a_gate_changes_nothing_and_agrees_with_the_one_that_ran(dsbench):
    rules = policy('[[rule]]\nmetric = "kv.tokens"\nmust = "improve"\nby = "20 tokens"\n')
    ran = dsbench(*AB, "--gate", rules)
    gate = ran.stdout[ran.stdout.index("Gate\n") :]
    assert re.search(r"kv\.tokens +improve by 20 tokens .* pass +improved by 20 tokens or more", gate)
    before = {path: path.read_bytes() for path in one_result().rglob("*") if path.is_file()}
    assert dsbench("gate", one_result().name).stdout == gate
    assert dsbench("gate", one_result().name, "--policy", rules).stdout == gate
    stricter = policy('[[rule]]\nmetric = "kv.tokens"\nmust = "improve"\nby = "90 tokens"\n', "strict.toml")
    assert "by less than 90 tokens" in dsbench("gate", one_result().name, "--policy", stricter, code=1).stdout
    assert {path: path.read_bytes() for path in one_result().rglob("*") if path.is_file()} == before


def test_a_bare_gate_has_no_rules_and_resuming_keeps_its_policy(dsbench):
    ran = dsbench(*AB, "--gate")
    assert ran.stdout.endswith("Gate passed: 1 check.\n")
    again = dsbench("ab", "--resume", one_result().name, "--gate", "--junit", "gate.xml")
    assert again.stdout.endswith("Gate passed: 1 check.\n")
    assert 'tests="1" failures="0"' in Path("gate.xml").read_text()


def test_a_gate_that_cannot_be_told_keeps_what_has_run(dsbench):
    ran = dsbench(*AB, "--gate", "--junit", "/proc/no/gate.xml", code=2)
    assert ran.stdout.endswith("Gate passed: 1 check.\n")
    assert "cannot write /proc/no/gate.xml" in ran.stderr
    assert (one_result() / "verdicts.json").is_file()


@pytest.mark.parametrize(("junit", "told"), [(".", "is a directory"), ("a-file/gate.xml", "a-file is no folder")])
def test_where_no_file_can_be_nothing_runs(dsbench, tmp_path, junit, told):
    (tmp_path / "a-file").touch()
    ran = dsbench(*AB, "--gate", "--junit", str(tmp_path / junit), code=2)
    assert told in ran.stderr
    assert not list(Path().glob("results/*"))


def test_results_of_another_build_are_no_baseline(dsbench):
    dsbench(*AB, "-o", "main")
    ran = dsbench(*AB, "--seed", "3", "--gate", "--baseline", "main", code=4)
    assert "Gate void, reason no-baseline" in ran.stdout
    assert "another seed (0, here 3)" in ran.stdout
    same = dsbench(*AB, "-o", "more", "--gate", "--baseline", "main", fault="no-saving@mhc", code=1)
    assert re.search(
        r"mhc_input_reuse vs stored +kv\.peak_activation_bytes .* \+32,768 B .* FAIL +regressed", same.stdout
    )


def test_compare_history_and_bundle(dsbench):
    def read(*args):
        done = CliRunner().invoke(main, args)
        assert done.exit_code == 0, done.output
        return done

    dsbench(*AB)
    dsbench(*AB, fault="no-saving")
    first, second = sorted(Path("results").iterdir(), key=lambda folder: (folder / "plan.json").stat().st_mtime_ns)
    compared = read("compare", first.name, second.name).stdout
    assert re.search(r"kv\.peak_activation_bytes +9,967,232 -> 10,000,000 +\+32,768 B .* regressed", compared)
    assert "no condition of the baselines differs" in compared
    content = json.loads(read("compare", first.name, second.name, "--json").stdout)
    assert [pair["apart"] for pair in content["pairs"]] == [[], []]

    shown = read("history", "kv.peak_activation_bytes", "--arm", "mhc_input_reuse").stdout
    assert f"change point at {second.name}: 9,967,232 -> 10,000,000 B (+0.33 %)" in shown
    content = json.loads(read("history", "kv.blocks", "--json").stdout)
    assert [point["value"] for point in content["points"]] == [779, 779]

    told = read("bundle", first.name, "-o", "out/a.tar.gz").stdout
    assert "look through it before you publish it" in told
    with tarfile.open("out/a.tar.gz") as tar:
        tar.extractall("unpacked", filter="data")
        assert {entry.uid for entry in tar} | {entry.mtime for entry in tar} == {0}
    assert read("show", f"unpacked/{first.name}").stdout == read("show", first.name).stdout
    assert "same as the stored verdict" in read("judge", f"unpacked/{first.name}").stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((*AB, "--junit", "x.xml"), "add --gate"),
        ((*AB, "--gate", "no.toml"), "no.toml: No such file"),
        ((*AB, "--gate", "../points.toml"), "does not fit kv.blocks"),
        ((*AB, "--gate", "../unit.toml"), "whose unit is B"),
        ((*AB, "--gate", "--baseline", "/proc/self/fd"), "no stored result is there"),
        ((*AB, "--projected", "--gate"), "leave out --projected"),
        (("gate", "nothing"), "no result at 'nothing'"),
        (("compare", "a", "b"), "no result at 'a'"),
        (("compare", "a", "b", "--published"), "name one result beside --published"),
        (("history", "kv.blocs"), "did you mean kv.blocks"),
        (("history", "kv.blocks"), "no result under results has kv.blocks"),
        (("bundle", "nothing"), "no result at 'nothing'"),
    ],
)
def test_bad_input_is_one_line_with_exit_2_and_nothing_written(dsbench, args, said):
    Path("../points.toml").write_text('[[rule]]\nmetric = "kv.blocks"\nmust = "improve"\nby = "1 point"\n')
    Path("../unit.toml").write_text('[[rule]]\nmetric = "kv.resident_bytes"\nmargin = "1 ms"\n')
    ran = dsbench(*args, code=2)
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""
    assert list(Path().iterdir()) == []
