"""Endpoints: servers that run already. Nothing is started or stopped, so a boot is one visit and no replicate."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from dsbench.engines.bounded_get import get_status
from dsbench.engines.engine import ReadBack, Running
from dsbench.engines.read_back import read_back_all
from dsbench.engines.server import EngineFailed, Ready
from dsbench.errors import InputError
from dsbench.records import Arm, Plan

POLL_S = 0.5
HEALTH_S = 10.0


class Endpoint:
    """Visits to the URLs of the arms."""

    def __init__(self, plan: Plan) -> None:
        missing = [arm.name for arm in plan.arms if not arm.url]
        if missing:
            raise InputError(f"--engine endpoint: arm {missing[0]} has no URL; give --endpoint {missing[0]}=http://...")
        self.plan = plan

    def boot(self, arm: Arm, boot_dir: Path) -> Visit:
        return Visit(str(arm.url), boot_dir)

    def read_back(self, arm: Arm, running: Running, url: str | None) -> ReadBack:
        return read_back_all(running, arm, url)


class Visit:
    """One visit to a running server."""

    def __init__(self, url: str, boot_dir: Path) -> None:
        self.url = url
        self.boot_dir = boot_dir
        self.log = boot_dir / "engine.log"
        self.on_phase: Callable[[str], None] = lambda phase: None
        self.killed_by: int | None = None

    @property
    def visible_gpus(self) -> str | None:
        """Those of this process: the server's are not known from here."""
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    @property
    def session(self) -> int | None:
        """The server is somebody else's."""
        return None

    def __enter__(self) -> Visit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the server as it was found."""

    def wait_ready(self, deadline_s: float) -> Ready:
        deadline = time.monotonic() + deadline_s
        while not self.alive():
            if time.monotonic() > deadline:
                raise EngineFailed(f"{self.url} did not answer /health within {deadline_s:g} s")
            time.sleep(POLL_S)
        return self.read_ready()

    def wait_profile(self, deadline_s: float) -> None:
        raise EngineFailed("--until profile: a server that runs already has no start to profile")

    def read_ready(self) -> Ready:
        """Where it answers; its process is not known from here."""
        parts = urlsplit(self.url)
        return Ready(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80), None, self.url)

    def alive(self) -> bool:
        return alive(self.url)

    def last_words(self) -> str:
        return f"; {self.url} does not answer /health"

    def logs(self) -> list[Path]:
        return []


def alive(url: str) -> bool:
    """Whether a server says that it is healthy."""
    return get_status(f"{url}/health", HEALTH_S) == 200
