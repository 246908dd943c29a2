"""A rig of two processes that nobody but its own commands knows, from plan to verdict."""

import contextlib
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.cli.experiment import Asked
from dsbench.engines.bounded_get import get_status
from dsbench.engines.command import RigServer
from dsbench.errors import InputError
from dsbench.execute import execute
from dsbench.judge import judge
from dsbench.rig import Rig

ROOT = Path(__file__).resolve().parents[3]

START = """
import os, pathlib, subprocess, sys
engine, port, shared, *flags = sys.argv[1:]
shared = pathlib.Path(shared)
for stale in shared.glob("markers.*"): stale.unlink()
env = {**os.environ, "DSBENCH_BOOT_DIR": str(shared)}
for rank in (1, 0):
    log = open(shared / f"rank{rank}.log", "wb")
    line = [sys.executable, engine, "--port", port, *flags] if rank == 0 else [sys.executable, "-c", '''
import json, os, pathlib, time
folder = pathlib.Path(os.environ["DSBENCH_BOOT_DIR"])
while not (folder / "markers.rank0.json").exists(): time.sleep(0.05)
for name in ("conditions", "kv_profile", "markers"):
    values = json.loads((folder / f"{name}.rank0.json").read_text())
    (folder / f"{name}.rank1.json").write_text(json.dumps({**values, "rank": 1, "pid": os.getpid()}))
print("rank 1 is up", flush=True)
time.sleep(600)
''']
    child = subprocess.Popen(line, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    (shared / f"pid{rank}").write_text(str(child.pid))
"""
STOP = """
import os, pathlib, signal, sys, time
for rank in (0, 1):
    pid = int((pathlib.Path(sys.argv[1]) / f"pid{rank}").read_text())
    try:
        os.killpg(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
time.sleep(0.3)
"""
HEALTH = """
import os, sys, time, urllib.request
if os.environ.get("HARNESS_WAITS"): time.sleep(60)
urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1] + "/health", timeout=2)
"""


@pytest.fixture
def rig(tmp_path, monkeypatch):
    """The rig's file; its two processes live in sessions of their own, as on other hosts."""
    from dsbench.engines.vllm import free_port

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("FAKE_FAULT", raising=False)
    shared, port = tmp_path / "shared", free_port()
    shared.mkdir()
    for name, code in (("start", START), ("stop", STOP), ("health", HEALTH)):
        (tmp_path / f"{name}.py").write_text(code)
    python, engine, url = sys.executable, ROOT / "tests/dsbench/fake_engine.py", f"http://127.0.0.1:{port}"

    def line(*parts):
        return json.dumps([str(part) for part in parts])

    ranks = "".join(
        f"[[ranks]]\nlog = '{shared}/rank{n}.log'\nprofile = '{shared}/kv_profile.rank{n}.json'\n"
        f"conditions = '{shared}/conditions.rank{n}.json'\nmarkers = '{shared}/markers.rank{n}.json'\n"
        for n in (0, 1)
    )
    path = tmp_path / "rig.toml"
    path.write_text(
        f"start = {line(python, tmp_path / 'start.py', engine, port, shared, '{args}')}\n"
        f"stop = {line(python, tmp_path / 'stop.py', shared)}\n"
        f"health = {line(python, tmp_path / 'health.py', url)}\n"
        f'detached = true\nurl = "{url}"\n{ranks}'
    )
    return path


SUITE = """
name = "rig"
summary = "bytes and tokens of every rank"
blocks = 2
warmup_boots = 0
guards = ["smoke.correct"]
[timeouts]
boot = 30
probe = 10
stop = 5
[probes.kv]
[[probes.smoke.items]]
prompt = "7*8="
answer = 56
"""


def asked(tmp_path, rig, **options):
    (tmp_path / "rig-suite.toml").write_text(SUITE)
    defaults = dict.fromkeys(
        ("until", "timeout", "max_num_batched_tokens", "max_model_len", "hidden_size", "speculative",
         "draft_load_format", "synthetic_acceptance_rates", "synthetic_acceptance_length")
    )  # fmt: skip
    settings = {"suite_name": str(tmp_path / "rig-suite.toml"), "seed": 0, "shape": "micro", "load_format": "auto",
                "eager": False, "engine": "command", "rig": rig, "serve_args": "--dims pico"}  # fmt: skip
    return Asked(**{**defaults, **settings, **options})


