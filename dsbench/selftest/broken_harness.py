"""`dsbench` with a faulted engine in the candidate's boots, a fault of its own, or one detector taken away.

`python -m dsbench.selftest.broken_harness ENGINE_FAULT HARNESS_FAULT DETECTOR ARGS` is `dsbench ARGS`; `-` is none.
"""

from __future__ import annotations

import datetime
import fcntl
import importlib
import itertools
import os
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

from dsbench import execute, record_lines
from dsbench.cli import main as command_line
from dsbench.engines import devices, embedded, server
from dsbench.records import Arm, Plan

NONE = "-"


def clock_jump() -> None:
    """Every other look at the wall clock is a day behind."""
    looks = itertools.count()

    class Jumping(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz) - datetime.timedelta(days=next(looks) % 2)

    _replace(execute, "datetime", Jumping)


def time_zone() -> None:
    """Another zone from the second boot on."""
    boot, numbers = execute._boot, itertools.count(1)

    def elsewhere(*args: Any) -> Any:
        if next(numbers) == 2:
            os.environ["TZ"] = "Pacific/Kiritimati"
            time.tzset()
        return boot(*args)

    _replace(execute, "_boot", elsewhere)


def one_gpu() -> None:
    """Where NVML tells of no GPU it tells of one, and little about it; the lock on it is the real one."""
    if not devices.reading()["gpus"]:
        sys.modules["pynvml"] = cast(ModuleType, _Nvml())


class _Nvml:
    """NVML with one GPU that answers few questions."""

    class NVMLError(Exception):
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        known = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": 0,
            "nvmlDeviceGetName": "none",
            "nvmlSystemGetDriverVersion": "none",
        }

        def answer(*_: Any) -> Any:
            if name in known:
                return known[name]
            raise self.NVMLError

        return answer


def without_checksum() -> None:
    """What a line tells of itself and of the one before is believed."""

    def believed(line: bytes) -> record_lines.Line:
        end = record_lines._END.search(line)
        return record_lines.Line(line[: end.start()] + b"}" if end else line, 0, True, 0)

    _replace(record_lines, "parse", believed)


def without_chain() -> None:
    """Lines are counted, and nothing else is asked of their order."""

    def follow(self: record_lines._Past, line: record_lines.Line) -> None:
        self.lines += 1

    _replace(record_lines._Past, "follow", follow)


def without_lock() -> None:
    _replace(fcntl, "flock", lambda *_: None)


def without_repeat() -> None:
    """A boot whose engine was killed is a failed one for good."""
    _replace(execute, "to_repeat", lambda *_: [])


def without_group() -> None:
    """Only the engine's first process is ended."""

    def stop(self: server.Server) -> None:
        self.process.kill()
        self.process.wait()
        if self._guard:
            self._guard.kill()

    _replace(server.Server, "stop", stop)


def without_void() -> None:
    _replace(importlib.import_module("dsbench.judge"), "void_reasons", lambda *_: [])


FAULTS = {"clock_jump": clock_jump, "time_zone": time_zone, "one_gpu": one_gpu}
DETECTORS: dict[str, Callable[[], None]] = {
    "checksum": without_checksum,
    "chain": without_chain,
    "lock": without_lock,
    "group": without_group,
    "repeat": without_repeat,
    "void": without_void,
}
"""What can be taken away, so that its faults must be missed."""


def _replace(owner: Any, name: str, fault: object) -> None:
    setattr(owner, name, fault)


def main(argv: list[str]) -> None:
    engine, harness, without, *args = argv
    whole = embedded.command

    def command(plan: Plan, arm: Arm) -> list[str]:
        line = whole(plan, arm)
        if engine == NONE or arm.name == plan.baseline.name:
            return line
        at = line.index("impl.serve")
        return [*line[:at], "dsbench.selftest.broken_engine", engine, *line[at + 1 :]]

    _replace(embedded, "command", command)
    if harness != NONE:
        FAULTS[harness]()
    if without != NONE:
        DETECTORS[without]()
    sys.argv = ["dsbench", *args]
    command_line()


if __name__ == "__main__":
    main(sys.argv[1:])
