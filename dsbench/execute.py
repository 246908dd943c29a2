"""From a plan to records: a fresh process a boot, in the planned order, every reading on the disk as it comes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsbench import __version__, records
from dsbench.engines import embedded
from dsbench.engines.client import BadAnswer, Client
from dsbench.engines.server import EngineFailed, Server
from dsbench.errors import InputError
from dsbench.metrics import metric
from dsbench.probes import acceptance, decode, identity, kv, output_law, prefill, smoke
from dsbench.probes.boot import Boot, Probe, ProbeFailed, Reading
from dsbench.records import Arm, BootEnded, BootStarted, Plan, PlannedBoot
from dsbench.store import BOOTS, RecordWriter, load_records

REFUSED = "ended with code 2"
"""An engine's answer to flags that cannot work; the first boot's ends the experiment before it begins."""

PROBES: dict[str, Probe] = {
    "kv": kv.run,
    "smoke": smoke.run,
    "identity": identity.run,
    "acceptance": acceptance.run,
    "output_law": output_law.run,
    "prefill": prefill.run,
    "decode": decode.run,
}


def execute(
    plan: Plan, folder: Path, *, command: Callable[[Plan, Arm], list[str]] | None = None, quiet: bool = False
) -> None:
    """Run every boot of the plan that has not ended yet, appending to `folder`/records.jsonl.

    A boot that fails is recorded and the next one starts. An interrupted boot of an earlier run is marked
    and repeated. Ctrl-C marks the running boot, ends its process group and is raised again.
    `command` gives the engine's command line; the embedded engine's unless told otherwise.
    """
    command = command or embedded.command
    with RecordWriter(folder) as writer, _progress(quiet) as progress:
        ended, attempts = _history(folder, writer)
        writer.write(records.Run(time=_now(), pid=os.getpid(), harness_version=__version__, resumed=bool(attempts)))
        task = progress.add_task("boots", total=len(plan.boots), completed=len(ended))
        for planned in plan.boots:
            if planned.number in ended:
                continue
            progress.update(task, description=_describe(plan, planned))
            ended_as = _boot(
                plan, planned, attempts.get(planned.number, 0) + 1, folder, command(plan, plan.arm(planned.arm)), writer
            )
            progress.advance(task)
            if not attempts and planned is plan.boots[0] and REFUSED in ended_as.reason:
                raise InputError(f"the engine refuses this build:{ended_as.reason.partition('ends:')[2]}")
            if not quiet and (ended_as.status == "failed" or not progress.console.is_terminal):
                progress.console.print(_line(plan, planned, ended_as), soft_wrap=True, markup=False, highlight=False)
        progress.update(task, description="all boots ended")


def _history(folder: Path, writer: RecordWriter) -> tuple[set[int], dict[int, int]]:
    """Boots that have ended, and attempts made so far; a boot without an end is marked interrupted."""
    started: dict[int, int] = {}
    ended: dict[int, BootEnded] = {}
    for record in load_records(folder)[0]:
        if isinstance(record, BootStarted):
            started[record.boot] = record.attempt
        elif isinstance(record, BootEnded):
            ended[record.boot] = record
    for boot, attempt in started.items():
        if boot not in ended or ended[boot].attempt < attempt:
            reason = "the harness stopped before this boot ended"
            writer.write(
                BootEnded(boot=boot, attempt=attempt, time=_now(), status="interrupted", reason=reason, seconds=0)
            )
            ended.pop(boot, None)
    return {boot for boot, end in ended.items() if end.status != "interrupted"}, started


def _boot(
    plan: Plan, planned: PlannedBoot, attempt: int, folder: Path, command: list[str], writer: RecordWriter
) -> BootEnded:
    """One engine, from an empty boot folder to the end of its process group."""
    boot_dir = folder / BOOTS / (planned.folder if attempt == 1 else f"{planned.folder}-attempt{attempt}")
    boot_dir.mkdir()
    of_boot: dict[str, Any] = {"boot": planned.number, "attempt": attempt}
    writer.write(BootStarted(**of_boot, time=_now(), arm=planned.arm, block=planned.block, phase=planned.phase))
    environment = {
        **embedded.environment(plan.arm(planned.arm)),
        **plan.arm(planned.arm).env,
        "DSBENCH_TOGGLES": plan.arm(planned.arm).environment,
        "DSBENCH_BOOT_DIR": str(boot_dir.resolve()),
    }
    start = time.monotonic()
    ready_seconds: float | None = None
    status, reason = "ok", ""
    left = plan.probes.names() if planned.phase == "measured" else plan.probes.warmup_names()
    try:
        with Server(command, environment, boot_dir, stop_s=plan.timeouts.stop) as server:
            url = _wait(server, plan)
            ready_seconds = time.monotonic() - start
            _record_files(boot_dir, of_boot, "ready", writer)
            reason = asyncio.run(_measure(plan, planned, server, url, of_boot, left, writer))
        _record_markers(boot_dir, of_boot, "end", writer)
    except (EngineFailed, ProbeFailed) as error:
        reason = str(error)
    except BaseException as error:
        status, reason = "interrupted", f"{type(error).__name__} {error}".strip()
        raise
    finally:
        if status == "ok" and reason:
            status = "failed"
            for name in left:
                writer.write(records.Check(**of_boot, probe=name, status="not-run", reason=reason))
        ended = BootEnded.model_validate(
            {
                **of_boot,
                "time": _now(),
                "status": status,
                "reason": reason,
                "seconds": time.monotonic() - start,
                "ready_seconds": ready_seconds,
                **_log_facts(boot_dir / "engine.log", folder),
            }
        )
        writer.write(ended)
    return ended


def _wait(server: Server, plan: Plan) -> str | None:
    """The address of the healthy server, or None once an engine that only profiles has ended."""
    if plan.until == "profile":
        server.wait_exit(plan.timeouts.boot)
        return None
    return server.wait_ready(plan.timeouts.boot).url


async def _measure(
    plan: Plan,
    planned: PlannedBoot,
    server: Server,
    url: str | None,
    of_boot: dict[str, Any],
    left: list[str],
    writer: RecordWriter,
) -> str:
    """Run the probes in order, taking each from `left` when it ended; returns why the rest cannot run, or ''."""
    boot_dir = server.boot_dir
    client = Client(url, str(plan.dims["name"]), plan.timeouts.probe) if url else None
    boot = Boot(plan, planned, client, _read_ranks(boot_dir, "conditions"), _read_ranks(boot_dir, "kv_profile"))
    try:
        if client:
            await _record_counters(client, server, of_boot, "ready", writer)
        for name in list(left):
            start = time.monotonic()
            failure = ""
            try:
                async with asyncio.timeout(plan.timeouts.probe):
                    async for reading in PROBES[name](boot):
                        writer.write(_observation(reading, planned, of_boot))
            except TimeoutError:
                failure = f"not done within {plan.timeouts.probe:g} s"
            except httpx.HTTPError as error:
                failure = f"{type(error).__name__} {error}".strip()
            except (ProbeFailed, BadAnswer, ValueError) as error:
                failure = str(error)
            seconds = time.monotonic() - start
            status: Literal["failed", "done"] = "failed" if failure else "done"
            writer.write(records.Check(**of_boot, probe=name, status=status, reason=failure, seconds=seconds))
            left.remove(name)
            if client:
                if not server.alive():
                    return f"the engine ended during the {name} probe{server.last_words()}"
                await _record_counters(client, server, of_boot, name, writer)
    finally:
        if client:
            await client.__aexit__()
    return ""


def _observation(reading: Reading, planned: PlannedBoot, of_boot: dict[str, Any]) -> records.Observation:
    return records.Observation(
        **of_boot,
        metric=reading.metric,
        value=reading.value,
        unit=metric(reading.metric).unit,
        rank=reading.rank,
        item=reading.item,
        phase=planned.phase,
        raw=reading.raw,
        text=reading.text,
    )


async def _record_counters(
    client: Client, server: Server, of_boot: dict[str, Any], moment: str, writer: RecordWriter
) -> None:
    """Counters and the process id that stands in ready.json now; a restart or a reset shows here."""
    try:
        values = await client.counters()
    except (httpx.HTTPError, BadAnswer, ValueError) as error:
        writer.write(records.Finding(**of_boot, code="no-counters", text=f"after {moment}: {error}"))
        return
    ready = server.read_ready()
    writer.write(records.Counters(**of_boot, moment=moment, pid=ready.pid if ready else None, values=values))


def _record_files(boot_dir: Path, of_boot: dict[str, Any], moment: str, writer: RecordWriter) -> None:
    for rank, values in _read_ranks(boot_dir, "conditions").items():
        writer.write(records.Conditions(**of_boot, rank=rank, values=values))
    for rank, values in _read_ranks(boot_dir, "kv_profile").items():
        writer.write(records.KvProfile(**of_boot, rank=rank, values=values))
    _record_markers(boot_dir, of_boot, moment, writer)


def _record_markers(boot_dir: Path, of_boot: dict[str, Any], moment: str, writer: RecordWriter) -> None:
    for rank, values in _read_ranks(boot_dir, "markers").items():
        toggles = values.get("toggles", {})
        writer.write(
            records.Markers.model_validate(
                {
                    **of_boot,
                    "rank": rank,
                    "moment": moment,
                    "pid": values.get("pid"),
                    "taken": {name: counts.get("taken", 0) for name, counts in toggles.items()},
                    "refused": {name: counts.get("refused", {}) for name, counts in toggles.items()},
                }
            )
        )


def _read_ranks(boot_dir: Path, name: str) -> dict[int, dict[str, Any]]:
    """`name`.rankN.json of every rank that wrote one. ProbeFailed if one is not a JSON object."""
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(boot_dir.glob(f"{name}.rank*.json")):
        number = path.name.removeprefix(f"{name}.rank").removesuffix(".json")
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ProbeFailed(f"{path.name}: {error}") from None
        if not number.isdigit() or not isinstance(content, dict):
            raise ProbeFailed(f"{path.name} is not the object of one rank")
        found[int(number)] = content
    return found


def _log_facts(log: Path, folder: Path) -> dict[str, Any]:
    try:
        with log.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"log": str(log.relative_to(folder)), "log_bytes": log.stat().st_size, "log_sha256": digest}
    except OSError:
        return {}


def _describe(plan: Plan, planned: PlannedBoot) -> str:
    where = "warm-up" if planned.block is None else f"block {planned.block}/{plan.blocks}"
    return f"{where} {planned.arm}"


def _line(plan: Plan, planned: PlannedBoot, ended: BootEnded) -> str:
    told = f"boot {planned.number}/{len(plan.boots)} {_describe(plan, planned)}: {ended.status}, {ended.seconds:.1f} s"
    return f"{told}; {ended.reason}" if ended.reason else told


def _progress(quiet: bool) -> Progress:
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=quiet or not console.is_terminal)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
