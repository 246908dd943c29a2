"""What happens to a running harness from outside: signals, a full disk, a second harness, changed files."""

from __future__ import annotations

import contextlib
import ctypes
import http.server
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from dsbench.engines.ended import GROUPS, OWN_GROUP
from dsbench.engines.strays import strays
from dsbench.selftest.broken_engine import LIMITED, PORT
from dsbench.store import BOOTS, PLAN, RECORDS

PATIENCE_S = 120.0
MEMORY_BYTES = 2 << 30
"""Of a run whose engine is to run out of memory: several times what harness and engine take."""
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24
HOLDER = """
import sys
from pathlib import Path
from dsbench.engines.gpu_lock import locked
with locked({0}, Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


class Skipped(Exception):
    """This cannot be made to happen on this machine; the message says why."""


class Missed(Exception):
    """Something that must happen did not; the message says what came instead."""


@dataclass
class Scene:
    """One run: where its results go, how it is started, and what is undone after it."""

    out: Path
    start: Callable[[list[str]], subprocess.Popen[str]]
    """Starts `dsbench` with arguments, its output to a pipe."""
    undo: ExitStack
    environment: dict[str, str] = field(default_factory=dict)
    begin: Callable[[], None] = lambda: None
    """Runs in the harness's process before it starts."""
    before: Callable[[], None] = lambda: None
    """Mends what happened, before the run is resumed."""
    during: Callable[[Scene], None] | None = None
    process: subprocess.Popen[str] | None = None
    says: str = ""
    """A further part of the output that must be there, where this machine decides what can happen."""
    findings: list[str] = field(default_factory=list)
    """What else went wrong."""

    @property
    def folder(self) -> Path:
        return next(self.out.glob(f"*/{PLAN}")).parent

    @property
    def running(self) -> subprocess.Popen[str]:
        assert self.process is not None
        return self.process

    def wait_for_boot(self, number: int, file: str = "") -> Path:
        """The folder of a boot once it is there, or once the engine has written `file` into it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for boot in self.out.glob(f"*/{BOOTS}/{number:02d}-*"):
                if not file or (boot / file).exists():
                    return boot
            if self.running.poll() is not None:
                raise Missed(f"the run ended before boot {number}")
            time.sleep(0.01)
        raise Missed(f"boot {number} never began")


# --- signals --------------------------------------------------------------------------------------------------------


def interrupts(scene: Scene) -> None:
    scene.during = lambda s: _signal(s, signal.SIGINT)


def terminates(scene: Scene) -> None:
    scene.during = lambda s: _signal(s, signal.SIGTERM)


def kills_harness(scene: Scene) -> None:
    scene.during = lambda s: _signal(s, signal.SIGKILL)


def interrupts_twice(scene: Scene) -> None:
    def twice(s: Scene) -> None:
        _signal(s, signal.SIGINT)
        time.sleep(0.1)
        s.running.send_signal(signal.SIGINT)

    scene.during = twice


def kills_both(scene: Scene) -> None:
    def both(s: Scene) -> None:
        boot = s.wait_for_boot(2, "ready.json")
        engines = strays(boot)
        for pid in (s.running.pid, *engines):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    scene.during = both


def kills_engine(scene: Scene) -> None:
    def kill(s: Scene) -> None:
        for pid in strays(s.wait_for_boot(2, "ready.json")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    scene.during = kill


def _signal(scene: Scene, number: signal.Signals) -> None:
    """In the middle of the second boot."""
    scene.wait_for_boot(2, "ready.json")
    scene.running.send_signal(number)


# --- memory ---------------------------------------------------------------------------------------------------------


def limits_memory(scene: Scene) -> None:
    """The run gets a control group of little memory, which the engine fills; where none can be made it ends itself."""
    group = _memory_group()
    if group is None:
        return
    scene.undo.callback(_remove, group)

    def enter() -> None:
        with (group / "cgroup.procs").open("r+") as file:
            file.write("0")  # the process that writes

    scene.begin = enter
    scene.environment[LIMITED] = str(MEMORY_BYTES)
    scene.says = "out of memory, says the kernel"


def _memory_group(groups: Path = GROUPS, own_group: Path = OWN_GROUP) -> Path | None:
    """A new group (version 2) with a limit, in the nearest one whose children may have one; None if there is none."""
    try:
        own = next(line[3:] for line in own_group.read_text("ascii").splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return None
    nearest = groups / own.strip("/")
    for parent in (nearest, *nearest.parents):
        if not parent.is_relative_to(groups):
            break
        group = parent / f"dsbench-selftest-{os.getpid()}"
        with contextlib.suppress(OSError):
            if "memory" not in (parent / "cgroup.subtree_control").read_text("ascii").split():
                continue
            group.mkdir()
            try:
                for name, value in (("memory.max", MEMORY_BYTES), ("memory.swap.max", 0)):
                    with (group / name).open("r+") as file:
                        file.write(str(value))
                return group
            except OSError:
                _remove(group)
    return None


def _remove(group: Path) -> None:
    """A group's processes are gone for the kernel a moment after they are for us."""
    deadline = time.monotonic() + 2.0
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.01)


