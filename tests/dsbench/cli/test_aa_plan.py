"""`dsbench aa` and `dsbench plan` as processes: on the fake engine, and once on the embedded one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsbench.builds import SOURCES

ROOT = Path(__file__).resolve().parents[3]
PROFILE = """name = "fast"
summary = "profiles without warm-ups"
blocks = 3
warmup_boots = 0
until = "profile"
guards = ["kv.available_bytes"]
[probes.kv]
"""
SPEED = """name = "speed"
summary = "two clocks"
blocks = 3
warmup_boots = 0
guards = ["decode.tps.*"]
[probes.kv]
[probes.decode]
streams = [1]
tokens = 8
repeats = 2
"""
FAKE = [sys.executable, str(ROOT / "tests/dsbench/fake_ab.py")]
REAL = [sys.executable, "-m", "dsbench"]


@pytest.fixture
def dsbench(tmp_path, monkeypatch):
    (tmp_path / "fast.toml").write_text(PROFILE)
    (tmp_path / "speed.toml").write_text(SPEED)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*args, fault="", code=0, command=FAKE):
        environment = {**os.environ, "FAKE_FAULT": fault}
        done = subprocess.run([*command, *args], capture_output=True, text=True, env=environment, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def results():
    return [folder for folder in Path("results").iterdir() if folder.name != "floors"]


def test_aa_stores_floors_that_ab_prints_and_plan_uses(dsbench):
    suite = ("--suite", "../speed.toml")
    ran = dsbench("aa", *suite)
    assert "a -> b: the same build" in ran.stderr
    (stored,) = Path("results/floors").iterdir()
    floors = json.loads(stored.read_text())
    by_metric = {floor["metric"]: floor for floor in floors["floors"]}
    assert by_metric["decode.tps.c1"]["boots"] == 6
    assert by_metric["decode.tps.c1"]["between"] > 0
    assert by_metric["decode.tps.c1"]["within"] > 0
    assert by_metric["kv.available_bytes"]["between"] == 0
    assert re.search(r"kv\.available_bytes rank 0 .* any\b", ran.stdout)
    assert f"floors stored in {stored}" in ran.stdout

    planned = dsbench("plan", "-t", "mhc_input_reuse", *suite, "--budget", "1h")
    assert f"median of 6 (measured boots of {floors['id']})" in planned.stdout
    assert re.search(r"^ +3 +6 .*none: too few blocks", planned.stdout, re.MULTILINE)
    assert len(results()) == 1, "nothing was started"
    figures = json.loads(dsbench("plan", "-t", "mhc_input_reuse", *suite, "--budget", "1h", "--json").stdout)
    assert figures["boot_seconds"] == pytest.approx(floors["boot_seconds"])
    blocks = figures["blocks_within_budget"]
    assert 2 * blocks * floors["boot_seconds"] <= 3600 < 2 * (blocks + 1) * floors["boot_seconds"]
    assert figures["options"][1]["visible"]["decode.tps.c1"] > 0

    compared = dsbench("ab", "-t", "mhc_input_reuse", *suite)
    assert "difference  floor" in re.sub(" +", "  ", compared.stdout)
    assert re.search(r"decode\.tps\.c1 .*±[\d.]+ %", compared.stdout)


def test_floors_can_be_taken_from_a_stored_experiment_but_not_from_an_ab(dsbench):
    dsbench("aa", "--suite", "../fast.toml", "--boots", "6", "--json")
    (folder,) = results()
    (stored,) = Path("results/floors").iterdir()
    text = stored.read_text()
    stored.unlink()
    again = dsbench("aa", "--from", folder.name)
    assert stored.read_text() == text
    assert "boot 1/" not in again.stderr
    dsbench("ab", "-t", "mhc_input_reuse", "--suite", "../fast.toml")
    (other,) = [found for found in results() if found != folder]
    assert "is no A/A experiment" in dsbench("aa", "--from", other.name, code=2).stderr
    assert other.is_dir()


def test_a_void_aa_stores_nothing(dsbench):
    assert "no floors stored" in dsbench("aa", "--suite", "../fast.toml", fault="exit", code=4).stderr
    assert not Path("results/floors").exists()


def test_noise_that_the_rules_call_a_regression_is_exit_1(dsbench):
    dsbench("aa", "--suite", "../fast.toml", fault="nondeterministic@b", code=1)
    (stored,) = Path("results/floors").iterdir()
    floors = {floor["metric"]: floor for floor in json.loads(stored.read_text())["floors"]}
    assert any(floor["between"] > 0 for floor in floors.values())


def test_plan_without_a_measured_boot_says_so_or_measures_one(dsbench):
    asked = ("plan", "-t", "mhc_input_reuse", "--suite", "../fast.toml", "--budget", "10m")
    assert "--measure times one boot" in dsbench(*asked).stdout
    assert "median of 1 (one boot just now)" in dsbench(*asked, "--measure").stdout
    assert not Path("results").exists()


def test_plan_shows_arms_and_constraints(dsbench):
    toggles = [part for name in ("mtp_hidden_skip", "mhc_final_fused") for part in ("-t", name)]
    said = dsbench("plan", *toggles, "--matrix", "full", "--suite", "../fast.toml").stdout
    assert "baseline -> mtp_hidden_skip+mhc_final_fused: mtp_hidden_skip + mhc_final_fused" in said
    assert "mhc_final_fused requires mtp_hidden_skip" in said


def test_what_differs_is_said_before_the_first_boot(dsbench):
    arms = ("--arm", f"a=python={sys.executable};env=PYTHONPATH={ROOT}", "--arm", "b=")
    ran = dsbench("ab", *arms, "--suite", "../fast.toml", "--blocks", "2")
    first = ran.stderr.splitlines()[0]
    assert first.startswith(f"a -> b: python {sys.executable} -> this one + env ")
    assert first.endswith(f"may differ: {', '.join(SOURCES)}, env.PYTHONPATH")
    (folder,) = results()
    plan = json.loads((folder / "plan.json").read_text())
    assert [arm["python"] for arm in plan["arms"]] == [sys.executable, None]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["aa", "--boots", "7"], "--boots 7 is odd: each block holds two boots, so give 8"),
        (["aa", "--boots", "4"], "--boots"),
        (["aa", "--python", "/nowhere"], "no interpreter at /nowhere"),
        (["plan"], "nothing to compare"),
        (["plan", "-t", "mhc_input_reuse", "--budget", "soon"], "write 2h"),
        (["ab", "-t", "mhc_input_reuse", "--blocks", "9", "--until-resolved", "12"], "give one"),
        (["ab", "-t", "mhc_input_reuse", "--until-resolved", "5"], "take 6"),
        (["ab", "-t", "mhc_input_reuse", "--a-python", "/x"], "write each arm as --arm NAME='python=VENV'"),
        (["ab", "--b-python", "/nowhere"], "--b-python /nowhere: no interpreter at /nowhere"),
        (["ab", "--arm", "a=python=/nowhere", "--arm", "b="], "--arm a: python /nowhere: no interpreter"),
        (["ab", "--arm", "a=", "--arm", "b=args=--eager", "--matrix", "full"], "name them with --toggle"),
        (["ab", "-t", "mhc_input_reuse", "--matrix", "fulll"], "--matrix"),
        (["ab", "-t", "mhc_input_reuse", "--matrix", "half"], "takes 3 to 6 toggles, got 1"),
    ],
)
def test_bad_input_is_one_line_with_exit_2_and_nothing_written(dsbench, args, said):
    ran = dsbench(*args, code=2)
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_an_experiment_stops_at_the_look_that_resolves_it(dsbench, make_plan):
    from dsbench.records import Look
    from dsbench.store import create
    from dsbench.suite import load_suite

    looks = [Look(blocks=n, alpha=0.02, equivalence_confidence=0.95) for n in (2, 3)]
    plan = make_plan(suite=load_suite("../fast.toml")).model_copy(update={"looks": looks})
    first = create(plan, Path("results"))
    ran = dsbench("ab", "--resume", str(first))
    assert "look 1 of 2: improved" in ran.stderr
    assert len(list((first / "boots").iterdir())) == 4
    assert "look 1 of 2, at 2 of 3 blocks" in ran.stdout
    assert dsbench("judge", str(first)).stdout.endswith("same as the stored verdict\n")

    second = create(plan.model_copy(update={"id": "open"}), Path("results"))
    ran = dsbench("ab", "--resume", str(second), fault="nondeterministic@baseline", code=3)
    assert "look 1 of 2: inconclusive" in ran.stderr
    assert len(list((second / "boots").iterdir())) == 6


def test_aa_of_the_embedded_engine(dsbench):
    ran = dsbench("aa", "--suite", "../fast.toml", command=REAL)
    (stored,) = Path("results/floors").iterdir()
    floors = json.loads(stored.read_text())
    read_back = json.loads(next(results()[0].glob("boots/01-*/conditions.rank0.json")).read_text())
    assert (floors["fingerprint"]["torch"], floors["fingerprint"]["python"]) == (
        read_back["torch"],
        read_back["python"],
    )
    assert {floor["between"] for floor in floors["floors"]} == {0}, "bytes of a quiet engine repeat"
    assert "b equivalent: kv.available_bytes unchanged." in ran.stdout
    planned = dsbench("plan", "-t", "mhc_input_reuse", "--suite", "../fast.toml", "--budget", "10m", command=REAL)
    assert "median of 6" in planned.stdout


def test_aa_of_running_servers_is_refused_by_the_name_of_what_was_given(dsbench):
    for given in (["--endpoint", "a=http://127.0.0.1:9"], ["--endpoint", "a=http://x", "--endpoint", "b=http://x"]):
        refused = dsbench("aa", "-s", "../fast.toml", "--engine", "endpoint", *given, code=2)
        assert refused.stderr.splitlines()[-1].startswith("dsbench: --engine endpoint: a floor is of a build")
        assert "--arm" not in refused.stderr
        assert not Path("results").exists()
