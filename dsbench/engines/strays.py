"""Processes of boots that have left their group: known by DSBENCH_BOOT_DIR in their environment, and ended (Linux)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

VARIABLE = b"DSBENCH_BOOT_DIR="
GONE_S = 2.0


def strays(folder: Path) -> list[int]:
    """Ids of running processes whose boot folder is `folder` or lies under it; the caller itself is none."""
    found = [int(process.name) for process in Path("/proc").glob("[0-9]*")]
    return [pid for pid in found if pid != os.getpid() and of_boot(pid, folder)]


def of_boot(pid: int, folder: Path) -> bool:
    """Whether the boot folder of a running process is `folder` or lies under it."""
    place = os.fsencode(folder.resolve())
    with contextlib.suppress(OSError):
        for variable in Path("/proc", str(pid), "environ").read_bytes().split(b"\0"):
            named = variable.removeprefix(VARIABLE)
            if named != variable and (named == place or named.startswith(place + b"/")):
                return True
    return False


def end_strays(folder: Path) -> list[int]:
    """Kill them and wait until they are gone; returns whom."""
    killed = strays(folder)
    for pid in killed:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + GONE_S
    while killed and strays(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    return killed
