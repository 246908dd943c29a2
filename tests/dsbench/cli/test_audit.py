"""`dsbench audit`: a table or JSON from a subprocess, and exit codes that no check without an answer makes clean."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner, Result

from dsbench import audit
from dsbench.audit import Answer, Finding
from dsbench.cli import main

CLEAN = Answer(check="mtp_buffer", question="only where it is read?", status="clean", evidence={"bytes": 49152})
FOUND = CLEAN.model_copy(
    update={"status": "findings", "findings": (Finding(code="needless", what="a buffer", where="a.py:3", mend="drop"),)}
)
NOT_RUN = CLEAN.model_copy(update={"status": "not-run", "reason": "no torch here"})


def run(*args: str) -> Result:
    return CliRunner().invoke(main, ["audit", *args], prog_name="dsbench")


def test_it_runs_the_checks_of_a_toggle():
    result = run("--toggle", "mtp_hidden_skip")
    assert result.exit_code == 0, result.output
    assert "1/1 mtp_buffer" in result.stderr
    assert "none, mtp_hidden_skip on: 0" in result.stdout
    assert result.stdout.splitlines()[-1] == "clean"


def test_json_is_one_document():
    result = run("--toggle", "sp_moe_config_aware", "--json")
    content = json.loads(result.stdout)
    assert (result.exit_code, content["status"]) == (0, "clean")
    (check,) = content["checks"]
    assert (check["check"], check["evidence"]["rows that differ"]) == ("sp_moe_gate", 4)


@pytest.mark.parametrize(
    ("answers", "status", "code"),
    [
        ([CLEAN], "clean", 0),
        ([CLEAN, FOUND], "findings", 1),
        ([FOUND, NOT_RUN, CLEAN], "not-run", 4),
        ([], "not-run", 4),
    ],
)
def test_exit_codes(monkeypatch, answers, status, code):
    monkeypatch.setattr(audit, "examine", lambda *args, **rest: iter(answers))
    result = run()
    assert result.exit_code == code
    assert result.stdout.splitlines()[-1] == status
    if FOUND in answers:
        assert "needless: a buffer" in result.stdout
        assert "at a.py:3" in result.stdout
    if NOT_RUN in answers:
        assert "not run: no torch here" in result.stdout


def test_a_process_that_ends_early_leaves_its_checks_not_run(monkeypatch):
    monkeypatch.setattr(audit, "MODULE", "impl.no_such_audit")
    result = run("--toggle", "mtp_hidden_skip")
    assert result.exit_code == 4
    assert "not run: the audit's process ended with code 1" in result.stdout
    assert "impl.no_such_audit" in result.stdout


@pytest.mark.parametrize(("name", "said"), [("mtp_hidden", "did you mean mtp_hidden_skip"), ("leak", "no check")])
def test_a_toggle_without_checks_is_refused_in_one_line(name, said):
    result = run("--toggle", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_harness_imports_no_torch():
    code = "import sys, dsbench.cli.audit, dsbench.audit, impl.audit.checks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
