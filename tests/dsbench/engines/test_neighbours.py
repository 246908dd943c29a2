"""Who is on a GPU beside the engine: real processes of this machine, NVML's answer given."""

import json
import os
import subprocess
import sys

import pytest

from dsbench.engines.neighbours import GONE_LOOKS, Neighbours

GONE = 2**22 + 7
"""More than any process has."""
SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def engine():
    """An engine's process, which leads a session, and the neighbours of its boot."""
    process = subprocess.Popen(SLEEP, start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_process_that_is_not_the_engines_is_told_with_its_looks(engine, tmp_path):
    met = Neighbours(engine.pid, tmp_path)
    for pids in ([], [engine.pid], [engine.pid, 1], [1, engine.pid], [engine.pid]):
        met.see(0, pids)
    (line,) = met.lines()
    assert line.startswith("GPU 0 was used by others while the engine ran: 1 (")
    assert line.endswith("); at 2 of 5 looks")


def test_a_parent_of_the_harness_is_none_of_its_processes(engine, tmp_path):
    met = Neighbours(engine.pid, tmp_path)
    met.see(0, [engine.pid, os.getppid()])
    assert f"{os.getppid()} (" in met.lines()[0]


def test_children_of_the_engine_and_of_the_harness_are_ours(engine, tmp_path):
    beside = subprocess.Popen(SLEEP, start_new_session=True)
    in_session = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 60 & echo $!"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    orphan = int(in_session.stdout.readline())
    in_session.wait()
    try:
        met = Neighbours(in_session.pid, tmp_path)
        met.see(0, [orphan, beside.pid, os.getpid()])
        assert met.lines() == [], "its parent has ended, its session is the engine's"
        other = Neighbours(engine.pid, tmp_path)
        other.see(0, [engine.pid, orphan])
        assert f"{orphan} (sleep)" in other.lines()[0]
    finally:
        os.kill(orphan, 9)
        beside.kill()
        beside.wait()


def test_a_process_of_the_boot_is_ours_wherever_it_went(engine, tmp_path):
    """A daemon: of nobody's session, a child of nobody here."""
    daemon = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    started = subprocess.Popen(
        [sys.executable, "-c", daemon], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "DSBENCH_BOOT_DIR": str(tmp_path / "boot")},
    )  # fmt: skip
    pid = int(started.stdout.readline())
    started.wait()
    try:
        for folder, told in ((tmp_path / "boot", 0), (tmp_path / "another", 1)):
            met = Neighbours(engine.pid, folder)
            met.see(0, [engine.pid, pid])
            assert len(met.lines()) == told
    finally:
        os.kill(pid, 9)


def test_a_rank_that_tells_its_pid_is_ours(engine, tmp_path):
    met = Neighbours(engine.pid, tmp_path)
    met.see(0, [1])
    (tmp_path / "markers.rank0.json").write_text(json.dumps({"pid": 1, "toggles": {}}))
    (tmp_path / "markers.rank1.json").write_text("[1")
    assert met.lines() == []
    met.see(0, [1, os.getppid()])
    assert len(met.lines()) == 1, "where the engine runs as init's child, others are others"


@pytest.mark.parametrize("pids", [[], [1], [1, GONE]])
def test_nothing_is_told_where_the_engine_is_not_among_them(engine, tmp_path, pids):
    """The pids of another namespace, or an engine on another machine."""
    met = Neighbours(engine.pid, tmp_path)
    for _ in range(5):
        met.see(0, pids)
    assert met.lines() == []


def test_of_a_server_that_is_not_ours_nothing_is_known(tmp_path):
    met = Neighbours(None, tmp_path)
    met.see(0, [os.getpid(), 1])
    assert met.lines() == []


def test_nvml_that_does_not_say_is_no_look(engine, tmp_path):
    met = Neighbours(engine.pid, tmp_path)
    met.see(0, None)
    met.see(0, [engine.pid, 1])
    assert met.lines()[0].endswith("at 1 of 1 looks")


@pytest.mark.parametrize("looks", [1, GONE_LOOKS - 1, GONE_LOOKS])
def test_a_pid_that_is_not_there_counts_once_it_stays(engine, tmp_path, looks):
    """One that has just ended is met once; one that stays is another container's."""
    met = Neighbours(engine.pid, tmp_path)
    for _ in range(looks):
        met.see(1, [engine.pid, GONE])
    told = [f"GPU 1 was used by others while the engine ran: {GONE} (gone); at 3 of 3 looks"]
    assert met.lines() == (told if looks == GONE_LOOKS else [])


def test_each_gpu_has_its_line(engine, tmp_path):
    met = Neighbours(engine.pid, tmp_path)
    met.see(0, [engine.pid])
    met.see(1, [1])
    met.see(3, [engine.pid, 1])
    assert [line[:5] for line in met.lines()] == ["GPU 1", "GPU 3"]
