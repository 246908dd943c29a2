"""GPUs are looked at while an engine is measured; NVML is a stub at its boundary."""

import contextlib
import os
import threading
import time
from types import SimpleNamespace

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.engines import devices, under_load
from dsbench.engines.neighbours import Neighbours
from dsbench.engines.under_load import UnderLoad
from dsbench.execute import execute
from dsbench.judge import judge

IDLE, CAP, THERMAL = 0x1, 0x4, 0x40


class Error(Exception):
    pass


class Nvml:
    """Each look takes the next of `looks`: clock in MHz and reasons; the last one stays."""

    NVMLError = Error
    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = NVML_CLOCK_MEM = 0

    def __init__(self, *looks, gpus=1, refuse=(), pids=()):
        self.looks, self.gpus, self.refuse, self.pids = list(looks), gpus, refuse, pids
        self.asked, self.seen, self.joules = [], 0, 0

    def nvmlDeviceGetCount(self):
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, number):
        self.asked.append(number)
        return number

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return self.answer("clock", self.looks[0][0])

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        reasons = self.looks[0][1]
        if len(self.looks) > 1:
            del self.looks[0]
        self.seen += 1
        return self.answer("reasons", reasons)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        self.joules += 7000
        return self.answer("energy", self.joules)

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=3, total=9)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def answer(self, what, value):
        if what in self.refuse:
            raise Error
        return value

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)
        return lambda *_: self.answer(name, 50)


@pytest.fixture
def looked(monkeypatch, tmp_path):
    """What the looks of a stub give, once it was asked so many times."""

    def look(nvml, looks=3, visible=None):
        monkeypatch.setattr("dsbench.engines.nvml.session", lambda: contextlib.nullcontext(nvml))
        load = UnderLoad(visible, Neighbours(None, tmp_path), every_s=0.001)
        load.start()
        load.measure()
        deadline = time.monotonic() + 10
        while nvml is not None and nvml.seen < looks and time.monotonic() < deadline:
            time.sleep(0.001)
        return load.stop()

    return look


def test_clocks_power_and_energy_under_load(looked):
    seen, slowed = looked(Nvml((345, IDLE), (1980, 0), (1755, CAP)))
    (gpu,) = seen["gpus"]
    assert (gpu["sm_clock_mhz"][0], gpu["sm_clock_mhz"][2]) == (345, 1980)
    assert gpu["power_milliwatts"] == [50, 50, 50]
    assert (gpu["throttle_reasons"], gpu["energy_millijoules"], gpu["slowed"]) == (IDLE | CAP, 7000, [])
    assert slowed == [], "a power cap is no fault"


def test_heat_that_slows_a_gpu_down_is_told(looked):
    seen, slowed = looked(Nvml((1980, 0), (900, THERMAL), (1980, 0)), looks=20)
    assert seen["gpus"][0]["slowed_looks"] == 1
    assert slowed == [
        "GPU 0 ran slower than it can, by thermal slowdown by the hardware: at 1 of "
        f"{seen['gpus'][0]['looks']} looks"
    ]  # fmt: skip


def test_what_nvml_refuses_is_unknown_and_nothing_is_told_of_it(looked):
    seen, slowed = looked(Nvml((1, THERMAL), refuse=("clock", "reasons", "energy")))
    (gpu,) = seen["gpus"]
    assert (gpu["sm_clock_mhz"], gpu["throttle_reasons"], gpu["energy_millijoules"]) == (None, None, None)
    assert slowed == []


def test_gpus_that_the_engine_cannot_see_are_not_looked_at(looked):
    nvml = Nvml((1, 0), gpus=3)
    seen, _ = looked(nvml, looks=4, visible="2,0")
    assert [gpu["number"] for gpu in seen["gpus"]] == [0, 2]
    assert sorted(nvml.asked) == [0, 2]


def test_a_gpu_that_is_lost_leaves_what_was_seen(looked, monkeypatch):
    nvml = Nvml((1, THERMAL))

    def lost(self, handle):
        if self.seen == 2:
            raise Error
        return load(self, handle)

    load = devices.load
    monkeypatch.setattr(devices, "load", lost)
    seen, slowed = looked(nvml, looks=2)
    assert (seen["gpus"][0]["looks"], len(slowed)) == (2, 1)


