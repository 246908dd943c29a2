"""The life of one engine process: started in a group of its own, waited for, stopped whole."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from dsbench.engines.boot_json import read_object
from dsbench.engines.bounded_get import get_status
from dsbench.engines.ended import killed_words, oom_kills, signal_of
from dsbench.engines.secrets import redact, redacted_end
from dsbench.engines.strays import end_strays

POLL_S = 0.02
CONNECT_S = 1.0


def end_with_parent(harness: int) -> None:
    """Runs in a child of `harness`: when that dies, even by kill -9, the kernel sends the child SIGTERM (Linux)."""
    if _PRCTL is not None:
        _PRCTL(1, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != harness:  # it died before the kernel was asked
            os._exit(1)


_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)

GUARD = 'read -r _; kill -s TERM -- "-$1"; sleep "$2"; kill -s KILL -- "-$1"'
"""Shell that reads from the harness until that is gone, and then ends the engine's group.

The kernel's SIGTERM reaches the engine's first process alone, and one that is deaf or busy outlives it.
"""


class EngineFailed(Exception):
    """The engine did not start, did not get ready, or is gone; the message says what its log ends with, redacted."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


@dataclass(frozen=True)
class Ready:
    """Where a healthy server answers."""

    host: str
    port: int
    pid: int | None
    """None where the process is not known."""
    address: str = ""
    """URL of a server that is not plain HTTP at host and port."""

    @property
    def url(self) -> str:
        return self.address or f"http://{self.host}:{self.port}"


class Server:
    """One engine process and all its children. Leaving the `with` block ends every one of them."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], boot_dir: Path, *, stop_s: float
    ) -> None:
        self.command = list(command)
        self.boot_dir = boot_dir
        self.log = boot_dir / "engine.log"
        self.on_phase: Callable[[str], None] = lambda phase: None
        """Called with each phase of the start that an engine tells of."""
        self._environment = {**os.environ, **environment}
        self._stop_s = stop_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._listens: tuple[str, int] | None = None
        """Where it has answered that it is healthy."""
        self.killed_by: int | None = None
        """Known when the boot is left: the signal that ended the process before we did, None if there was none."""

    @property
    def visible_gpus(self) -> str | None:
        """CUDA_VISIBLE_DEVICES of its processes."""
        return self._environment.get("CUDA_VISIBLE_DEVICES")

    @property
    def session(self) -> int | None:
        """Session of its processes: the first one leads it."""
        return self.process.pid

    def __enter__(self) -> Server:
        self._oom_kills = oom_kills()
        with self.log.open("wb") as log:
            try:
                self.process = subprocess.Popen(
                    self.command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=functools.partial(end_with_parent, os.getpid()),
                )
            except OSError as error:
                raise EngineFailed(f"cannot start {self.command[0]}: {error.strerror or error}") from None
        try:
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, "sh", str(self.process.pid), str(self._stop_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None or issubclass(kind, Exception):
                self._await_end()
            self.killed_by = self.ended_by()
        finally:
            self.stop()

    def ended_by(self) -> int | None:
        """The signal that ended the process; None if none did, or if it runs."""
        return signal_of(self.process.poll())

    def _await_end(self) -> None:
        """Wait for an engine that somebody else has asked to end: it listens no more, and takes its time to go.

        Stopped now, it would look as if we had ended it.
        """
        deadline = time.monotonic() + self._stop_s
        while self._listens and self.process.poll() is None and time.monotonic() < deadline:
            try:
                socket.create_connection(self._listens, CONNECT_S).close()
            except ConnectionRefusedError:
                time.sleep(POLL_S)
            except OSError:
                return
            else:
                return

    def wait_ready(self, deadline_s: float) -> Ready:
        """Wait for ready.json and then for /health. EngineFailed if the process ends or time runs out."""
        deadline = time.monotonic() + deadline_s
        ready: Ready | None = None
        while (left := deadline - time.monotonic()) > 0:
            if (code := self.process.poll()) is not None:
                raise EngineFailed(f"engine ended with code {code} before it was ready{self.last_words()}")
            if self.advanced():
                deadline = time.monotonic() + deadline_s
            ready = ready or self.read_ready()
            if ready and get_status(f"{ready.url}/health", left) == 200:
                self._listens = ready.host, ready.port
                return ready
            time.sleep(POLL_S)
        state = "never wrote ready.json" if ready is None else f"did not answer {ready.url}/health"
        raise EngineFailed(f"engine {state} within {deadline_s:g} s{self.last_words()}")

    def wait_exit(self, deadline_s: float) -> None:
        """Wait for a process that ends by itself with code 0. EngineFailed otherwise."""
        try:
            code = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise EngineFailed(f"engine did not finish within {deadline_s:g} s{self.last_words()}") from None
        if code:
            raise EngineFailed(f"engine ended with code {code}{self.last_words()}")

    def wait_profile(self, deadline_s: float) -> None:
        """Wait for the memory profile, after which this engine ends by itself."""
        self.wait_exit(deadline_s)

    def advanced(self) -> bool:
        """Whether the start has entered another phase, each of which has the whole deadline."""
        return False

    def logs(self) -> list[Path]:
        """Every log of this boot; the engine's own first."""
        return [self.log]

    def read_ready(self) -> Ready | None:
        """ready.json as it stands now; None if it is not there or not whole."""
        try:
            content = read_object(self.boot_dir / "ready.json")
            port = int(content["port"])
            return Ready(str(content["host"]), port, int(content["pid"])) if 0 < port < 1 << 16 else None
        except (OSError, ValueError, KeyError, TypeError, OverflowError):
            return None

    def alive(self) -> bool:
        return self.process.poll() is None

    def last_words(self) -> str:
        """The signal that ended the process, if one did, and the last line of the log, for an error message."""
        killed = killed_words(self.ended_by(), self._oom_kills)
        try:
            lines = redacted_end(self.log, 4096).split("\n")
        except OSError:
            return killed
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return killed + (f"; its log ends: {last[:200]}" if last else "; its log is empty")

    def stop(self) -> None:
        """End the whole group: ask, wait, kill. Safe to call twice, and when the leader is gone already.

        Then whatever left the group but still belongs to this boot, by its environment.
        """
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + self._stop_s
        while self._group_lives() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if self._group_lives():
            self._signal(signal.SIGKILL)
        self.process.wait()
        # Orphaned members are reaped by init; where init reaps nothing they stay zombies, so do not wait for ever.
        deadline = time.monotonic() + 2.0
        while self._group_lives() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        end_strays(self.boot_dir)
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _group_lives(self) -> bool:
        """Whether the group still has a member that runs; a reaped leader alone is none."""
        self.process.poll()
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
