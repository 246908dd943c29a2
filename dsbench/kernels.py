"""Kernels side by side: `python -m impl.bench` as a subprocess under any interpreter, its lines kept as they come."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dsbench.errors import InputError

MODULE = "impl.bench"
FILE = "kernels.jsonl"
MOST_STARTS = 6
"""Processes that kernels may end before the rest is left."""
VLLM = "vllm"
Event = dict[str, Any]


def measure(
    python: str, arguments: Sequence[str], out: Path | None, on_start: Callable[[Event], None] | None = None
) -> Iterator[Event]:
    """Events of one bench, appended to `out` and flushed as they come; `out` gets the command first.

    A process that a kernel ends is started again without that cell; the cell becomes a row with an `error`. What is
    measured is kept when the bench ends otherwise: the last event is then `stopped`, with its reason. Raises InputError
    for an interpreter that cannot be started, or without torch.
    """
    keep = _appender(out)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    keep({"event": "command", "command": shlex.join(["python", "-m", MODULE, *arguments]), "at": now})
    done: set[str] = set()
    lost: list[str] = []
    for _ in range(MOST_STARTS):
        begun: Event = {}
        for event in _process(python, [*arguments, *(f"--skip={cell}" for cell in (*lost, *sorted(done)))]):
            if event["event"] == "exit":
                reason = f"the bench ended with code {event['code']}: {event['last']}"
                break
            if event["event"] == "start":
                begun = event
                if on_start is not None:
                    on_start(event)
                continue
            if event["event"] == "row":
                done.add(label(event))
                begun = {}
            keep(event)
            if event["event"] == "end":
                return
            yield event
        if not begun:
            break
        lost.append(label(begun))
        row = {**begun, "event": "row", "error": reason}
        keep(row)
        yield row
    if not done and not lost and "No module named" in reason:
        raise InputError(f"--python {python}: {event['last']}; name an interpreter that has torch")
    stopped = {"event": "stopped", "reason": reason}
    keep(stopped)
    yield stopped


def _process(python: str, arguments: Sequence[str]) -> Iterator[Event]:
    """Events of one process, and at its end one `exit` with its code and the last line of its errors."""
    command = [python, "-m", MODULE, "--json", *arguments]
    # The bench must be the one this harness would import, never one of the current folder.
    environment = {**os.environ, "PYTHONPATH": _path(), "PYTHONSAFEPATH": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        except OSError as error:
            raise InputError(f"--python {python}: cannot be started ({error.strerror})") from None
        with process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if event := _event(line):
                        yield event
            except BaseException:
                process.terminate()
                raise
            code = process.wait()
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    yield {"event": "exit", "code": code, "last": lines[-1] if lines else "it said nothing"}


def _event(line: str) -> Event:
    """An event of the bench; empty for a line that something else has printed."""
    try:
        event = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return event if isinstance(event, dict) and "event" in event else {}


def label(cell: Event) -> str:
    """A cell's name, as `--skip` takes it."""
    parameters = ",".join(f"{key}={value}" for key, value in cell["parameters"].items())
    return f"{cell['op']}/{cell['form']}/{cell['backend']}/{cell['tokens']}/{parameters}"


def _path() -> str:
    """Lets the subprocess find the `impl` that this harness would import."""
    spec = importlib.util.find_spec("impl")
    places = [str(Path(place).parent) for place in (spec.submodule_search_locations if spec else None) or []]
    return os.pathsep.join([*places, *filter(None, [os.environ.get("PYTHONPATH", "")])])


def _appender(out: Path | None) -> Callable[[Event], None]:
    if out is None:
        return lambda event: None
    out.parent.mkdir(parents=True, exist_ok=True)

    def keep(event: Event) -> None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")

    return keep


def read(path: Path) -> list[Event]:
    """The events of a stored file, or of a folder's `kernels.jsonl`. Raises InputError for a file that is none."""
    file = path / FILE if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        raise InputError(f"--read {path}: not readable; name a folder or a file that dsbench kernels wrote") from None
    events = [event for line in lines if (event := _event(line))]
    if not events:
        raise InputError(f"--read {path}: no line of it is an event; name a file that dsbench kernels wrote")
    return events


def best_rows(events: Sequence[Event]) -> list[Event]:
    """For each operation, form, backend and number of tokens the fastest row, with `vs_vllm`: vLLM's time over its own.

    A later row of the same tuning replaces an earlier one. A cell that failed at every point keeps one error.
    """
    newest = {(label(e), e.get("dims")): e for e in events if e["event"] == "row"}
    best: dict[tuple[Any, ...], Event] = {}
    for row in newest.values():
        key = (row["op"], row["form"], row["backend"], row["tokens"])
        if key not in best or row.get("ms", float("inf")) < best[key].get("ms", float("inf")):
            best[key] = row
    vllm = {key: row["ms"] for key, row in best.items() if row["backend"] == VLLM and "ms" in row}
    return [
        {**row, "vs_vllm": vllm[at] / row["ms"] if (at := (op, form, VLLM, tokens)) in vllm and "ms" in row else None}
        for (op, form, _, tokens), row in best.items()
    ]


def machine(events: Sequence[Event]) -> Mapping[str, Any]:
    """What the newest run says of its machine."""
    return next((event for event in reversed(events) if event["event"] == "machine"), {})


def interpreter(python: str | None) -> str:
    return python or sys.executable


__all__ = ["FILE", "best_rows", "interpreter", "label", "machine", "measure", "read"]
