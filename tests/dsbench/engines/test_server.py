"""The life of real processes: started, waited for, and gone with all their children."""

import os
import signal
import subprocess
import sys
import time

import pytest

from dsbench.engines import ended
from dsbench.engines.server import EngineFailed, Server

READY = """
import http.server, json, os, pathlib, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
folder = pathlib.Path(os.environ["DSBENCH_BOOT_DIR"])
(folder / "half").write_text(json.dumps({"host": "127.0.0.1", "port": server.server_port, "pid": os.getpid()}))
(folder / "half").rename(folder / "ready.json")
server.serve_forever()
"""


@pytest.fixture
def start(tmp_path):
    def build(code, stop_s=2.0, **environment):
        environment = {"DSBENCH_BOOT_DIR": str(tmp_path), **environment}
        return Server([sys.executable, "-c", code], environment, tmp_path, stop_s=stop_s)

    return build


def alive(pid):
    """Whether a process runs; a zombie that nobody reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ready_then_gone(start):
    with start(READY) as server:
        ready = server.wait_ready(20)
        assert ready.pid == server.process.pid
        assert server.alive()
    assert not alive(ready.pid)
    assert not server.alive()


def test_the_environment_is_handed_over(start, tmp_path):
    code = "import os, pathlib; pathlib.Path(os.environ['DSBENCH_BOOT_DIR'], 'seen').write_text(os.environ['X'])"
    with start(code, X="a b=c") as server:
        server.wait_exit(20)
    assert (tmp_path / "seen").read_text() == "a b=c"


def test_early_exit_is_told_with_the_end_of_the_log(start):
    with start("import sys; print('loading'); sys.exit('no such weights')") as server:
        with pytest.raises(EngineFailed, match=r"ended with code 1 before it was ready; its log ends: no such weights"):
            server.wait_ready(20)
        with pytest.raises(EngineFailed, match="ended with code 1"):
            server.wait_exit(1)


def test_deadlines(start):
    with start("import time; time.sleep(60)") as server:
        with pytest.raises(EngineFailed, match=r"never wrote ready\.json within 0\.3 s; its log is empty"):
            server.wait_ready(0.3)
        with pytest.raises(EngineFailed, match=r"did not finish within 0\.1 s"):
            server.wait_exit(0.1)
    assert not server.alive()


def test_a_server_that_never_gets_healthy(start):
    code = READY.replace("server.serve_forever()", "import time; time.sleep(60)")
    with start(code) as server, pytest.raises(EngineFailed, match=r"did not answer http://127\.0\.0\.1:\d+/health"):
        server.wait_ready(1.0)


def test_a_command_that_is_not_there(tmp_path):
    with pytest.raises(EngineFailed, match="cannot start /no/such/engine"):
        Server(["/no/such/engine"], {}, tmp_path, stop_s=1).__enter__()


GRANDCHILD = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import signal, time; {}signal.pause()"])
pathlib.Path(os.environ["DSBENCH_BOOT_DIR"], "child").write_text(str(child.pid))
{}
"""


@pytest.mark.parametrize("end", ["time.sleep(60)", "sys.exit(3)"])
@pytest.mark.parametrize("deaf", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN);"])
def test_grandchildren_go_too(start, tmp_path, end, deaf):
    """Also when the leader is gone before them, and when they do not listen to the polite signal."""
    with start(GRANDCHILD.format(deaf, end), stop_s=0.5) as server:
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
            time.sleep(0.02)
        child = int((tmp_path / "child").read_text())
        assert alive(child)
        if "exit" in end:
            server.process.wait(10)
    assert not alive(child)


def test_an_exception_inside_ends_the_engine(start):
    with pytest.raises(KeyboardInterrupt), start("import time; time.sleep(60)") as server:
        raise KeyboardInterrupt
    assert not alive(server.process.pid)


def test_the_engine_does_not_get_the_terminals_interrupt(start):
    """Ctrl-C goes to the foreground group; the engine is in its own, so the harness can record its end."""
    with start("import time; time.sleep(60)") as server:
        assert os.getpgid(server.process.pid) == server.process.pid != os.getpgid(0)
        assert os.getsid(server.process.pid) != os.getsid(0)


def test_stop_is_safe_twice(start):
    with start("pass") as server:
        server.process.wait(10)
        server.stop()
        server.stop()
    assert isinstance(server.process, subprocess.Popen)
    assert signal.Signals.SIGTERM