# --- files ----------------------------------------------------------------------------------------------------------


def fills_disk(scene: Scene) -> None:
    """A small tmpfs filled to its last byte; where nothing may be mounted, a limit on the size of files."""
    scene.out.mkdir(parents=True)
    size = 2 << 20
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(scene.out)], capture_output=True, check=False
    )
    if mounted.returncode:
        scene.begin = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, resource.RLIM_INFINITY))
        scene.before = lambda: setattr(scene, "begin", lambda: None)
        return
    scene.undo.callback(subprocess.run, ["umount", "-l", str(scene.out)], check=False, capture_output=True)
    filler = scene.out / "filler"

    def fill(s: Scene) -> None:
        s.wait_for_boot(2)
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"\0" * 4096)

    scene.during = fill
    scene.before = filler.unlink


def makes_read_only(scene: Scene) -> None:
    """Even root may not write there: its harness runs without the right to override permissions."""
    scene.begin = _obey_permissions

    def forbid(s: Scene) -> None:
        s.wait_for_boot(2)
        os.chmod(s.folder / BOOTS, 0o555)

    scene.during = forbid
    scene.before = lambda: os.chmod(scene.folder / BOOTS, 0o755)


def _obey_permissions() -> None:
    libc = ctypes.CDLL(None)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def deletes_results(scene: Scene) -> None:
    def delete(s: Scene) -> None:
        s.wait_for_boot(2, "ready.json")
        shutil.rmtree(s.folder, ignore_errors=True)

    scene.during = delete


def changes_byte(scene: Scene) -> None:
    """A digit of a reading becomes another one: still a record, of something that was not read."""
    interrupts(scene)

    def change() -> None:
        path = scene.folder / RECORDS
        lines = path.read_bytes().splitlines(keepends=True)
        number, line = next((n, line) for n, line in enumerate(lines) if b'"metric":"kv.available_bytes"' in line)
        at = line.index(b'"value":') + len(b'"value":')
        lines[number] = line[:at] + (b"7" if line[at : at + 1] != b"7" else b"3") + line[at + 1 :]
        path.write_bytes(b"".join(lines))

    scene.before = change


def loses_line(scene: Scene) -> None:
    """A whole line of the records is not there any more."""
    interrupts(scene)

    def lose() -> None:
        path = scene.folder / RECORDS
        lines = path.read_bytes().splitlines(keepends=True)
        number = next(n for n, line in enumerate(lines) if b'"metric":"kv.available_bytes"' in line)
        path.write_bytes(b"".join([*lines[:number], *lines[number + 1 :]]))

    scene.before = lose


def tears_line(scene: Scene) -> None:
    kills_harness(scene)

    def tear() -> None:
        with (scene.folder / RECORDS).open("ab") as file:
            file.write(b'{"record":"observation","boot":2,"attempt":1,"metric":"kv.blo')

    scene.before = tear


# --- ports and locks ------------------------------------------------------------------------------------------------


def holds_port(scene: Scene) -> None:
    held = scene.undo.enter_context(socket.create_server(("127.0.0.1", 0)))
    scene.environment[PORT] = str(held.getsockname()[1])


class _Impostor(http.server.BaseHTTPRequestHandler):
    """Answers {} to everything."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


def answers_elsewhere(scene: Scene) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Impostor)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    scene.undo.callback(server.server_close)
    scene.undo.callback(server.shutdown)
    scene.environment[PORT] = str(server.server_port)


def holds_gpu(scene: Scene) -> None:
    """A second process holds GPU 0 as a harness does, in a folder for temporary files that only this run has."""
    place = scene.out.with_name(f"{scene.out.name}-tmp")
    place.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDER, str(place)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    scene.undo.callback(holder.communicate)
    assert holder.stdout is not None
    if holder.stdout.readline() != "held\n":
        scene.findings.append("no second process could hold the GPU")
    scene.environment |= {"TMPDIR": str(place), "CUDA_VISIBLE_DEVICES": "0"}


def runs_twice(scene: Scene) -> None:
    def second(s: Scene) -> None:
        s.wait_for_boot(1, "ready.json")
        other = s.start(["ab", "--resume", str(s.folder)])
        told, _ = other.communicate(timeout=PATIENCE_S)
        if other.returncode != 2 or "is being written by another dsbench" not in told:
            s.findings.append(f"the second harness ended with code {other.returncode}: {told.strip()[-200:]}")

    scene.during = second
