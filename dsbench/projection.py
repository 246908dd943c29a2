"""The projection as a subprocess: `python -m impl.projection`, whose torch the harness never imports."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dsbench.errors import InputError

MODULE = "impl.projection"
USAGE_ERROR = 2


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Site(_Read):
    where: str
    shape: list[int]
    dtype: str
    bytes: int


class Phase(_Read):
    name: str
    bytes: int
    on_line: bool
    sites: list[Site]


class ProjectedArm(_Read):
    toggles: list[str]
    weights_bytes: int
    workspace_bytes: int
    phases: list[Phase]
    modelled_reservation_bytes: int
    index_maps_per_step: int
    profiled_bytes: int
    line_bytes: int


class ProjectedStep(_Read):
    toggle: str
    line_bytes: int
    modelled: bool
    phases: dict[str, int]
    index_maps: int
    refused: list[str]


class Projection(_Read):
    """What `python -m impl.projection --json` answers; every figure in it is projected."""

    dims: dict[str, Any]
    platform: str
    tp: int
    padded_heads: int
    local_heads: int
    arms: list[ProjectedArm]
    alone: list[ProjectedStep]
    cumulative: list[ProjectedStep]
    apart: list[ProjectedStep]


def project(arguments: Sequence[str], progress: Callable[[int, int], None] | None = None) -> Projection:
    """The answer to some arguments. `progress` is told arms done, and arms in all.

    Raises InputError with the projection's own line for arguments it refuses, and for a process that has died.
    """
    command = [sys.executable, "-P", "-m", MODULE, "--json", "--progress", *arguments]
    environment = {**os.environ, "PYTHONPATH": _path()}
    with (
        tempfile.TemporaryFile("w+") as answer,
        subprocess.Popen(command, stdout=answer, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        assert process.stderr is not None
        told: list[str] = []
        try:
            for line in process.stderr:
                done, slash, of = line.strip().partition("/")
                if slash and done.isdigit() and of.isdigit():
                    if progress is not None:
                        progress(int(done), int(of))
                elif line.strip():
                    told.append(line.strip())
        except BaseException:
            process.terminate()
            raise
        code = process.wait()
        answer.seek(0)
        text = answer.read()
    last = told[-1] if told else "it said nothing"
    if code == USAGE_ERROR:
        raise InputError(last.partition(": ")[2] or last)
    if code:
        raise InputError(f"the projection ended with code {code}: {last}")
    try:
        return Projection.model_validate(json.loads(text))
    except (json.JSONDecodeError, ValidationError) as error:
        raise InputError(
            f"the projection answered something else than it should: {str(error).splitlines()[0]}"
        ) from None


def _path() -> str:
    """Lets the subprocess find the `impl` that the harness would import, and never one of the current folder."""
    spec = importlib.util.find_spec("impl")
    places = [str(Path(place).parent) for place in (spec.submodule_search_locations if spec else None) or []]
    return os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH", "")])])
