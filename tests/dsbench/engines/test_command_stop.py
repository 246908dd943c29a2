"""A rig is stopped whole: also where its stop is interrupted, cannot be run, or leaves files that cannot be copied."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.engines.command import RigServer
from dsbench.engines.server import EngineFailed
from dsbench.errors import InputError
from dsbench.execute import execute
from dsbench.rig import Rig
from tests.dsbench.engines.test_command import STOP, asked, ends, gone
from tests.dsbench.engines.test_command import rig as rig  # a fixture

HARNESS = """
import pathlib, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore these
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from dsbench import store
from dsbench.cli.ab import terminate_like_interrupt
from dsbench.execute import execute
folder = pathlib.Path(sys.argv[1])
with terminate_like_interrupt():
    execute(store.load_plan(folder), folder, quiet=True)
"""
SLOW_STOP = """
import pathlib, sys, time
(pathlib.Path(sys.argv[1]) / "stopping").touch()
time.sleep(1)
"""


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def stopping(tmp_path, rig):
    """A harness whose first boot is being stopped, by a command that takes a second: plan, folder, process."""
    (tmp_path / "stop.py").write_text(SLOW_STOP + STOP)
    plan = asked(tmp_path, rig, toggles=("mhc_input_reuse",)).plan(blocks=1)
    folder = store.create(plan, tmp_path / "results")
    # A session of its own: what a terminal sends goes to every process of its group.
    harness = subprocess.Popen([sys.executable, "-c", HARNESS, folder], start_new_session=True, stderr=subprocess.PIPE)
    try:
        wait_for(tmp_path / "shared/stopping")
        yield plan, folder, harness
    finally:
        harness.kill()
        harness.communicate()
        for rank in (0, 1):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                os.killpg(int((tmp_path / f"shared/pid{rank}").read_text()), signal.SIGKILL)


def engine(tmp_path):
    return int((tmp_path / "shared/pid0").read_text())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_that_is_interrupted_runs_to_its_end(tmp_path, stopping, number):
    plan, folder, harness = stopping
    os.killpg(harness.pid, number)
    said = harness.communicate(timeout=30)[1].decode()
    assert harness.returncode != 0
    assert "KeyboardInterrupt" in said, "the interrupt was lost"
    assert gone(engine(tmp_path))
    (end,) = [record for record in store.load_records(folder)[0] if isinstance(record, r.BootEnded)]
    assert (end.status, end.reason, end.killed_by) == ("interrupted", "KeyboardInterrupt", None)
    execute(plan, folder, quiet=True)
    assert ends(folder) == [(1, "interrupted"), (1, "ok"), (2, "ok")]


def test_an_engine_that_an_interrupt_has_left_is_stopped_before_the_next(tmp_path, stopping):
    plan, folder, harness = stopping
    os.kill(harness.pid, signal.SIGTERM)
    time.sleep(0.2)
    os.kill(harness.pid, signal.SIGTERM)  # this one does not wait
    harness.communicate(timeout=30)
    pid = engine(tmp_path)
    assert not gone(pid), "nothing was left that could be in the way of the next boot"
    assert ends(folder) == [(1, "interrupted")]
    execute(plan, folder, quiet=True)
    assert gone(pid)
    assert ends(folder) == [(1, "interrupted"), (1, "ok"), (2, "ok")]


def test_a_boot_that_never_started_its_engine_has_none_to_stop(tmp_path, rig):
    """What serves there is somebody else's, whom the stop command might end."""
    plan = asked(tmp_path, rig, toggles=("mhc_input_reuse",)).plan(blocks=1)
    folder = store.create(plan, tmp_path / "results")
    (tmp_path / "stop.py").write_text(SLOW_STOP)
    with socket.create_server(("127.0.0.1", int(plan.rig.url.rpartition(":")[2]))):
        for _ in range(2):
            with pytest.raises(InputError, match="takes connections before"):
                execute(plan, folder, quiet=True)
    assert ends(folder) == [(1, "interrupted")] * 2
    assert not (tmp_path / "shared/stopping").exists()


def server(folder, **rig):
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as found:
        url = f"http://127.0.0.1:{found.getsockname()[1]}"
    filled = Rig.model_validate({"start": ["sleep", "60"], "url": url, **rig})
    return RigServer(filled, {}, folder, stop_s=2, urls=[url])


@pytest.fixture
def fleeting(tmp_path):
    """A stop command that is there until the engine runs."""
    path = tmp_path / "stop.sh"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_stop_command_that_cannot_be_run_leaves_no_engine(tmp_path, fleeting):
    running = server(tmp_path / "boot", stop=[str(fleeting)]).__enter__()
    fleeting.unlink()
    with pytest.raises(EngineFailed, match=r"cannot run the stop command .*stop\.sh: No such file"):
        running.__exit__(None, None, None)
    assert running.process.poll() is not None


def test_why_a_boot_failed_is_said_beside_a_stop_that_cannot_be_run(tmp_path, fleeting):
    boot = server(tmp_path / "boot", stop=[str(fleeting)])
    with (  # noqa: PT012
        pytest.raises(EngineFailed, match=r"^it was slow; cannot run the stop command .*stop\.sh"),
        boot,
    ):
        fleeting.unlink()
        raise EngineFailed("it was slow")


def test_an_interrupt_is_not_lost_in_a_stop_that_cannot_be_run(tmp_path, fleeting):
    with pytest.raises(KeyboardInterrupt), server(tmp_path / "boot", stop=[str(fleeting)]) as running:  # noqa: PT012
        fleeting.unlink()
        raise KeyboardInterrupt
    assert running.process.poll() is not None


def test_a_file_that_cannot_be_copied_leaves_no_engine(tmp_path):
    running = server(tmp_path / "boot", ranks=[{"log": str(tmp_path / "log")}]).__enter__()
    (tmp_path / "log").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        running.__exit__(None, None, None)
    assert running.process.poll() is not None


@pytest.mark.parametrize("name", ["start", "stop", "health"])
def test_a_command_whose_program_is_not_there_is_refused_before_anything_is_stored(tmp_path, rig, name):
    lines = [line for line in rig.read_text().splitlines() if not line.startswith(f"{name} =")]
    rig.write_text("\n".join([f"{name} = ['/nonexistent/program']", *lines]))
    said = rf"^--rig: {name}: /nonexistent/program is not there or cannot be executed"
    with pytest.raises(InputError, match=said):
        asked(tmp_path, rig, toggles=("mhc_input_reuse",)).plan()
    with pytest.raises(InputError, match=said):
        server(tmp_path / "boot", **{name: ["/nonexistent/program"]}).__enter__()
    assert not list((tmp_path / "boot").iterdir()), "its engine was started"


def test_programs_are_looked_for_on_the_path_of_the_engine_and_later_where_they_are_filled_in(tmp_path, fleeting):
    assert server(tmp_path / "a", start=["{boot_dir}/x"]).rig.start
    from dsbench.engines.command import missing_program

    assert missing_program(Rig(start=["{boot_dir}/start"], url="http://h"), {}) == ""
    own = Rig(start=["stop.sh"], url="http://h")
    assert missing_program(own, {"PATH": str(tmp_path)}) == ""
    assert missing_program(own, {"PATH": "/nowhere"}).startswith("--rig: start: stop.sh is not there")
