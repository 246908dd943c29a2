"""Each check says fail, and how to mend it, when the thing it looks for is planted."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsbench import doctor
from dsbench.cli import main


def by_name(findings):
    return {finding.check: finding for finding in findings}


def test_a_good_machine_has_no_finding_without_an_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "ENGINE_IMPORT", "print('stand-in')")
    findings = by_name(doctor.examine(tmp_path / "results"))
    assert {"python", "cores", "memory", "other load", "free port", "results folder", "engine"} <= set(findings)
    assert all(finding.found for finding in findings.values())
    assert all(finding.mend for finding in findings.values() if finding.status in ("fail", "advice"))
    assert list(tmp_path.iterdir()) == []


def test_results_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    finding = doctor._results(tmp_path / "file" / "results")
    assert (finding.status, finding.mend) == ("fail", "name another folder with --out")


def test_disk_too_full(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "NEEDED_DISK", 2**60)
    assert doctor._results(tmp_path).status == "fail"


def test_old_python(monkeypatch):
    monkeypatch.setattr(doctor, "NEEDED_PYTHON", (99, 0))
    assert doctor._python().status == "fail"


def test_little_memory(monkeypatch):
    monkeypatch.setattr(doctor, "_available_memory", lambda: 2**20)
    assert doctor._memory().status == "fail"
    monkeypatch.setattr(doctor, "_available_memory", lambda: None)
    assert doctor._memory().status == "advice"


def test_available_memory_is_read():
    free = doctor._available_memory()
    assert free is None or 2**20 < free < 2**50


@pytest.mark.parametrize(("load", "status"), [(0.0, "ok"), (500.0, "advice")])
def test_other_load(monkeypatch, load, status):
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    assert doctor._load().status == status


def test_one_core(monkeypatch):
    monkeypatch.setattr(doctor, "_usable_cores", lambda: 1)
    assert doctor._cores().status == "advice"


class TestWeights:
    def write(self, folder: Path, card: str | None) -> list[doctor.Finding]:
        (folder / "pico.safetensors").write_bytes(b"weights")
        if card is not None:
            (folder / "pico.card.json").write_text(card)
        return list(doctor._weights(folder))

    def test_as_the_card_says(self, tmp_path):
        card = json.dumps({"sha256": hashlib.sha256(b"weights").hexdigest()})
        assert [f.status for f in self.write(tmp_path, card)] == ["ok"]

    def test_other_bytes(self, tmp_path):
        (finding,) = self.write(tmp_path, json.dumps({"sha256": hashlib.sha256(b"other").hexdigest()}))
        assert finding.status == "fail"
        assert "another sum on its card" in finding.found

    def test_no_card(self, tmp_path):
        (finding,) = self.write(tmp_path, None)
        assert (finding.status, "no card" in finding.found) == ("fail", True)

    def test_none(self, tmp_path):
        (finding,) = doctor._weights(tmp_path)
        assert finding.status == "fail"
        assert "impl.train" in finding.mend


def test_engine_is_imported_elsewhere(monkeypatch):
    monkeypatch.setattr(doctor, "ENGINE_IMPORT", "import os; print(os.getpid())")
    finding = doctor._engine()
    assert finding.status == "ok"
    assert "torch" not in vars(doctor)


def test_engine_that_does_not_import(monkeypatch):
    monkeypatch.setattr(doctor, "ENGINE_IMPORT", "import no_such_engine")
    finding = doctor._engine()
    assert finding.status == "fail"
    assert "no_such_engine" in finding.found
    assert "pip install" in finding.mend


def test_engine_that_hangs(monkeypatch):
    monkeypatch.setattr(doctor, "ENGINE_IMPORT", "import time; time.sleep(60)")
    monkeypatch.setattr(doctor, "IMPORT_TIMEOUT_S", 0.2)
    assert doctor._engine().status == "fail"


def test_no_gpu_library_is_said_and_not_failed(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (finding,) = doctor._gpus()
    assert finding.status == "absent"
    assert "nvidia-ml-py" in finding.found


def test_gpu_answers_whatever_is_there():
    findings = list(doctor._gpus())
    assert findings
    assert {finding.status for finding in findings} <= {"ok", "absent", "advice"}


def test_exit_codes(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_weights_folder", lambda: tmp_path)
    (tmp_path / "pico.safetensors").write_bytes(b"weights")
    (tmp_path / "pico.md").write_text(f"sha256 {hashlib.sha256(b'weights').hexdigest()}\n")
    monkeypatch.setattr(doctor, "ENGINE_IMPORT", "print('stand-in')")
    good = CliRunner().invoke(main, ["doctor", "--out", str(tmp_path)])
    assert (good.exit_code, good.stdout.splitlines()[-1]) == (0, "ready")

    monkeypatch.setattr(doctor, "ENGINE_IMPORT", "import no_such_engine")
    bad = CliRunner().invoke(main, ["doctor", "--out", str(tmp_path)])
    assert (bad.exit_code, bad.stdout.splitlines()[-1]) == (1, "not ready: engine")

    content = json.loads(CliRunner().invoke(main, ["doctor", "--json", "--out", str(tmp_path)]).stdout)
    assert content["ready"] is False
    assert {"check", "status", "found", "mend"} == set(content["findings"][0])
