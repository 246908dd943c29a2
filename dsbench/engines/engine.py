"""What every engine is to the harness: something that starts one boot, and what is read back from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from dsbench.engines.boot_json import read_object
from dsbench.engines.server import EngineFailed, Ready
from dsbench.errors import InputError
from dsbench.records import Arm, Plan

TRACES = "traces"
"""Folder of a boot that a server's profiler writes into."""

Command = Callable[[Plan, Arm], list[str]]
Ranks = dict[int, dict[str, Any]]


class Running(Protocol):
    """One boot: entered to start it, left to end all of it."""

    boot_dir: Path
    log: Path
    on_phase: Callable[[str], None]
    killed_by: int | None

    @property
    def visible_gpus(self) -> str | None:
        """CUDA_VISIBLE_DEVICES of its processes."""

    @property
    def session(self) -> int | None:
        """Session of its processes; None where this harness does not start it."""

    def __enter__(self) -> Running: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def wait_ready(self, deadline_s: float) -> Ready: ...

    def wait_profile(self, deadline_s: float) -> None: ...

    def read_ready(self) -> Ready | None: ...

    def alive(self) -> bool: ...

    def last_words(self) -> str: ...

    def logs(self) -> list[Path]: ...


@dataclass
class ReadBack:
    """What a boot says of itself."""

    model: str
    """Name that requests ask for."""
    conditions: Ranks = field(default_factory=dict)
    kv_profiles: Ranks = field(default_factory=dict)
    findings: list[tuple[str, str]] = field(default_factory=list)
    """Codes and lines about what does not fit together."""


class Engine(Protocol):
    """One kind of engine, for one plan."""

    def boot(self, arm: Arm, boot_dir: Path) -> Running: ...

    def read_back(self, arm: Arm, running: Running, url: str | None) -> ReadBack:
        """Facts and profile of a boot that is ready (or profiled: `url` is None)."""
        ...


def boot_environment(arm: Arm, boot_dir: Path) -> dict[str, str]:
    """Variables of one boot, beside those that its engine adds."""
    return {**arm.env, "DSBENCH_TOGGLES": arm.environment, "DSBENCH_BOOT_DIR": str(boot_dir.resolve())}


def read_ranks(boot_dir: Path, name: str) -> Ranks:
    """`name`.rankN.json of every rank that wrote one. EngineFailed if one is not a JSON object."""
    found: Ranks = {}
    for path in sorted(boot_dir.glob(f"{name}.rank*.json")):
        number = path.name.removeprefix(f"{name}.rank").removesuffix(".json")
        if not number.isdecimal():
            raise EngineFailed(f"{path.name} is not the file of one rank")
        try:
            found[int(number)] = read_object(path)
        except OSError as error:
            raise EngineFailed(f"{path.name}: {error.strerror or error}") from None
        except ValueError as error:
            raise EngineFailed(f"{path.name}: {str(error).partition(';')[0]}") from None
    return found


def end_left(plan: Plan, arm: Arm, boot_dir: Path) -> None:
    """End the engine of a boot whose harness was killed or interrupted, where only the user's own commands know it.

    InputError if they cannot be run. The others end with their harness, or are known by their environment.
    """
    if plan.rig is not None:
        from dsbench.engines.command import Rigged

        Rigged(plan).boot(arm, boot_dir).stop_left()


def refuse_missing(plan: Plan) -> None:
    """InputError for a command of the plan's rig that cannot be run for some arm."""
    if plan.rig is not None:
        from dsbench.engines.command import missing_program

        for arm in plan.arms:
            if missing := missing_program(plan.rig, {**os.environ, **arm.env}):
                raise InputError(missing)


def engine_of(plan: Plan, command: Command | None = None) -> Engine:
    """The engine of a plan. `command` gives another command line for the embedded one."""
    if plan.engine == "vllm":
        from dsbench.engines.vllm import Vllm

        return Vllm(plan)
    if plan.engine == "command":
        from dsbench.engines.command import Rigged

        return Rigged(plan)
    if plan.engine == "endpoint":
        from dsbench.engines.endpoint import Endpoint

        return Endpoint(plan)
    from dsbench.engines.embedded import Embedded

    return Embedded(plan, command)
