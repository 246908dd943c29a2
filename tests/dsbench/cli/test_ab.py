"""`dsbench ab`, `show` and `judge` as processes, on the fake engine."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SUITE = """name = "fast"
summary = "profiles without warm-ups"
blocks = 2
warmup_boots = 0
until = "profile"
[probes.kv]
"""
KV = "--dims", "pico", "--suite", "../fast.toml"


@pytest.fixture
def dsbench(tmp_path, monkeypatch):
    (tmp_path / "fast.toml").write_text(SUITE)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*args, fault="", code=0):
        environment = {**os.environ, "FAKE_FAULT": fault}
        command = [sys.executable, str(ROOT / "tests/dsbench/fake_ab.py"), *args]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    return run


def one_result(folder=Path("results")):
    (found,) = folder.iterdir()
    return found


def test_ab_show_and_judge_agree(dsbench):
    ran = dsbench("ab", "--toggle", "mhc_input_reuse", *KV)
    folder = one_result()
    assert {path.name for path in folder.iterdir()} == {"plan.json", "records.jsonl", "verdicts.json", "boots"}
    names = {path.name for path in (folder / "boots").iterdir()}
    assert names == {"01-mhc_input_reuse", "02-baseline", "03-baseline", "04-mhc_input_reuse"}
    assert "boot 2/4 block 1/2" in ran.stderr
    table, _, stored = ran.stdout.rpartition("stored in ")
    assert stored.strip() == f"results/{folder.name}"
    assert re.search(r"kv\.peak_activation_bytes .* -32,768 B  \(exact, n=2\+2\)  improved +primary", table)
    assert dsbench("show", folder.name).stdout == table
    assert dsbench("show", str(folder)).stdout == table
    judged = dsbench("judge", folder.name[-6:])
    assert judged.stdout == table + "same as the stored verdict\n"
    stored = folder / "verdicts.json"
    kept = stored.read_text()
    stored.write_text(json.dumps(json.loads(kept) | {"sentence": "as an older dsbench put it"}))
    assert "only the sentence is worded anew" in dsbench("judge", str(folder)).stderr
    stored.write_text(kept)
    as_json = json.loads(dsbench("show", folder.name, "--json").stdout)
    assert as_json == json.loads((folder / "verdicts.json").read_text())
    assert as_json == json.loads(dsbench("judge", folder.name, "--json").stdout)
    assert (as_json["word"], as_json["exit_code"]) == ("improved", 0)


@pytest.mark.parametrize(
    ("fault", "code", "word"),
    [
        ("no-saving", 0, "equivalent"),
        ("no-marker", 4, "void"),
        ("exit", 4, "void"),
        ("nondeterministic", 3, "inconclusive"),
    ],
)
def test_exit_codes(dsbench, fault, code, word):
    ran = dsbench("ab", "-t", "mhc_input_reuse", *KV, "--json", fault=fault, code=code)
    assert json.loads(ran.stdout)["word"] == word


def test_a_regression_is_exit_1_and_an_open_one_3(dsbench):
    two = (*KV, "--blocks", "2")
    dsbench("ab", "-t", "mhc_input_reuse", *two, "-o", "a", fault="nondeterministic@mhc_input_reuse", code=1)
    dsbench("ab", "-t", "mhc_input_reuse", *two, "-o", "b", fault="nondeterministic@baseline", code=3)
    dsbench("show", str(one_result(Path("a"))), code=1)
    dsbench("judge", str(one_result(Path("b"))), code=3)


def test_judge_says_when_the_stored_verdict_differs(dsbench):
    dsbench("ab", "-t", "mhc_input_reuse", *KV)
    path = one_result() / "verdicts.json"
    path.write_text(path.read_text().replace('"word": "improved"', '"word": "equivalent"'))
    before = path.read_text()
    assert "stored equivalent, now improved" in dsbench("judge", one_result().name).stderr
    assert path.read_text() == before


def test_flags_reach_the_engine_and_the_expectation(dsbench):
    flags = ("-T", "512", "--max-model-len", "4096", "--dims", "pico", "--seed", "7")
    dsbench("ab", "-t", "mhc_input_reuse", *KV, *flags)
    plan = json.loads((one_result() / "plan.json").read_text())
    assert plan["arms"][1]["expected"] == {"kv.peak_activation_bytes": -512 * 64 * 2}
    assert plan["engine_args"] == ["--dims", "pico", "--seed", "7", "--load-format", "auto",
                                   "--max-num-batched-tokens", "512", "--max-model-len", "4096"]  # fmt: skip
    (boot,) = (one_result() / "boots").glob("01-*")
    read_back = json.loads((boot / "conditions.rank0.json").read_text())
    assert (read_back["dims"]["max_num_batched_tokens"], read_back["seed"]) == (512, 7)


def test_arms_and_engine_options_reach_their_boots(dsbench):
    arms = ("--arm", "plain=speculative=dspark", "--arm", "fast=args=--eager;env=X=1", "--speculative", "mtp")
    synthetic = ("--synthetic-acceptance-rates", "1,0.5,0.5,0,0", "--draft-load-format", "dummy")
    ran = dsbench("ab", *arms, *synthetic, *KV)
    folder = one_result()
    plan = json.loads((folder / "plan.json").read_text())
    assert [(a["name"], a["speculative"], a["args"], a["env"]) for a in plan["arms"]] == [
        ("plain", "dspark", [], {}),
        ("fast", "mtp", ["--eager"], {"X": "1"}),
    ]
    assert plan["engine_args"][-6:] == ["--draft-load-format", "dummy", "--rejection-sample-method", "synthetic",
                                        "--synthetic-acceptance-rates", "1,0.5,0.5,0,0"]  # fmt: skip
    read = {f.parent.name[3:]: json.loads(f.read_text()) for f in folder.glob("boots/*/conditions.rank0.json")}
    assert (read["plain"]["speculative"], read["fast"]["speculative"]) == ("dspark", "mtp")
    assert (read["plain"]["graph_mode"], read["fast"]["graph_mode"]) == ("replay", "eager")
    assert "plain -> fast: speculative dspark -> mtp + args '' -> '--eager' + env {} -> {'X': '1'}" in ran.stdout
    assert "fast equivalent: kv.available_bytes unchanged" in ran.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["ab"], "nothing to compare"),
        (["ab", "-t", "mhc_inputreuse"], "did you mean mhc_input_reuse"),
        (["ab", "-t", "residual_reuse_small_path"], "add --controls"),
        (["ab", "--arm", "a="], "one arm compares with nothing"),
        (["ab", "--arm", "a=speculativ=mtp", "--arm", "b="], "did you mean speculative?"),
        (["ab", "--arm", "a=", "--arm", "b=args=--eager", "-t", "mhc_input_reuse"], "--arm and --toggle"),
        (["ab", "-t", "draft_logits_persistent=off"], "add --controls"),
        (["ab", "-t", "mhc_input_reuse", "--synthetic-acceptance-rates", "1,2"], "2 rates for 5 drafts"),
        (["ab", "-t", "mhc_input_reuse", "--synthetic-acceptance-rates", "1,x"], "could not convert"),
        (["ab", "-t", "mhc_input_reuse", "--synthetic-acceptance-length", "9"], "not in 1..6"),
        (["ab", "-t", "mhc_input_reuse", "--synthetic-acceptance-length", "3"], "baseline has no drafts to accept"),
        (["ab", "-t", "mhc_input_reuse", "-s", "quik"], "did you mean quick"),
        (["ab", "-t", "mhc_input_reuse", "-s", "no.toml"], "no.toml: No such file"),
        (["ab", "-t", "mhc_input_reuse", "--blocks", "0"], "--blocks"),
        (["ab", "-t", "mhc_input_reuse", "--hidden-size", "128"], "add --load-format dummy"),
        (["ab", "-t", "mhc_input_reuse", "--out", "/proc/x"], "cannot write results to /proc/x"),
        (["ab", "--resume", "nothing"], "no result at 'nothing'"),
        (["ab", "--resume", "x", "--seed", "3"], "leave out --seed"),
        (["show", "nothing"], "no result at 'nothing'"),
        (["judge", "../.."], "no result at '../..'"),
    ],
)
def test_bad_input_is_one_line_with_exit_2_and_nothing_written(dsbench, args, said):
    ran = dsbench(*args, code=2)
    assert said in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""
    assert list(Path().iterdir()) == []


def test_stopped_and_resumed(dsbench):
    command = [sys.executable, str(ROOT / "tests/dsbench/fake_ab.py"), "ab", "-t", "mhc_input_reuse", *KV]
    environment = {**os.environ, "FAKE_FAULT": "hang-boot@02"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while not list(Path().glob("results/*/boots/02-*/markers*")):
            time.sleep(0.02)
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        error = process.stderr.read()
    assert process.returncode == 130
    assert f"dsbench ab --resume {one_result()}" in error
    assert "Traceback" not in error
    assert "has no verdict yet" in dsbench("show", one_result().name, code=2).stderr
    ran = dsbench("ab", "--resume", str(one_result()))
    assert "boots repeated after an interruption: 2" in ran.stdout
    assert ran.stderr.count("boot ") == 3
