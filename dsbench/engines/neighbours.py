"""Other processes on an engine's GPUs while it runs: their memory is read as the engine's, their time is missing to it.

A process is the engine's where it is of the engine's session, descends from this harness, has the boot's folder in its
environment or is the pid that a rank tells. Nothing is told where none of NVML's pids is the engine's: they are another
namespace's then, or its engine runs elsewhere.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from dsbench.engines.strays import of_boot

PROC = Path("/proc")
GONE_LOOKS = 3
"""Looks at which a pid that /proc does not have must be met: one that has just ended may be met once."""


class Neighbours:
    """Who was met on each GPU at how many looks, of one boot."""

    def __init__(self, session: int | None, boot_dir: Path) -> None:
        """`session` is the engine's, None where this harness does not start it."""
        self._session = session
        self._boot_dir = boot_dir
        self._looks: Counter[int] = Counter()
        self._ours: set[int] = set()
        self._met: dict[int, Counter[int]] = {}
        self._names: dict[int, str] = {}

    def see(self, gpu: int, pids: Iterable[int] | None) -> None:
        """One look: the pids that compute on a GPU, None where NVML does not say."""
        if pids is None or self._session is None:
            return
        self._looks[gpu] += 1
        for pid in pids:
            if pid in self._ours or self._is_ours(pid):
                self._ours.add(pid)
            else:
                self._met.setdefault(gpu, Counter())[pid] += 1
                self._names.setdefault(pid, _name(pid))

    def lines(self) -> list[str]:
        """A line a GPU that other processes were on."""
        met = {pid for looks in self._met.values() for pid in looks}
        ours = self._ours | (_told(self._boot_dir) if met else set())
        if not ours & (self._ours | met):
            return []
        found = []
        for gpu, looks in sorted(self._met.items()):
            others = {p: n for p, n in looks.items() if p not in ours and (self._names[p] or n >= GONE_LOOKS)}
            if others:
                told = ", ".join(f"{pid} ({self._names[pid] or 'gone'})" for pid in sorted(others))
                found.append(
                    f"GPU {gpu} was used by others while the engine ran: {told}; at {max(others.values())} of "
                    f"{self._looks[gpu]} looks"
                )
        return found

    def _is_ours(self, pid: int) -> bool:
        if of_boot(pid, self._boot_dir):
            return True
        seen: set[int] = set()
        while pid > 1 and pid not in seen:
            if pid in (self._session, os.getpid()):
                return True
            seen.add(pid)
            parent, session = _parent_and_session(pid)
            if session is not None and session == self._session:
                return True
            pid = parent
        return False


def _parent_and_session(pid: int) -> tuple[int, int | None]:
    """0 and None of a process that is not there."""
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[1]), int(fields[3])
    except (OSError, ValueError, IndexError):
        return 0, None


def _name(pid: int) -> str:
    """'' of a process that is not there."""
    try:
        told = (PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return "".join(c if c.isprintable() else " " for c in told.strip()) or "?"


def _told(boot_dir: Path) -> set[int]:
    """The pids of ranks, by their own word: those of another host's tools descend from nobody here."""
    pids = set()
    for path in boot_dir.glob("markers.rank*.json"):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(values, dict) and isinstance(values.get("pid"), int):
            pids.add(values["pid"])
    return pids


__all__ = ["Neighbours"]
