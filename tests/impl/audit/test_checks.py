"""The audit as a whole: which checks run for a toggle, what not-run is, and exit codes."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from impl.audit import mtp_buffer
from impl.audit.__main__ import main
from impl.audit.checks import CHECKS, concerning, run
from impl.audit.report import Finding, NotRun, Outcome
from impl.toggles import REGISTRY, ToggleError

MTP = next(check for check in CHECKS if check.name == "mtp_buffer")


def test_each_check_is_a_module_and_names_toggles_there_are():
    for check in CHECKS:
        assert callable(importlib.import_module(f"impl.audit.{check.name}").check)
        assert check.question.endswith("?")
        assert set(check.toggles) <= REGISTRY.keys()


def test_every_optimization_is_audited():
    audited = {toggle for check in CHECKS for toggle in check.toggles}
    assert {name for name, toggle in REGISTRY.items() if toggle.kind == "optimization"} <= audited


def test_a_toggle_chooses_its_checks():
    assert list(concerning(None)) == list(CHECKS)
    assert [check.name for check in concerning("mtp_hidden_skip")] == ["mtp_buffer"]
    with pytest.raises(ToggleError, match="did you mean mtp_hidden_skip"):
        concerning("mtp_hiden_skip")
    with pytest.raises(ToggleError, match="no check of the audit concerns toggle 'leak'"):
        concerning("leak:4")


def plant(monkeypatch, outcome):
    def check():
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(mtp_buffer, "check", check)


FINDING = Finding("needless-buffer", "a buffer", "impl/model/target.py:1", "drop it")


@pytest.mark.parametrize(
    ("outcome", "status", "said", "code"),
    [
        (Outcome(), "clean", "", 0),
        (Outcome((FINDING,)), "findings", "", 1),
        (NotRun("no kernel here"), "not-run", "no kernel here", 4),
        (RuntimeError("two\nlines"), "not-run", "RuntimeError: two lines", 4),
    ],
)
def test_a_check_that_does_not_answer_is_not_clean(monkeypatch, capsys, outcome, status, said, code):
    plant(monkeypatch, outcome)
    report = run(MTP)
    assert (report.status, report.reason) == (status, said)
    assert main(["--toggle", "mtp_hidden_skip"]) == code
    assert capsys.readouterr().out.startswith(f"{status:<8} mtp_buffer")


def test_json_is_an_event_a_line(monkeypatch, capsys):
    plant(monkeypatch, Outcome((FINDING,), {"bytes": 3}))
    assert main(["--json", "--toggle", "mtp_hidden_skip"]) == 1
    start, report = map(json.loads, capsys.readouterr().out.splitlines())
    assert start == {"event": "start", "check": "mtp_buffer"}
    assert report["findings"] == [
        {"code": "needless-buffer", "what": "a buffer", "where": "impl/model/target.py:1", "mend": "drop it"}
    ]
    assert (report["status"], report["evidence"]) == ("findings", {"bytes": 3})


def test_an_unknown_toggle_is_a_usage_error(capsys):
    assert main(["--toggle", "nope"]) == 2
    assert capsys.readouterr().err.startswith("impl.audit: unknown toggle 'nope'")


@pytest.mark.parametrize("module", ["checks", "report", "source", "call_sites", "sp_moe_gate"])
def test_modules_that_say_so_need_no_torch(module):
    code = f"import sys, impl.audit.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
