"""Processes that left their engine's group, and engines whose harness was killed, with real processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsbench.engines.server import Server
from dsbench.engines.strays import end_strays, strays

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
HARNESS = """
import sys, time
from pathlib import Path
from dsbench.engines.server import Server
with Server([sys.executable, "-c", sys.argv[2]], {"DSBENCH_BOOT_DIR": sys.argv[1]}, Path(sys.argv[1]), stop_s=0.3):
    time.sleep(60)
"""
DEAF = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "60"])
pathlib.Path(os.environ["DSBENCH_BOOT_DIR"], "up").touch()
time.sleep(60)
"""


def wait_for(true, seconds=20):
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def test_only_processes_of_the_folder_are_ended(tmp_path):
    folders = [tmp_path / name for name in ("boots/01-a", "boots/02-b", "boots-of-another")]
    for folder in folders:
        folder.mkdir(parents=True)
    children = [subprocess.Popen(SLEEP, env={**os.environ, "DSBENCH_BOOT_DIR": str(f)}) for f in folders]
    try:
        assert wait_for(lambda: sorted(strays(tmp_path / "boots")) == sorted(c.pid for c in children[:2]))
        assert strays(folders[1]) == [children[1].pid]
        assert sorted(end_strays(tmp_path / "boots")) == sorted(c.pid for c in children[:2])
        assert [c.wait(5) for c in children[:2]] == [-signal.SIGKILL] * 2
        assert children[2].poll() is None
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_a_process_that_left_the_group_ends_with_the_boot(tmp_path):
    code = "import subprocess, time; subprocess.Popen(['setsid', 'sleep', '60']); time.sleep(60)"
    with Server([sys.executable, "-c", code], {"DSBENCH_BOOT_DIR": str(tmp_path)}, tmp_path, stop_s=1):
        assert wait_for(lambda: len(strays(tmp_path)) == 2)
    assert strays(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_deaf_engine_and_its_children_do_not_outlive_the_harness(tmp_path, number):
    """The kernel's signal is not heeded; the guard sees that the harness is gone."""
    harness = subprocess.Popen([sys.executable, "-c", HARNESS, str(tmp_path), DEAF], cwd=Path(__file__).parents[3])
    assert wait_for((tmp_path / "up").exists)
    assert len(strays(tmp_path)) == 2
    harness.send_signal(number)
    harness.wait(10)
    assert wait_for(lambda: strays(tmp_path) == [])
