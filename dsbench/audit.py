"""The audit as a subprocess: the harness never imports what it audits, and a crash costs one check its answer."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

MODULE = "impl.audit"


class Finding(BaseModel):
    model_config = ConfigDict(frozen=True)

    code: str
    what: str
    where: str
    mend: str


class Answer(BaseModel):
    """What one check says."""

    model_config = ConfigDict(frozen=True)

    check: str
    question: str = ""
    status: Literal["clean", "findings", "not-run"]
    findings: tuple[Finding, ...] = ()
    evidence: dict[str, int | float | str] = {}
    reason: str = ""
    """Why it could not run."""
    seconds: float = 0.0


def examine(
    names: Sequence[str], toggle: str | None, *, on_start: Callable[[str], None] | None = None
) -> Iterator[Answer]:
    """One answer for each check of `names`, as it comes. A check that the process ended without answering is not-run.

    `on_start` is called with a check's name when it begins.
    """
    open_checks = list(names)
    command = [sys.executable, "-P", "-m", MODULE, "--json", *(["--toggle", toggle] if toggle else [])]
    environment = {**os.environ, "PYTHONPATH": _path()}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                event = _event(line)
                if event.get("event") == "start" and on_start is not None:
                    on_start(event["check"])
                if event.get("event") == "report" and event["check"] in open_checks:
                    open_checks.remove(event["check"])
                    yield Answer.model_validate({k: v for k, v in event.items() if k != "event"})
        except BaseException:
            process.terminate()
            raise
        code = process.wait()
        errors.seek(0)
        last = (errors.read().strip().splitlines() or ["it said nothing"])[-1]
    for name in open_checks:
        yield Answer(check=name, status="not-run", reason=f"the audit's process ended with code {code}: {last}")


def _event(line: str) -> dict[str, Any]:
    """An event of the audit; empty for a line that something else has printed."""
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) else {}


def _path() -> str:
    """Lets the subprocess find the `impl` that the harness would import, and never one of the current folder."""
    spec = importlib.util.find_spec("impl")
    places = [str(Path(place).parent) for place in (spec.submodule_search_locations if spec else None) or []]
    return os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH", "")])])
