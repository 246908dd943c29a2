"""Standard streams that are closed, full, left, or of another encoding: no traceback, and no code of a verdict."""

import os
import signal
import subprocess
import sys

import pytest

from dsbench import store
from tests.dsbench.cli.test_aa_plan import FAKE, PROFILE, ROOT

TOGGLES = (sys.executable, "-m", "dsbench", "toggles", "mhc_input_reuse")
NO_RESULT = (sys.executable, "-m", "dsbench", "show", "nope")


def ran(command, **how):
    return subprocess.run(command, timeout=120, check=False, **how)


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_output_that_is_closed_is_dropped(closed):
    done = ran(TOGGLES, preexec_fn=lambda: [os.close(number) for number in closed], close_fds=False)
    assert done.returncode == 0


def test_a_refusal_is_one_to_nobody_too():
    assert ran(NO_RESULT, preexec_fn=lambda: os.close(2), close_fds=False).returncode == 2
    with open("/dev/full", "wb") as full:
        assert ran(NO_RESULT, stderr=full).returncode == 2


def test_a_disk_that_takes_no_output_is_told_in_one_line():
    with open("/dev/full", "wb") as full:
        done = ran(TOGGLES, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "dsbench: cannot write the output: No space left on device\n")


@pytest.mark.parametrize(
    "environment", [{"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}]
)
def test_a_sign_that_an_encoding_lacks_is_another_one(environment):
    done = ran((sys.executable, "-m", "dsbench", "suites"), env={**os.environ, **environment}, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"quick" in done.stdout
    told = "import sys, dsbench.cli as c; c._take_any_stream(); print('\\u2500')"
    assert ran((sys.executable, "-c", told), env={**os.environ, **environment}, stdout=-1).stdout == b"?\n"


def test_a_reader_of_notices_that_leaves_is_no_verdict(tmp_path, monkeypatch):
    """The first lines of a run are read, and those of its boots are not."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "s.toml").write_text(PROFILE)
    more = ("ab", "--dims", "pico", "-t", "mhc_input_reuse", "-s", "s.toml")
    with subprocess.Popen([*FAKE, *more], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as harness:
        harness.stderr.readline()
        harness.stderr.close()
        harness.wait(60)
    assert harness.returncode == 141
    (folder,) = (tmp_path / "results").iterdir()
    assert store.load_records(folder)[0], "nothing ran, so that no line of a boot was due"


@pytest.mark.parametrize("ignored", [True, False])
def test_a_terminal_that_goes_away_ends_a_run_unless_nohup_says_otherwise(tmp_path, monkeypatch, ignored):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "s.toml").write_text(PROFILE)
    handler = signal.SIG_IGN if ignored else signal.SIG_DFL
    with subprocess.Popen(
        [*FAKE, "ab", "--dims", "pico", "-t", "mhc_input_reuse", "-s", "s.toml"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, handler),
    ) as harness:
        told = next(line for line in harness.stderr if line.startswith("boot 1/6"))
        harness.send_signal(signal.SIGHUP)
        told += harness.stderr.read()
    assert harness.returncode == (0 if ignored else 130)
    assert told.count(": ok, ") == 6 if ignored else "stopped; go on with" in told
