"""A driver that hangs, fails or tells odd texts: one line, a short wait, and nothing of it in a record as it came."""

import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench import doctor, store
from dsbench import fingerprint as machine
from dsbench import records as r
from dsbench.engines import devices, nvml
from dsbench.engines.gpu_lock import gpus_of
from dsbench.engines.neighbours import Neighbours
from dsbench.engines.under_load import UnderLoad
from dsbench.execute import execute
from dsbench.judge import judge

ANSWER_S = 0.4
HUNG = "NVML did not answer within 0.4 s, and is not asked again in this run (see nvidia-smi and dmesg)"
KEY = "sk-planted-SECRET-abcdef12345"


class Driver:
    """A `pynvml` with one GPU; `at(NAME, WHAT)` runs from the next call of that function on."""

    NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = NVML_CLOCK_MEM = 0

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.asked, self.happens, self.over = [], {}, threading.Event()
        self.answers = {"nvmlDeviceGetCount": 1, "nvmlDeviceGetName": "GPU X", "nvmlSystemGetDriverVersion": "570.1",
                        "nvmlDeviceGetComputeRunningProcesses": []}  # fmt: skip

    def at(self, name, what=None):
        self.happens[name] = what or (lambda: self.over.wait(60))

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def ask(*arguments):
            self.asked.append(name)
            self.happens.get(name, lambda: None)()
            if name == "nvmlDeviceGetMemoryInfo":
                raise self.NVMLError
            return self.answers.get(name, 7)

        return ask


@pytest.fixture
def driver(monkeypatch):
    found = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    monkeypatch.setattr(nvml, "_gave_up", [])
    monkeypatch.setattr(nvml, "ANSWER_S", ANSWER_S)
    machine.fingerprint.cache_clear()
    yield found
    found.over.set()
    machine.fingerprint.cache_clear()
    for thread in threading.enumerate():
        if thread.name in ("dsbench-nvml", "dsbench-devices"):
            thread.join(10)


def seconds(call):
    began = time.monotonic()
    call()
    return time.monotonic() - began


@pytest.mark.parametrize("where", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetPowerUsage", "nvmlShutdown"])
def test_a_driver_that_hangs_is_waited_for_once_and_asked_no_more(driver, where):
    driver.at(where)
    began = time.monotonic()
    reading = devices.reading()
    assert ANSWER_S <= time.monotonic() - began < 10
    assert (reading["gpus"], reading["unknown"]) == ([], HUNG)
    asked = list(driver.asked)
    assert seconds(lambda: [devices.reading() for _ in range(20)]) < ANSWER_S
    assert devices.reading()["unknown"] == HUNG
    assert machine._gpus() == [f"unknown: {HUNG}"]
    (finding,) = doctor._gpus()
    assert (finding.status, finding.found) == ("advice", HUNG)
    assert driver.asked == asked


def test_a_driver_that_answers_late_but_in_time_is_heard(driver):
    driver.at("nvmlInit", lambda: time.sleep(ANSWER_S / 4))
    assert devices.reading()["gpus"][0]["name"] == "GPU X"
    assert machine._gpus() == ["GPU X, memory unknown, driver 570.1"]
    assert nvml.gave_up() == ""


def test_a_driver_that_hangs_while_idle_gpus_are_waited_for(driver):
    before = devices.reading()
    driver.at("nvmlDeviceGetCount")
    readings = iter([before, devices.reading()])
    values, busy = devices.drained(5, lambda: next(readings), sleep=lambda _: None)
    assert (values["unknown"], busy) == (HUNG, "")
    assert devices.unknown(values) == []


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf8", b"x", 0, 1, "odd"), OSError("gone\nmissing"), KeyError()])
def test_whatever_a_driver_raises_is_one_line(driver, error):
    def fail():
        raise error

    driver.at("nvmlDeviceGetName", fail)
    for why in (devices.reading()["unknown"], machine._gpus()[0], next(doctor._gpus()).found):
        assert f"NVML failed ({type(error).__name__}" in why
        assert why.isprintable()


# --- texts of the driver ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("as_bytes", [False, True])
def test_no_key_and_no_control_character_of_a_driver_is_told(driver, monkeypatch, as_bytes):
    monkeypatch.setenv("MY_API_KEY", KEY)
    for name in ("nvmlDeviceGetName", "nvmlSystemGetDriverVersion"):
        told = f"\x1b[31mGPU {KEY}\u202e\nX" + "y" * 500
        driver.answers[name] = told.encode() if as_bytes else told
    gpu = devices.reading()["gpus"][0]
    for told in (gpu["name"], gpu["driver"], machine._gpus()[0], next(doctor._gpus()).found):
        assert "[31mGPU [redacted] Xyyy" in told
        assert told.isprintable()
        assert KEY not in told
        assert len(told) < 3 * nvml.LONGEST
    assert len(gpu["name"]) == nvml.LONGEST


@given(st.text(max_size=400) | st.binary(max_size=400) | st.integers())
def test_a_text_is_one_line(value):
    told = nvml.text(value)
    assert told.isprintable()
    assert len(told) <= nvml.LONGEST
    assert told == " ".join(told.split(" ")).strip()


# --- under load -------------------------------------------------------------------------------------------------------


@pytest.fixture
def looked(driver, monkeypatch, tmp_path):
    """Looks at the GPU, something that happens after some of them, and then what is told; no thread may fail."""
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)

    def look(what, wait_s):
        load = UnderLoad(None, Neighbours(None, tmp_path), every_s=0.001)
        load.start()
        load.measure()
        deadline = time.monotonic() + 10
        while driver.asked.count("nvmlDeviceGetPowerUsage") < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
        driver.at("nvmlDeviceGetPowerUsage", what)
        time.sleep(wait_s)
        return load.stop()

    yield look
    assert failed == []