def gone(pid):
    try:
        return open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_rig_of_two_processes(tmp_path, rig):
    plan = asked(tmp_path, rig, toggles=("mhc_input_reuse",)).plan()
    assert (plan.engine, len(plan.rig.ranks), plan.engine_args) == ("command", 2, ["--dims", "pico"])
    assert any("GPUs are looked at on this machine alone" in note for note in plan.notes)
    folder = store.create(plan, tmp_path / "results")
    execute(plan, folder, quiet=True)
    records = store.load_records(folder)[0]
    ended = [record for record in records if isinstance(record, r.BootEnded)]
    assert [(end.status, end.reason) for end in ended] == [("ok", "")] * 4
    profiles = [record for record in records if isinstance(record, r.KvProfile)]
    assert [profile.rank for profile in profiles] == [0, 1] * 4
    verdict = judge(plan, records)
    assert (verdict.word, verdict.void) == ("improved", [])
    for boot in (folder / "boots").iterdir():
        assert "rank 1 is up" in (boot / "rank1.log").read_text()
        assert (boot / "markers.rank1.json").is_file()
    assert all(gone(int((tmp_path / f"shared/pid{rank}").read_text())) for rank in (0, 1))


def test_a_rig_that_does_not_get_healthy_is_stopped_and_says_so(tmp_path, rig, monkeypatch):
    monkeypatch.setenv("FAKE_FAULT", "exit")
    plan = asked(tmp_path, rig, toggles=("mhc_input_reuse",), timeout=3.0).plan()
    folder = store.create(plan, tmp_path / "results")
    execute(plan.model_copy(update={"boots": plan.boots[:1]}), folder, quiet=True)
    (ended,) = [record for record in store.load_records(folder)[0] if isinstance(record, r.BootEnded)]
    assert ended.status == "failed"
    assert "was not healthy within 3 s" in ended.reason
    assert gone(int((tmp_path / "shared/pid1").read_text()))


