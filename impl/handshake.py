"""What an engine tells the harness (torch-free): facts read back, bytes by component, and markers.

One file a rank in the boot's folder, `$DSBENCH_BOOT_DIR`; without that variable nothing is written
and the engine runs the same. A marker counts the times the *optimized branch itself* ran: it is
written by that branch, so a branch that is gone leaves no marker.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impl.toggles import find

ENVIRONMENT = "DSBENCH_BOOT_DIR"
SCHEMA = 1


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace `path` in one step: a reader sees the old content or the new, never half."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


class Markers:
    """Counts, per toggle, of optimized branches taken, of refusals, and of steps it leaves alone by design."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self.refused: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.skipped: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def take(self, toggle: str) -> None:
        """Call from inside the optimized branch, once each time it runs."""
        self.taken[toggle] += 1

    def refuse(self, toggle: str, reason: str) -> None:
        """Call where the toggle is on but a broken precondition sends the step down the baseline's branch."""
        self.refused[toggle][reason] += 1

    def skip(self, toggle: str, reason: str) -> None:
        """Call where the toggle is on and leaves a step alone by its own definition, such as the small-token path."""
        self.skipped[toggle][reason] += 1

    def to_json(self) -> dict[str, Any]:
        names = sorted({*self.taken, *self.refused, *self.skipped})
        return {
            name: {
                "taken": self.taken[name],
                "refused": dict(self.refused[name]),
                "skipped": dict(self.skipped[name]),
            }
            for name in map(_known, names)
        }


def _known(name: str) -> str:
    return find(name).name


class Handshake:
    """Writes one rank's files. All methods do nothing when there is no boot folder."""

    def __init__(self, folder: Path | None, rank: int = 0) -> None:
        self.folder = folder
        self.rank = rank
        self._last_markers = 0.0

    @classmethod
    def from_environment(cls, rank: int = 0) -> Handshake:
        folder = os.environ.get(ENVIRONMENT)
        if folder and not Path(folder).is_dir():
            raise ValueError(f"{ENVIRONMENT} names {folder}, which is no folder: create it, or unset the variable")
        return cls(Path(folder) if folder else None, rank)

    def conditions(self, facts: Mapping[str, Any]) -> None:
        self._write("conditions", facts)

    def kv_profile(self, profile: Mapping[str, Any]) -> None:
        self._write("kv_profile", profile)

    def markers(self, markers: Markers, *, at_most_every_s: float = 0.0) -> None:
        """Write the counts; with `at_most_every_s`, skip if the last write is younger than that."""
        now = time.monotonic()
        if at_most_every_s and now - self._last_markers < at_most_every_s:
            return
        self._last_markers = now
        self._write("markers", {"toggles": markers.to_json()})

    def ready(self, host: str, port: int) -> None:
        if self.folder:
            write_json(self.folder / "ready.json", {"host": host, "port": port, "pid": os.getpid()})

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        if self.folder:
            head = {"schema": SCHEMA, "rank": self.rank, "pid": os.getpid()}
            write_json(self.folder / f"{name}.rank{self.rank}.json", {**head, **content})
