"""What a boot's log tells while the boot runs: a compiler beside a timed probe, and faults."""

import sys
from types import SimpleNamespace

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.boot_files import BootLogs, record_devices_before
from dsbench.engines import devices
from dsbench.engines.server import Server
from dsbench.execute import execute
from dsbench.judge import judge


@pytest.fixture
def run(make_plan, fake, small, tmp_path, monkeypatch):
    def go(fault, phase="measured"):
        monkeypatch.setenv("FAKE_FAULT", fault)
        plan = make_plan(blocks=1, suite=small.model_copy(update={"warmup_boots": 0}))
        boots = [plan.boots[0].model_copy(update={"phase": phase})]
        shorter = plan.model_copy(update={"boots": boots})
        folder = store.create(shorter, tmp_path)
        execute(shorter, folder, command=fake, quiet=True)
        return plan, store.load_records(folder)[0]

    return go


def checks(records):
    return {record.probe: record for record in records if isinstance(record, r.Check)}


def test_a_server_that_compiles_while_it_is_timed_gives_no_reading(run):
    plan, records = run("compile")
    assert checks(records)["decode"].status == "failed"
    assert "compiled while it was timed: INFO 01-01 00:00:00" in checks(records)["decode"].reason
    assert checks(records)["prefill"].status == "done"
    assert "check-missing" in {reason.code for reason in judge(plan, records).void}


def test_a_warm_up_may_compile(run):
    assert checks(run("compile", phase="warm-up")[1])["decode"].status == "done"


def test_a_fault_in_the_log_is_recorded(run):
    faults = [record for record in run("fatal-line")[1] if isinstance(record, r.Finding) and record.code == "fatal-log"]
    assert len(faults) >= 1
    assert faults[0].text.startswith("illegal_memory_access, engine.log:")


def test_a_sound_boot_has_no_finding(run):
    assert [record for record in run("")[1] if isinstance(record, r.Finding)] == []


def test_a_gpu_whose_processes_nobody_tells_is_recorded_as_unknown(make_plan, make_records, monkeypatch):
    silent = {"number": 0, "used_bytes": 3, "processes": None}
    monkeypatch.setattr(devices, "reading", lambda visible: {"source": devices.NVML, "host": {}, "gpus": [silent]})
    monkeypatch.setattr(devices, "POLL_S", 0.0)
    plan, wrote = make_plan(), []
    served = plan.model_copy(update={"engine": "vllm"})
    boot = {"boot": plan.boots[-1].number}
    record_devices_before(served, plan.baseline, boot, SimpleNamespace(write=wrote.append))
    assert [(type(record), getattr(record, "code", "")) for record in wrote] == [
        (r.Devices, ""), (r.Finding, "device-unknown")
    ]  # fmt: skip
    verdict = judge(plan, [*make_records(plan), *wrote])
    assert verdict.void == []
    assert f"NVML does not say which processes use GPU 0: whether it was idle is unknown (boots: {boot['boot']})" in (
        verdict.notes
    )


@pytest.mark.parametrize("gap", [0, 230, 245, 250, 262, 8000, 16300, 16370])
def test_a_fault_is_redacted_before_it_is_cut(gap, tmp_path, monkeypatch):
    """Where the text of an event is cut, and where a line too long to be read is."""
    monkeypatch.setenv("MY_API_KEY", key := "0123456789" * 4)
    engine = Server([sys.executable], {}, tmp_path, stop_s=1)
    for compiles in (False, True):
        words = "torch.compile took " if compiles else "RuntimeError: CUDA out of memory "
        engine.log.write_text(f"{words}{'y' * gap}{key}{'z' * 40_000}\n")
        wrote = []
        logs = BootLogs({"boot": 1}, SimpleNamespace(write=wrote.append))
        logs.watch(SimpleNamespace(logs=lambda: [engine.log], session=None, boot_dir=tmp_path, visible_gpus=None))
        logs.record_faults()
        told = logs.compiled() if compiles else wrote[0].text.partition("memory ")[2]
        assert len(told) > 100
        assert not set("0123456789") & set(told), told