@contextlib.contextmanager
def server(port, status):
    """One that answers every address with `status`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        try:
            yield found.server_port
        finally:
            found.shutdown()


def ends(folder):
    return [(e.boot, e.status) for e in store.load_records(folder)[0] if isinstance(e, r.BootEnded)]


def test_no_boot_is_begun_where_another_server_answers(tmp_path, rig):
    plan = asked(tmp_path, rig, toggles=("mhc_input_reuse",)).plan()
    folder = store.create(plan, tmp_path / "results")
    port = int(plan.rig.url.rpartition(":")[2])
    with server(port, 200), pytest.raises(InputError) as refused:
        execute(plan, folder, quiet=True)
    said = str(refused.value)
    assert said.startswith(f"{plan.rig.url}/health answers 200 before the rig's start command is run: stop what serves")
    assert "or name another port in the rig" in said
    assert not (tmp_path / "shared/pid0").exists(), "its engine was started"
    assert ends(folder) == [(1, "interrupted")]
    assert not any(isinstance(record, r.Observation) for record in store.load_records(folder)[0])
    execute(plan, folder, quiet=True)  # the address is silent now
    assert [status for _, status in ends(folder)] == ["interrupted", *["ok"] * 4]


def rigged(folder, port, other=None):
    url = f"http://127.0.0.1:{port}"
    urls = [url] if other is None else [url, f"http://127.0.0.1:{other}"]
    folder.mkdir(exist_ok=True)
    return RigServer(Rig(start=["sleep", "60"], url=url), {}, folder, stop_s=2, urls=urls)


def free():
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


@pytest.mark.parametrize("status", [204, 401, 404, 500, 503])
def test_whatever_answers_is_a_server(tmp_path, status):
    with server(0, status) as port:
        with pytest.raises(InputError, match=f"{port}/health answers {status} before"):
            rigged(tmp_path / "own", port).__enter__()
        with pytest.raises(InputError, match=f"{port}/health answers {status} before"):
            rigged(tmp_path / "other arm's", free(), port).__enter__()


def test_one_that_is_too_busy_to_answer_is_a_server(tmp_path):
    deaf = socket.create_server(("127.0.0.1", 0))
    with deaf, pytest.raises(InputError, match="/health takes connections before"):
        rigged(tmp_path / "boot", deaf.getsockname()[1]).__enter__()


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_with_nobody_behind_it_is_none(tmp_path, status):
    with server(0, status) as port, rigged(tmp_path / "boot", port) as running:
        assert running.alive()


def test_an_engine_that_outlives_its_stop_is_not_measured_in_place_of_the_next(tmp_path, rig):
    (tmp_path / "stop.py").write_text("")
    plan = asked(tmp_path, rig, toggles=("mhc_input_reuse",)).plan()
    plan = plan.model_copy(update={"timeouts": plan.timeouts.model_copy(update={"stop": 0.5})})
    folder = store.create(plan, tmp_path / "results")
    try:
        with pytest.raises(InputError, match=r"answers 200 before .* stop command must end every engine"):
            execute(plan, folder, quiet=True)
        assert ends(folder) == [(1, "ok"), (2, "interrupted")]
        assert {o.boot for o in store.load_records(folder)[0] if isinstance(o, r.Observation)} == {1}
    finally:
        subprocess.run([sys.executable, "-c", STOP, tmp_path / "shared"], check=True)


HARNESS = """
import pathlib, sys
from dsbench import store
from dsbench.execute import execute
folder = pathlib.Path(sys.argv[1])
execute(store.load_plan(folder), folder, quiet=True)
"""


@pytest.fixture
def killed(tmp_path, rig):
    """A plan and its folder, of a harness that was killed in its first boot, and the engine that it left: its id."""
    plan = asked(tmp_path, rig, toggles=("mhc_input_reuse",)).plan()
    plan = plan.model_copy(update={"timeouts": plan.timeouts.model_copy(update={"stop": 2.0})})
    folder = store.create(plan, tmp_path / "results")
    harness = subprocess.Popen([sys.executable, "-c", HARNESS, folder], env={**os.environ, "HARNESS_WAITS": "1"})
    deadline = time.monotonic() + 60
    while get_status(f"{plan.rig.url}/health", 1) != 200:
        assert harness.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    harness.kill()
    harness.wait()
    pids = [int((tmp_path / f"shared/pid{rank}").read_text()) for rank in (0, 1)]
    try:
        yield plan, folder, pids[0]
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def test_the_engine_of_a_harness_that_was_killed_is_stopped_before_the_next(tmp_path, killed):
    plan, folder, pid = killed
    time.sleep(0.5)
    assert not gone(pid), "nothing was left that could be taken for the next boot's engine"
    execute(plan, folder, quiet=True)
    assert gone(pid)
    assert ends(folder) == [(1, "interrupted"), (1, "ok"), (2, "ok"), (3, "ok"), (4, "ok")]
    seen = [c.values["pid"] for c in store.load_records(folder)[0] if isinstance(c, r.Conditions) and not c.rank]
    assert len({pid, *seen}) == 5


def test_an_engine_of_a_killed_harness_that_cannot_be_stopped_ends_the_run(tmp_path, killed):
    plan, folder, pid = killed
    (tmp_path / "stop.py").write_text("")
    lost = plan.rig.model_copy(update={"stop": [str(tmp_path / "gone.sh")]})
    with pytest.raises(
        InputError, match=r"cannot run the stop command .*gone\.sh: .* may have left its engine running"
    ):
        execute(plan.model_copy(update={"rig": lost}), folder, quiet=True)
    assert ends(folder) == []
    with pytest.raises(InputError, match="answers 200 before"):
        execute(plan, folder, quiet=True)
    assert not gone(pid)
    assert not any(isinstance(record, r.Observation) for record in store.load_records(folder)[0])


def test_the_engine_of_a_killed_boot_is_stopped_without_its_folder_too(killed):
    plan, folder, pid = killed
    shutil.rmtree(folder / "boots")
    (folder / "boots").mkdir()
    execute(plan, folder, quiet=True)
    assert gone(pid)
    assert [status for _, status in ends(folder)] == ["interrupted", *["ok"] * 4]


WRAPPED = """
"$@" &
engine=$!
if rm "$KILL"; then
    while [ ! -e "$DSBENCH_BOOT_DIR/$WHEN" ]; do sleep 0.05; done
    sleep "$PAUSE"
    kill -s "$SIGNAL" $engine
