"""Accelerators are waited for until they are idle; what cannot be read is never taken for idle."""

import contextlib

import pytest

from dsbench.engines import devices
from dsbench.errors import InputError


def reads(*readings):
    left = list(readings)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def gpu(used, processes=(), source=devices.NVML, available=None):
    found = {"number": 0, "used_bytes": used, "processes": list(processes)}
    return {"source": source, "host": {"available_bytes": available, "page_cache_bytes": 0}, "gpus": [found]}


def drain(*readings, deadline=5.0):
    return devices.drained(deadline, reads(*readings), sleep=lambda seconds: None)


def test_memory_that_still_falls_is_waited_for():
    values, why = drain(gpu(9), gpu(5), gpu(3), gpu(3))
    assert (values["gpus"][0]["used_bytes"], why) == (3, "")


def test_a_process_that_ends_is_waited_for():
    assert drain(gpu(9, [41]), gpu(9, [41]), gpu(3), gpu(3))[1] == ""


def test_a_process_that_stays_is_told():
    assert drain(gpu(9, [41, 42]), deadline=0.0)[1] == "GPU 0 is used by other processes: 41, 42"


def test_unified_memory_falls_back_to_the_host():
    def looks(*available):
        return [gpu(None, source=devices.UNIFIED, available=bytes_) for bytes_ in available]

    assert drain(*looks(10 * 2**30, 20 * 2**30, 20 * 2**30))[1] == ""
    assert "still moving" in drain(*looks(10 * 2**30, 20 * 2**30), deadline=0.0)[1]
    assert "still moving" in drain(*looks(None, None), deadline=0.0)[1]


def test_without_an_accelerator_nothing_is_waited_for():
    none = {"source": devices.NONE, "host": {}, "gpus": []}
    assert drain(none) == (none, "")
    assert devices.unknown(none) == []


def test_processes_that_nvml_does_not_tell_are_unknown_and_neither_idle_nor_busy():
    silent = {"source": devices.NVML, "host": {}, "gpus": [gpu(3)["gpus"][0] | {"processes": None}]}
    assert drain(silent) == (silent, "")
    assert devices.unknown(silent) == ["NVML does not say which processes use GPU 0: whether it was idle is unknown"]
    assert devices.unknown(gpu(3)) == []


def test_a_driver_that_cannot_be_asked_is_not_no_accelerator(monkeypatch, tmp_path):
    monkeypatch.setattr("dsbench.engines.nvml.session", lambda: contextlib.nullcontext(None))
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "nvidiactl")
    assert devices.unknown(devices.reading()) == []
    devices.DRIVER.touch()
    assert "whether its GPUs were idle is unknown" in devices.unknown(devices.reading())[0]


def test_this_host_says_how_much_memory_it_has():
    assert devices.host_memory()["available_bytes"] > 2**20
    assert set(devices.reading()) == {"source", "host", "gpus"}


def test_a_host_that_does_not_say(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "MEMINFO", tmp_path / "none")
    assert devices.host_memory() == {"available_bytes": None, "page_cache_bytes": None}


class Error(Exception):
    pass


def test_what_nvml_refuses_is_none():
    class Nvml:
        NVMLError = Error
        NVML_TEMPERATURE_GPU = NVML_CLOCK_SM = NVML_CLOCK_MEM = 0

        def __getattr__(self, name):
            def ask(*arguments):
                if "MemoryInfo" in name:
                    raise Error
                return [] if "Processes" in name else 7

            return ask

    found = devices._gpu(Nvml(), None)
    assert (found["used_bytes"], found["processes"], found["power_milliwatts"]) == (None, [], 7)


def test_a_gpu_that_is_lost_is_one_line(monkeypatch):
    class Nvml:
        NVMLError = Error

        def nvmlDeviceGetCount(self):
            return 2

        def nvmlDeviceGetHandleByIndex(self, number):
            if number:
                raise Error("GPU is lost")

    monkeypatch.setattr("dsbench.engines.nvml.session", lambda: contextlib.nullcontext(Nvml()))
    with pytest.raises(InputError, match=r"a GPU does not answer NVML \(GPU is lost\): see nvidia-smi and dmesg"):
        devices.reading()


@pytest.mark.gpu
@pytest.mark.skipif(not devices.reading()["gpus"], reason="no GPU here")
def test_a_real_gpu_answers():
    assert devices.reading()["gpus"][0]["total_bytes"] > 2**30


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [(None, [0, 1, 2]), ("", []), ("1", [1]), ("2,0", [2, 0]), ("GPU-5d3a", [0, 1, 2]), ("7", [0, 1, 2])],
)
def test_a_gpu_the_engine_cannot_see_is_not_watched(visible, numbers):
    assert devices.seen_by_engine(visible, 3) == numbers