def test_without_an_accelerator_nothing_is_seen(looked):
    assert looked(None) == ({"source": devices.NVML, "every_s": 0.001, "gpus": []}, [])


def test_the_bits_are_nvmls():
    pynvml = pytest.importorskip("pynvml")
    names = ("HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")
    assert list(under_load.SLOWED) == [getattr(pynvml, f"nvmlClocksEventReason{name}") for name in names]


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "dsbench-devices"]


@pytest.mark.parametrize(("fault", "status"), [("", "ok"), ("die", "failed")])
def test_a_boot_records_what_its_gpus_did(make_plan, fake, small, tmp_path, monkeypatch, fault, status):
    monkeypatch.setenv("FAKE_FAULT", fault)
    monkeypatch.setattr("dsbench.engines.nvml.session", lambda: contextlib.nullcontext(Nvml((900, THERMAL))))
    plan = make_plan(blocks=1, suite=small.model_copy(update={"warmup_boots": 0}))
    folder = store.create(plan, tmp_path)
    execute(plan.model_copy(update={"boots": plan.boots[:1]}), folder, command=fake, quiet=True)
    records = store.load_records(folder)[0]
    assert [x.status for x in records if isinstance(x, r.BootEnded)] == [status]
    (measured,) = [x for x in records if isinstance(x, r.Devices) and x.moment == "measured"]
    assert measured.values["gpus"][0]["looks"] >= 1
    assert [x.boot for x in records if isinstance(x, r.Finding) and x.code == "device-slowed"] == [plan.boots[0].number]
    assert threads() == []


@pytest.mark.parametrize(("pids", "void"), [((os.getpid(), 1), ["foreign-process"]), ((os.getpid(),), []), ((1,), [])])
@pytest.mark.parametrize("until", ["ready", "profile"])
def test_another_process_beside_the_engine_makes_the_run_void(
    make_plan, fake, small, tmp_path, monkeypatch, pids, void, until
):
    """From the start of the engine on: what it allocates while memory is profiled is read as the engine's."""
    from dsbench.suite import load_suite

    monkeypatch.setattr("dsbench.engines.nvml.session", lambda: contextlib.nullcontext(Nvml((1980, 0), pids=pids)))
    suite = load_suite("kv") if until == "profile" else small
    plan = make_plan(blocks=1, suite=suite.model_copy(update={"warmup_boots": 0}))
    folder = store.create(plan, tmp_path)
    execute(plan, folder, command=fake, quiet=True)
    records = store.load_records(folder)[0]
    found = [x for x in records if isinstance(x, r.Finding) and x.code == "device-busy"]
    assert [x.boot for x in found] == ([boot.number for boot in plan.boots] if void else [])
    assert all("GPU 0 was used by others while the engine ran: 1 (" in x.text for x in found)
    assert sorted({reason.code for reason in judge(plan, records).void} & {"foreign-process"}) == void


def test_a_slowed_gpu_is_a_note_of_the_verdict(make_plan, make_records):
    plan = make_plan()
    found = r.Finding(boot=plan.boots[-1].number, code="device-slowed", text="GPU 0 ran slower than it can")
    verdict = judge(plan, [*make_records(plan), found])
    assert verdict.void == []
    assert f"GPU 0 ran slower than it can (boots: {found.boot})" in verdict.notes


def test_a_boot_that_stops_at_its_profile_is_not_looked_at(make_plan, fake, tmp_path, monkeypatch):
    from dsbench.suite import load_suite

    monkeypatch.setattr("dsbench.engines.nvml.session", lambda: contextlib.nullcontext(Nvml((1755, 0))))
    plan = make_plan(suite=load_suite("kv"))
    folder = store.create(plan, tmp_path)
    execute(plan.model_copy(update={"boots": plan.boots[:1]}), folder, command=fake, quiet=True)
    assert {x.moment for x in store.load_records(folder)[0] if isinstance(x, r.Devices)} == {"before", "after"}
