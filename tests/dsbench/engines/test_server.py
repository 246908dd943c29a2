"""The life of real processes: started, waited for, and gone with all their children."""

import os
import signal
import subprocess
import sys
import time

import pytest

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