def test_a_driver_that_hangs_under_load_holds_nobody_up(looked, driver, tmp_path):
    seen, _ = looked(None, ANSWER_S)
    assert seen["unknown"] == HUNG
    assert seen["gpus"][0]["looks"] >= 2
    asked = list(driver.asked)
    again = UnderLoad(None, Neighbours(None, tmp_path))
    again.start()
    assert seconds(lambda: again.stop()) < 0.3
    assert again.stop()[0]["unknown"] == HUNG
    assert devices.reading()["unknown"] == HUNG
    assert driver.asked == asked


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf8", b"x", 0, 1, "odd"), RuntimeError(f"odd\n{KEY}")])
def test_an_error_that_nobody_expects_under_load_is_one_line(looked, monkeypatch, capfd, error):
    monkeypatch.setenv("MY_API_KEY", KEY)

    def fail():
        raise error

    seen, _ = looked(fail, 0.1)
    assert seen["unknown"].startswith(f"NVML failed ({type(error).__name__}: ")
    assert seen["unknown"].isprintable()
    assert KEY not in seen["unknown"]
    assert seen["gpus"][0]["looks"] >= 2
    assert capfd.readouterr().err == ""
    assert nvml.gave_up() == "", "a driver that fails is asked again"


@pytest.mark.parametrize("hangs", [True, False])
def test_a_run_goes_on_and_says_what_is_unknown(make_plan, fake, small, tmp_path, driver, hangs, capfd):
    """From the first look under load on; between boots the driver answers, if it is asked."""

    def fail():
        if threading.current_thread().name == "dsbench-devices":
            if hangs:
                driver.over.wait(60)
            raise UnicodeDecodeError("utf8", b"x", 0, 1, "odd")

    driver.at("nvmlDeviceGetPowerUsage", fail)
    plan = make_plan(blocks=1, suite=small.model_copy(update={"warmup_boots": 0}))
    assert gpus_of(plan.model_copy(update={"engine": "vllm"})) == {0}
    driver.asked.clear()
    folder = store.create(plan, tmp_path)
    execute(plan, folder, command=fake, quiet=True)
    records = store.load_records(folder)[0]
    assert [x.status for x in records if isinstance(x, r.BootEnded)] == ["ok", "ok"]
    told = [(x.boot, x.text) for x in records if isinstance(x, r.Finding) and x.code == "device-unknown"]
    why = HUNG if hangs else "NVML failed (UnicodeDecodeError: "
    assert {boot for boot, _ in told} == {1, 2}
    assert told[0][1].endswith(": what GPUs do under load is unknown")
    found = [x for x in records if isinstance(x, r.Devices)]
    assert {x.boot for x in found if x.moment == "before"} == ({1} if hangs else {1, 2})
    assert {(x.boot, x.values["gpus"][0]["looks"]) for x in found if x.moment == "measured"} <= {(1, 0), (2, 0)}
    assert all(text.startswith(why) for _, text in told)
    (note,) = [note for note in judge(plan, records).notes if note.startswith(why)]
    assert note.endswith("is unknown (boots: 1, 2)")
    assert "Traceback" not in capfd.readouterr().err