def test_a_key_across_the_beginning_of_the_log_s_end_is_told_in_no_part(start, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sk-planted-SECRET-0123456789")
    with start("") as server:
        server.wait_exit(20)
        for after in range(4096 - 40, 4097):
            server.log.write_text("a" * 5000 + "sk-planted-SECRET-0123456789" + "x" * after)
            said = server.last_words().removeprefix("; its log ends: ")
            assert 50 < len(said) <= 200
            assert not set(said.replace("[redacted]", "")) - {"a", "x"}, said


# --- killed -----------------------------------------------------------------------------------------------------------

LAST_WORD = "print('loading', flush=True); import time; time.sleep(60)"
MEMORY = ": out of memory? see dmesg"


def kill(server, number):
    while "loading" not in server.log.read_text():
        time.sleep(0.02)
    os.kill(server.process.pid, number)
    server.process.wait(10)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGKILL, f"; killed by signal 9 (SIGKILL){MEMORY}; its log ends: loading"),
        (signal.SIGTERM, "; killed by signal 15 (SIGTERM); its log ends: loading"),
    ],
)
def test_an_engine_that_a_signal_ended_is_told_with_where_to_look(start, number, said):
    with start(LAST_WORD) as server:
        kill(server, number)
        assert server.last_words() == said
        with pytest.raises(EngineFailed) as failed:
            server.wait_ready(20)
        with pytest.raises(EngineFailed, match=f"killed by signal {int(number)} "):
            server.wait_exit(1)
    assert str(failed.value) == f"engine ended with code -{int(number)} before it was ready{said}"
    assert server.killed_by == number


@pytest.mark.parametrize("code", [LAST_WORD, "import sys; sys.exit(3)", "pass"])
def test_an_engine_that_we_stop_or_that_exits_was_not_killed(start, code):
    """Our own signal ends the first of them."""
    with start(code) as server:
        if code != LAST_WORD:
            server.process.wait(10)
        assert "killed" not in server.last_words()
    assert server.killed_by is None
    assert (server.process.returncode < 0) == (code == LAST_WORD)


@pytest.mark.parametrize(
    ("group", "events", "number"),
    [
        ("4:memory:/a\n0::/\n", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("0::/\n", "oom_kill\n", None),
        ("0::/\n", "oom 3\n", None),
        ("0::/\n", "oom_kill many\n", None),
        ("4:memory:/a\n", "oom_kill 2\n", None),
        ("0::/elsewhere\n", "oom_kill 2\n", None),
    ],
)
def test_kills_for_memory_are_counted_where_the_kernel_tells_them(tmp_path, monkeypatch, group, events, number):
    (tmp_path / "own").write_text(group)
    (tmp_path / "memory.events").write_text(events)
    monkeypatch.setattr(ended, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(ended, "GROUPS", tmp_path)
    assert ended.oom_kills() == number


@pytest.mark.parametrize(("before", "now", "cause"), [(1, 2, "says the kernel"), (2, 2, "dmesg"), (None, 2, "dmesg"),
                                                      (2, None, "dmesg")])  # fmt: skip
def test_what_the_kernel_counts_is_no_question(monkeypatch, before, now, cause):
    monkeypatch.setattr(ended, "oom_kills", lambda: now)
    assert cause in ended.killed_words(9, before)
    assert ended.killed_words(15, before) == "; killed by signal 15 (SIGTERM)"
    assert ended.killed_words(40, before) == "; killed by signal 40"
    assert ended.killed_words(None, before) == ""


@pytest.mark.parametrize(
    ("code", "number", "of_wrapper"),
    [(None, None, None), (0, None, None), (1, None, None), (-9, 9, 9), (-11, 11, 11), (137, None, 9), (143, None, 15),
     (128, None, None), (130, None, None), (139, None, None), (255, None, None)],
)  # fmt: skip
def test_codes_of_shells_tell_signals_where_a_shell_may_be(code, number, of_wrapper):
    assert ended.signal_of(code) == number
    assert ended.signal_of(code, wrapped=True) == of_wrapper


GOING = """
import http.server, json, os, pathlib, signal, sys, threading, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
def leave(number, _):
    server.socket.close()
    print("leaving", flush=True)
    time.sleep(1.5)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
signal.signal(signal.SIGTERM, leave)
pathlib.Path(os.environ["DSBENCH_BOOT_DIR"], "ready.json").write_text(
    json.dumps({"host": "127.0.0.1", "port": server.server_port, "pid": os.getpid()}))
server.serve_forever()
"""


def test_an_engine_that_is_on_its_way_out_when_its_boot_is_left_was_killed(start):
    with start(GOING, stop_s=5.0) as server:
        server.wait_ready(20)
        os.kill(server.process.pid, signal.SIGTERM)
        while "leaving" not in server.log.read_text():
            time.sleep(0.02)
        assert server.alive()
    assert server.killed_by == signal.SIGTERM


def test_an_engine_that_still_listens_is_not_waited_for(start):
    with start(GOING, stop_s=5.0) as server:
        server.wait_ready(20)
        began = time.monotonic()
    assert server.killed_by is None
    assert time.monotonic() - began < 4.0
