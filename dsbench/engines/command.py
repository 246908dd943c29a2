"""Engines behind a user's own commands: start, stop and health as argument lists, logs and profiles by rank.

No shell reads a command. What ranks wrote is copied into the boot's folder, so that a result needs nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from dsbench.engines.bounded_get import find_status, get_status
from dsbench.engines.ended import signal_of
from dsbench.engines.engine import ReadBack, Running, boot_environment
from dsbench.engines.interrupts import interrupts_wait
from dsbench.engines.read_back import read_back_all
from dsbench.engines.secrets import redact
from dsbench.engines.server import EngineFailed, Ready, Server
from dsbench.errors import InputError
from dsbench.records import Arm, Plan
from dsbench.rig import PLACES, Rig

POLL_S = 0.2
COMMAND_S = 60.0
"""Deadline of one health command."""
SILENT_S = 3.0
"""Within this time a server that is there answers, or at least takes the connection."""
NOBODY_BEHIND = (502, 504)
"""What a gateway says that stays while the engines behind it come and go; an engine says neither."""


class Rigged:
    """Boots of a rig."""

    def __init__(self, plan: Plan) -> None:
        if plan.rig is None:
            raise InputError("--engine command needs --rig FILE, with its start, stop and health commands")
        self.plan = plan
        self.rig = plan.rig

    def boot(self, arm: Arm, boot_dir: Path) -> RigServer:
        filled = fill_rig(self.rig, arm, boot_dir, [*self.plan.engine_args, *arm.args])
        urls = [fill_rig(self.rig, other, boot_dir, []).url for other in (arm, *self.plan.arms)]
        stop_s = self.plan.timeouts.stop
        return RigServer(
            filled, boot_environment(arm, boot_dir), boot_dir, stop_s=stop_s, urls=list(dict.fromkeys(urls))
        )

    def read_back(self, arm: Arm, running: Running, url: str | None) -> ReadBack:
        return read_back_all(running, arm, url)


class RigServer(Server):
    """One boot of a rig: the start command's process group, and whatever that command has started elsewhere."""

    def __init__(
        self, rig: Rig, environment: Mapping[str, str], boot_dir: Path, *, stop_s: float, urls: Sequence[str]
    ) -> None:
        """`urls` are those of every arm: none may answer before this boot's engine is started."""
        super().__init__(rig.start, environment, boot_dir, stop_s=stop_s)
        self.rig = rig
        self._urls = urls
        self._stopped = False
        self._stale = {path: _state(path) for rank in rig.ranks for path in rank.model_dump(exclude_none=True).values()}

    def __enter__(self) -> RigServer:
        """InputError if a command is not there, or if something serves already.

        What serves would be measured in place of the engine, or beside it.
        """
        if missing := missing_program(self.rig, self._environment):
            raise InputError(missing)
        if found := self._serving():
            told = "before the rig's start command is run: stop what serves there, or name another port in the rig"
            raise InputError(f"{found} {told}; its stop command must end every engine that start has left")
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        except EngineFailed as failed:
            if kind is None:
                raise
            if issubclass(kind, EngineFailed):
                raise EngineFailed(f"{error}; {failed}") from None
            # Any other error, and an interrupt above all, ends more than this boot: it goes on as it is.

    def read_ready(self) -> Ready:
        """The rig's URL; the process is the start command's, the only one known here."""
        parts = urlsplit(self.rig.url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return Ready(parts.hostname or "", port, self.process.pid, self.rig.url)

    def wait_ready(self, deadline_s: float) -> Ready:
        deadline = time.monotonic() + deadline_s
        healthy = False
        while time.monotonic() < deadline:
            self._check_start()
            healthy = self._healthy(deadline - time.monotonic())
            if healthy and not self._missing():
                self.collect()
                ready = self.read_ready()
                self._listens = ready.host, ready.port
                return ready
            time.sleep(POLL_S)
        state = f"had not written {self._missing()[0]}" if healthy and self._missing() else "was not healthy"
        raise EngineFailed(f"rig at {self.rig.url} {state} within {deadline_s:g} s{self.last_words()}")

    def wait_profile(self, deadline_s: float) -> None:
        """Wait until every rank that names a profile has written it."""
        if not any(rank.profile for rank in self.rig.ranks):
            raise EngineFailed("--until profile: no rank of the rig names a profile to wait for")
        deadline = time.monotonic() + deadline_s
        while self._missing():
            self._check_start()
            if time.monotonic() > deadline:
                raise EngineFailed(f"not every rank wrote its profile within {deadline_s:g} s{self.last_words()}")
            time.sleep(POLL_S)
        self.collect()

    def alive(self) -> bool:
        return self._healthy(COMMAND_S) if self.rig.detached else super().alive()

    def ended_by(self) -> int | None:
        """A start command is often a script, and tells the signal that ended its engine by a code."""
        return signal_of(self.process.poll(), wrapped=True)

    def logs(self) -> list[Path]:
        return [self.log, *sorted(self.boot_dir.glob("rank*.log"))]

    def stop(self) -> None:
        """The stop command first, then the whole group of the start command; the ranks' files are taken along.

        Then wait until the server is silent: what is left of it after that, the next boot refuses. An interrupt
        waits for all of it; only a second one does not.
        """
        if self._stopped:
            super().stop()
            return
        with interrupts_wait():
            try:
                if self.rig.stop:
                    self._run(self.rig.stop, self._stop_s, "stop")
                self._stopped = True
            finally:
                try:
                    self.collect()
                finally:
                    super().stop()
            self._wait_silent()

    def stop_left(self) -> None:
        """End what this boot left running when its harness was killed. InputError if the command cannot be run."""
        if not self.rig.stop:
            return
        try:
            self._run(self.rig.stop, self._stop_s, "stop")
        except EngineFailed as error:
            raise InputError(f"{error}: a boot that was killed may have left its engine running") from None
        self._wait_silent()

    def _wait_silent(self) -> None:
        deadline = time.monotonic() + self._stop_s
        while self._serving() and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _serving(self) -> str:
        """The first address that is not silent and what is heard there, or ''."""
        for url in self._urls:
            for address in (f"{url}/health", f"{url}/v1/models"):
                status = find_status(address, SILENT_S)
                if status is not None and status not in NOBODY_BEHIND:
                    heard = f"answers {status}" if status else "takes connections"
                    return f"{redact(address)} {heard}"
        return ""

    def collect(self) -> None:
        """Copy what ranks have written so far into the boot's folder."""
        for number, rank in enumerate(self.rig.ranks):
            copies = (
                (rank.log, f"rank{number}.log"),
                (rank.profile, f"kv_profile.rank{number}.json"),
                (rank.conditions, f"conditions.rank{number}.json"),
                (rank.markers, f"markers.rank{number}.json"),
            )
            for source, name in copies:
                target = self.boot_dir / name
                if source and self._fresh(source) and Path(source).resolve() != target.resolve():
                    shutil.copyfile(source, target)

    def _fresh(self, path: str) -> bool:
        """Whether a file is of this boot: one that an earlier boot has left says nothing of this one."""
        state = _state(path)
        return state is not None and state != self._stale[path]

    def _missing(self) -> list[str]:
        """Profiles and conditions that ranks have not written yet."""
        named = (path for rank in self.rig.ranks for path in (rank.profile, rank.conditions) if path)
        return [path for path in named if not self._fresh(path)]

    def _check_start(self) -> None:
        code = self.process.poll()
        if code or (code == 0 and not self.rig.detached):
            raise EngineFailed(f"start command ended with code {code}{self.last_words()}")

    def _healthy(self, seconds: float) -> bool:
        limit = max(0.1, min(seconds, COMMAND_S))
        if self.rig.health:
            return self._run(self.rig.health, limit, "health") == 0
        return get_status(f"{self.rig.url}/health", limit) == 200

    def _run(self, line: Sequence[str], seconds: float, what: str) -> int | None:
        """One command of the rig, to its end; None if it did not end in time. Its output goes to a log of its own.

        In a session of its own: the Ctrl-C of a terminal is for the harness, which stops in order.
        """
        # Of a boot that was killed the folder may be gone.
        log_file = self.boot_dir / f"{what}.log" if self.boot_dir.is_dir() else os.devnull
        try:
            with open(log_file, "ab", opener=_no_link) as log:
                return subprocess.run(
                    line, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=seconds,
                    check=False, start_new_session=True,
                ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        except OSError as error:
            raise EngineFailed(f"cannot run the {what} command {line[0]}: {error.strerror or error}") from None


def missing_program(rig: Rig, environment: Mapping[str, str]) -> str:
    """One line about the first command of a rig whose program cannot be run with these variables, or ''.

    A program whose name is filled in later is not looked for.
    """
    path = os.pathsep.join(os.get_exec_path(environment))
    for name in ("start", "stop", "health"):
        for program in getattr(rig, name)[:1]:
            if not any(place in program for place in PLACES) and shutil.which(program, path=path) is None:
                return f"--rig: {name}: {program} is not there or cannot be executed; name a program that is"
    return ""


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def fill_rig(rig: Rig, arm: Arm, boot_dir: Path, args: Sequence[str]) -> Rig:
    """The rig of one boot, its places filled in; `{args}` as an argument of its own stands for several."""
    values = {"{boot_dir}": str(boot_dir.resolve()), "{arm}": arm.name, "{toggles}": arm.environment}

    def text(part: str) -> str:
        for place, value in values.items():
            part = part.replace(place, value)
        return part

    def line(parts: Sequence[str]) -> list[str]:
        return [filled for part in parts for filled in (args if part == "{args}" else [text(part)])]

    ranks = [rank.model_copy(update={k: text(v) for k, v in rank.model_dump(exclude_none=True).items()})
             for rank in rig.ranks]  # fmt: skip
    lines = {name: line(getattr(rig, name)) for name in ("start", "stop", "health")}
    return rig.model_copy(update={**lines, "url": text(rig.url), "ranks": ranks})