fi
wait $engine
exit $?
"""


@pytest.mark.parametrize(
    ("number", "when", "pause", "told"),
    [
        (signal.SIGKILL, "engine.log", 0, "start command ended with code 137; killed by signal 9 (SIGKILL): "),
        (signal.SIGTERM, "ready.json", 1, "the engine ended "),
    ],
)
def test_a_script_that_tells_of_a_kill_by_its_code(tmp_path, monkeypatch, number, when, pause, told):
    """`sh -c` ends with 137 or 143 then; its own stop is none of that."""
    engine, port = ROOT / "tests/dsbench/fake_engine.py", free()
    line = json.dumps(["/bin/sh", "-c", WRAPPED, "sh", sys.executable, str(engine), "--port", str(port), "{args}"])
    named = {"profile": "kv_profile", "conditions": "conditions", "markers": "markers"}
    files = "\n".join(f'{name} = "{{boot_dir}}/{file}.rank0.json"' for name, file in named.items())
    (path := tmp_path / "rig.toml").write_text(
        f'start = {line}\nurl = "http://127.0.0.1:{port}"\n[[ranks]]\nlog = "{{boot_dir}}/engine.log"\n{files}\n'
    )
    (kill := tmp_path / "kill").touch()
    told_script = {"KILL": kill, "WHEN": when, "PAUSE": pause, "SIGNAL": number.name[3:], "PYTHONPATH": ROOT}
    for name, value in told_script.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("FAKE_TOKEN_S", "0.2")
    (slow := tmp_path / "slow.toml").write_text(f"{SUITE}[probes.decode]\nstreams = [1]\ntokens = 10\nrepeats = 1\n")
    plan = asked(tmp_path, path, toggles=("mhc_input_reuse",), suite_name=str(slow)).plan(blocks=1)
    folder = store.create(plan, tmp_path / "results")
    execute(plan, folder, quiet=True)
    first, second = [record for record in store.load_records(folder)[0] if isinstance(record, r.BootEnded)]
    assert (first.status, first.killed_by) == ("failed", number), first.reason
    assert first.reason.startswith(told)
    assert f"killed by signal {int(number)} ({number.name})" in first.reason
    assert (second.status, second.killed_by) == ("ok", None)
    execute(plan, folder, quiet=True)
    assert ends(folder) == [(1, "failed"), (2, "ok"), (1, "interrupted"), (1, "ok")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("start = []\nurl = 'http://x'", "start: list should have at least 1 item"),
        ("start = ['a']\nurl = 'ftp://x'", "url: string should match"),
        ("start = ['a']\nurl = 'http://x'\ndetached = true", "needs a stop command"),
        ("start = ['a']\nurl = 'http://x'\nshell = 'b'", "shell: unknown key"),
        ("start = 'a b'\nurl = 'http://x'", "start: input should be a valid list"),
        ("start = [", "not valid TOML"),
    ],
)
def test_a_rig_that_cannot_be(tmp_path, text, said):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"bad\.toml") as error:
        asked(tmp_path, path, toggles=("mhc_input_reuse",)).plan()
    assert said in str(error.value)


def test_places_are_filled_in_and_no_shell_reads_them(make_plan, tmp_path):
    from dsbench.engines.command import fill_rig
    from dsbench.rig import Rig

    rig = Rig(start=["a", "--in={boot_dir}", "{args}", "{arm};{toggles}", "$HOME"], url="http://{arm}:1",
              ranks=[{"log": "/x/{arm}.log"}])  # fmt: skip
    arm = make_plan().arms[1]
    filled = fill_rig(rig, arm, tmp_path, ["--one", "two words"])
    assert filled.start == ["a", f"--in={tmp_path}", "--one", "two words", f"{arm.name};{arm.environment}", "$HOME"]
    assert (filled.url, filled.ranks[0].log) == (f"http://{arm.name}:1", f"/x/{arm.name}.log")
