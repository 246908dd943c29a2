"""Gates as CI runs them: the examples under docs/ci, and a job script on planted, equal and incomplete runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = ROOT / "docs/ci/github-actions.yml"
JOB = ROOT / "tests/project/gate_job.sh"
SUITE = """name = "fast"
summary = "profiles"
blocks = 2
warmup_boots = 0
until = "profile"
guards = ["kv.available_bytes"]
[probes.kv]
"""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """Runs commands in an empty folder with `dsbench` on the path: on the fake engine, or as it is."""
    work, programs = tmp_path / "work", tmp_path / "bin"
    work.mkdir()
    programs.mkdir()
    shutil.copytree(ROOT / "docs/ci", work / "docs/ci")
    (work / "fast.toml").write_text(SUITE)
    program = programs / "dsbench"

    def run(*command, fault="", fake=True, **environment):
        start = str(ROOT / "tests/dsbench/fake_ab.py") if fake else "-m dsbench"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {start} "$@"\n')
        program.chmod(0o755)
        settings = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "FAKE_FAULT": fault}
        return subprocess.run(
            command,
            cwd=work,
            env={**os.environ, **settings, **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    run.folder = work
    return run


# --- examples ---------------------------------------------------------------------------------------------------------


def steps(event):
    """Steps that run commands on an event, in order; those before the checkout is ready are left to GitHub."""
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["gate"]
    for step in job["steps"]:
        when = step.get("if", "")
        ours = "run" in step and step.get("id") != "install" and step["name"] != "Machine"
        if ours and (event == "push" or "push" not in when):
            yield step, when, job["env"]


def run_workflow(shell, event, fault=""):
    """Exit code of each step by name, as GitHub would run them: after a failure only what says always()."""
    codes, failed = {}, False
    for step, when, settings in steps(event):
        if failed and "always()" not in when:
            continue
        done = shell("bash", "-e", "-c", step["run"], fault=fault, GITHUB_STEP_SUMMARY="summary.md",
                     **{**settings, "SUITE": "fast.toml"})  # fmt: skip
        codes[step["name"]] = done.returncode, done.stdout, done.stderr
        failed = failed or done.returncode != 0
    return codes


def test_the_workflow_is_one_that_github_reads():
    content = yaml.safe_load(WORKFLOW.read_text())
    assert content[True] == {"pull_request": None, "push": {"branches": ["main"]}}  # YAML 1.1 reads `on` as true
    job = content["jobs"]["gate"]
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    assert all(re.fullmatch(r"[\w./-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)
    install = next(step["run"] for step in job["steps"] if step.get("id") == "install")
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", install)
    assert set(extras.split(",")) <= set(
        re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    )


@pytest.mark.slow
def test_the_workflow_on_main_and_then_on_pull_requests(shell):
    codes = run_workflow(shell, "push")
    assert {name: code for name, (code, _, _) in codes.items()} == {
        "Gate": 0, "Bundle": 0, "Keep the main branch's results": 0,
    }  # fmt: skip
    assert "kv.available_bytes, B, better up: baseline" in codes["Keep the main branch's results"][1]
    assert len(list((shell.folder / "main-results").glob("*/plan.json"))) == 1
    shutil.rmtree(shell.folder / "results")

    good = run_workflow(shell, "pull_request")
    assert good["Gate"][0] == 0
    assert "baseline vs stored" in good["Gate"][1]
    assert "::notice title=dsbench gate::Gate passed" in good["Gate"][1]
    assert len(list((shell.folder / "bundles").glob("*.tar.gz"))) == 2

    bad = run_workflow(shell, "pull_request", fault="no-saving")
    assert (bad["Gate"][0], bad["Bundle"][0]) == (1, 0)
    assert "::error title=dsbench%3A mhc_input_reuse kv.peak_activation_bytes::" in bad["Gate"][1]
    summary = (shell.folder / "summary.md").read_text()
    assert re.findall(r"^### dsbench gate: (\w+)$", summary, re.MULTILINE) == ["passed", "passed", "failed"]
    assert "| FAIL | mhc\\_input\\_reuse vs stored |" in summary


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [("", 0, "gate: passed"), ("no-saving", 1, "gate: failed"), ("no-marker", 4, "which is no pass")],
)
def test_the_shell_example(shell, fault, code, said):
    done = shell("docs/ci/gate.sh", "mhc_input_reuse", "fast.toml", fault=fault, DSBENCH_JUNIT="out/gate.xml")
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert ET.parse(shell.folder / "out/gate.xml").getroot().get("name").startswith("dsbench fast ")


def test_the_shell_example_without_a_toggle_says_how(shell):
    done = shell("docs/ci/gate.sh")
    assert done.returncode != 0
    assert "usage: gate.sh TOGGLE" in done.stderr


# --- a job ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fake", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["fake", "embedded"])
def test_a_job_fails_what_is_planted_passes_what_is_equal_and_refuses_what_is_incomplete(shell, fake):
    suite = "fast.toml"
    planted = shell("bash", str(JOB), "planted", suite, fake=fake)
    assert planted.returncode == 1, planted.stdout + planted.stderr
    failures = ET.parse(shell.folder / "planted.xml").findall(".//failure")
    messages = [failure.get("message") for failure in failures]
    assert any(re.match(r"kv\.available_bytes -[\d,]+ B, the same in every boot \(exact, n=2\+2\): regressed", m)
               for m in messages), messages  # fmt: skip

    equal = shell("bash", str(JOB), "aa", suite, fake=fake)
    assert equal.returncode == 0, equal.stdout + equal.stderr
    top = ET.parse(shell.folder / "aa.xml").getroot()
    assert (top.get("failures"), top.get("errors")) == ("0", "0")
    assert int(top.get("tests")) >= 1

    incomplete = shell("bash", str(JOB), "missing", suite, fake=fake)
    assert incomplete.returncode == 4, incomplete.stdout + incomplete.stderr
    (error,) = ET.parse(shell.folder / "missing.xml").findall(".//error")
    assert error.get("type") == "check-missing"
    assert "probe kv has no record" in error.get("message")


def test_a_planted_slow_step_fails_with_its_interval(shell):
    (result,) = (ROOT / "results/selftest/speed").iterdir()
    done = shell("dsbench", "gate", str(result), "--junit", "slow.xml", fake=False)
    assert done.returncode == 1, done.stdout + done.stderr
    messages = [failure.get("message") for failure in ET.parse(shell.folder / "slow.xml").findall(".//failure")]
    assert any(
        re.match(r"decode\.tps\.c1 -\d+\.\d % \[-\d+\.\d %, -\d+\.\d %\], \d+ % interval .*: regressed", message)
        for message in messages
    )
