"""What a boot leaves beside its readings: read-back facts, markers, logs and accelerators, as records."""

from __future__ import annotations

import hashlib
import itertools
import os
import weakref
from pathlib import Path
from typing import Any, Literal

from dsbench import records
from dsbench.engines import devices
from dsbench.engines.engine import ReadBack, Running, read_ranks
from dsbench.engines.neighbours import Neighbours
from dsbench.engines.secrets import redact, redact_files
from dsbench.engines.server import EngineFailed
from dsbench.engines.under_load import UnderLoad
from dsbench.parse.health import fatal_findings
from dsbench.parse.progress import compile_lines
from dsbench.records import Arm, Plan, PlannedBoot
from dsbench.store import BOOTS, RecordWriter

FAULTS_SHOWN = 5
WHEN = {"before": "before a boot", "measured": "under load", "after": "after a boot"}
DRAIN_S = 120.0
"""Longest wait for an accelerator that an earlier boot gives back."""


def boot_dir_of(folder: Path, planned: PlannedBoot, attempt: int) -> Path:
    """The folder of one attempt at a boot, in a result."""
    return folder / BOOTS / (planned.folder if attempt == 1 else f"{planned.folder}-attempt{attempt}")


def next_attempt(folder: Path, planned: PlannedBoot, recorded: int) -> int:
    """The first attempt after those recorded that has no folder yet: of records that were cut off, folders stay."""
    return next(n for n in itertools.count(recorded + 1) if not os.path.lexists(boot_dir_of(folder, planned, n)))


def record_read_back(told: ReadBack, of_boot: dict[str, Any], writer: RecordWriter) -> None:
    for rank, values in told.conditions.items():
        writer.write(records.Conditions(**of_boot, rank=rank, values=values))
    for rank, values in told.kv_profiles.items():
        writer.write(records.KvProfile(**of_boot, rank=rank, values=values))
    for code, text in told.findings:
        writer.write(records.Finding(**of_boot, code=code, text=redact(text)))


def record_markers(
    boot_dir: Path, of_boot: dict[str, Any], moment: Literal["ready", "end"], writer: RecordWriter
) -> None:
    for rank, values in read_ranks(boot_dir, "markers").items():
        try:
            toggles = dict(values.get("toggles", {}))
            found = records.Markers(
                **of_boot,
                rank=rank,
                moment=moment,
                pid=values.get("pid"),
                taken={name: counts.get("taken", 0) for name, counts in toggles.items()},
                refused={name: counts.get("refused", {}) for name, counts in toggles.items()},
            )
        except (AttributeError, TypeError, ValueError):
            raise EngineFailed(
                f"markers.rank{rank}.json does not count toggles: taken, and refused by reason"
            ) from None
        writer.write(found)


def record_devices_before(plan: Plan, arm: Arm, of_boot: dict[str, Any], writer: RecordWriter) -> None:
    """Wait for idle accelerators where the engine is another program's, and note what stays busy."""
    visible = visible_gpus(arm)
    if plan.engine in ("embedded", "endpoint"):
        record_devices(of_boot, "before", devices.reading(visible), writer)
        return
    values, busy = devices.drained(min(DRAIN_S, plan.timeouts.boot), lambda: devices.reading(visible))
    record_devices(of_boot, "before", values, writer)
    if busy:
        writer.write(records.Finding(**of_boot, code="device-busy", text=busy))
    for line in devices.unknown(values):
        writer.write(records.Finding(**of_boot, code="device-unknown", text=line))


def visible_gpus(arm: Arm) -> str | None:
    """CUDA_VISIBLE_DEVICES as an arm's engine gets it."""
    return arm.env.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES"))


def record_devices(
    of_boot: dict[str, Any],
    moment: Literal["before", "after", "measured"],
    values: dict[str, Any],
    writer: RecordWriter,
) -> None:
    """Where there is no accelerator there is nothing to record; why one is not known is a finding."""
    if values["gpus"]:
        writer.write(records.Devices(**of_boot, moment=moment, values=values))
    if why := values.get("unknown"):
        text = f"{why}: what GPUs do {WHEN[moment]} is unknown"
        writer.write(records.Finding(**of_boot, code="device-unknown", text=text))


class BootLogs:
    """What is seen of one boot while it runs: what its logs have got since a moment, and at its end the faults.

    Its GPUs are looked at, too: that somebody else was on them, or that they were slowed down while the engine was
    measured, is as much a fault.
    """

    def __init__(self, of_boot: dict[str, Any], writer: RecordWriter) -> None:
        self._of_boot = of_boot
        self._writer = writer
        self._running: Running | None = None
        self._marks: dict[Path, int] = {}
        self._recorded = False
        self._load: UnderLoad | None = None
        self._neighbours: Neighbours | None = None

    def watch(self, running: Running) -> None:
        self._running = running
        self._neighbours = Neighbours(running.session, running.boot_dir)
        self._load = UnderLoad(running.visible_gpus, self._neighbours)
        self._load.start()
        weakref.finalize(self, self._load.over.set)  # of a boot that is broken off

    def mark(self) -> None:
        """From here on lines are new, and the engine is measured."""
        if self._load is not None and self._running is not None and self._running.alive():
            self._load.measure()
        self._marks = {path: _size(path) for path in self._logs()}

    def compiled(self) -> str:
        """The first new line that tells of compiling, or ''."""
        for path in self._logs():
            try:
                with path.open("rb") as log:
                    log.seek(self._marks.get(path, 0))
                    lines = compile_lines(redact(log.read().decode("utf-8", "replace")))  # before they are cut
            except OSError:
                continue
            if lines:
                return lines[0]
        return ""

    def record_faults(self) -> None:
        """A finding for each of the first fatal events; call before the engine is stopped, which makes it complain."""
        if self._recorded:
            return
        self._recorded = True
        if self._load is not None:
            seen, slowed = self._load.stop()
            record_devices(self._of_boot, "measured", seen, self._writer)
            for line in slowed:
                self._writer.write(records.Finding(**self._of_boot, code="device-slowed", text=line))
            for line in self._neighbours.lines() if self._neighbours else ():
                self._writer.write(records.Finding(**self._of_boot, code="device-busy", text=line))
        for path in self._logs():
            try:
                found = fatal_findings(redact(path.read_bytes().decode("utf-8", "replace")))  # before they are cut
            except OSError:
                continue
            for fault in found[:FAULTS_SHOWN]:
                where = f"{path.name}:{fault.line}"
                rank = f" of {fault.rank}" if fault.rank else ""
                text = f"{fault.kind}{rank}, {where}: {fault.text}"
                self._writer.write(records.Finding(**self._of_boot, code="fatal-log", text=text))

    def _logs(self) -> list[Path]:
        return self._running.logs() if self._running else []


def log_facts(log: Path, folder: Path) -> dict[str, Any]:
    """Path, size and digest of a log; empty where there is none. Secrets are taken out of its folder first."""
    try:
        redact_files(log.parent)
        with log.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"log": str(log.relative_to(folder)), "log_bytes": log.stat().st_size, "log_sha256": digest}
    except OSError:
        return {}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
