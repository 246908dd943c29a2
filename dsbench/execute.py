"""From a plan to records: a fresh process a boot, in the planned order, every reading on the disk as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import ValidationError

from dsbench import __version__, records
from dsbench.boot_files import (
    BootLogs,
    boot_dir_of,
    log_facts,
    next_attempt,
    record_devices,
    record_devices_before,
    record_markers,
    record_read_back,
    visible_gpus,
)  # fmt: skip
from dsbench.engines import devices
from dsbench.engines.client import BadAnswer, Client
from dsbench.engines.engine import Command, Engine, ReadBack, Running, end_left, engine_of
from dsbench.engines.gpu_lock import gpus_of, locked
from dsbench.engines.secrets import redact
from dsbench.engines.server import EngineFailed
from dsbench.engines.strays import end_strays
from dsbench.errors import InputError, ResultsLost
from dsbench.killed import marked, to_repeat
from dsbench.metrics import metric
from dsbench.probes import (
    acceptance,
    coherence,
    concurrency,
    decode,
    gpu_time,
    gsm8k,
    identity,
    instruction,
    kernels,
    kv,
    long_context,
    output_law,
    prefill,
    smoke,
    toolcall,
    unit,
    warm,
)
from dsbench.probes.boot import Boot, Probe, ProbeFailed, Reading
from dsbench.progress import progress_bar
from dsbench.records import BootEnded, BootStarted, Plan, PlannedBoot
from dsbench.store import BOOTS, RecordWriter, check_room, load_records, stored_digest

LOG = "engine.log"
REFUSED = "ended with code 2"
"""An engine's answer to flags that cannot work; the first boot's ends the experiment before it begins."""

GONE_S = 1.0

PROBES: dict[str, Probe] = {
    "kv": kv.run,
    "smoke": smoke.run,
    "gsm8k": gsm8k.run,
    "instruction": instruction.run,
    "identity": identity.run,
    "acceptance": acceptance.run,
    "output_law": output_law.run,
    "warm": warm.run,
    "coherence": coherence.run,
    "toolcall": toolcall.run,
    "prefill": prefill.run,
    "decode": decode.run,
    "concurrency": concurrency.run,
    "long_context": long_context.run,
    "gpu_time": gpu_time.run,
    "kernels": kernels.run,
    "unit": unit.run,
}


def execute(plan: Plan, folder: Path, *, command: Command | None = None, quiet: bool = False) -> None:
    """Run every boot of the plan that has not ended yet, appending to `folder`/records.jsonl.

    A boot that fails is recorded and the next one starts. An interrupted boot of an earlier run is marked
    and repeated, and so is one whose engine was killed, once. Ctrl-C marks the running boot, ends its process
    group and is raised again.
    `command` gives the engine's command line; the embedded engine's unless told otherwise.
    """
    engine = engine_of(plan, command)
    with RecordWriter(folder) as writer, locked(gpus_of(plan)), progress_bar(quiet=quiet) as progress:
        end_strays(folder / BOOTS)
        ended, attempts = _history(plan, folder, writer)
        writer.write(
            records.Run(
                time=_now(),
                pid=os.getpid(),
                harness_version=__version__,
                resumed=bool(attempts),
                plan_sha256=stored_digest(folder),
            )
        )
        task = progress.add_task("boots", total=len(plan.boots), completed=len(ended))
        for planned in plan.boots:
            if planned.number in ended or planned.reused is not None:
                continue
            progress.update(task, description=_describe(plan, planned))

            def tell(phase: str, planned: PlannedBoot = planned) -> None:
                progress.update(task, description=f"{_describe(plan, planned)} {phase}")

            with _storing(folder):
                attempt = next_attempt(folder, planned, attempts.get(planned.number, 0))
                ended_as = _boot(plan, planned, attempt, folder, engine, writer, tell)
            progress.advance(task)
            if not attempts and planned is plan.boots[0] and REFUSED in ended_as.reason:
                raise InputError(f"the engine refuses this build:{ended_as.reason.partition('ends:')[2]}")
            if not quiet and (ended_as.status == "failed" or not progress.console.is_terminal):
                progress.console.print(_line(plan, planned, ended_as), soft_wrap=True, markup=False, highlight=False)
        progress.update(task, description="all boots ended")


@contextlib.contextmanager
def _storing(folder: Path) -> Iterator[None]:
    """A disk that takes nothing more ends the run in one line, whichever file it was that could not be written."""
    try:
        yield
    except ResultsLost as error:
        told = str(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        told = f"cannot write {error.filename or folder}: {error.strerror or error}"
    else:
        return
    raise ResultsLost(f"{told}; mend it and go on with: dsbench ab --resume {folder}") from None


def _history(plan: Plan, folder: Path, writer: RecordWriter) -> tuple[set[int], dict[int, int]]:
    """Boots that have ended, and attempts made so far.

    One without an end is marked interrupted, its files cleaned; one whose engine was killed is marked to run again.
    What interrupted a boot may have left its engine, too.
    """
    reused = {boot.number for boot in plan.boots if boot.reused is not None}
    started: dict[int, int] = {}
    ended: dict[int, BootEnded] = {}
    left: dict[int, BootEnded] = {}
    past = load_records(folder)[0]
    for record in past:
        if isinstance(record, BootStarted) and record.boot not in reused:
            started[record.boot] = record.attempt
        elif isinstance(record, BootEnded):
            ended[record.boot] = record
            if record.status != "interrupted":
                left.pop(record.boot, None)
            elif record.log:  # without a log none was started
                left[record.boot] = record
    planned = {boot.number: boot for boot in plan.boots}
    for boot, attempt in started.items():
        if boot not in ended or ended[boot].attempt < attempt:
            if boot in planned:
                end_left(plan, plan.arm(planned[boot].arm), boot_dir_of(folder, planned[boot], attempt))
            reason = "the harness stopped before this boot ended"
            told = {"time": _now(), "status": "interrupted", "reason": reason, "seconds": 0}
            facts = log_facts(boot_dir_of(folder, planned[boot], attempt) / LOG, folder) if boot in planned else {}
            writer.write(BootEnded.model_validate({"boot": boot, "attempt": attempt, **told, **facts}))
            ended.pop(boot, None)
        elif boot in left and boot in planned:
            end_left(plan, plan.arm(planned[boot].arm), boot_dir_of(folder, planned[boot], left[boot].attempt))
    for end, reason in to_repeat(plan, past):
        writer.write(marked(end, reason, _now()))
        ended.pop(end.boot)
    return {boot for boot, end in ended.items() if end.status != "interrupted"}, started


def _boot(
    plan: Plan,
    planned: PlannedBoot,
    attempt: int,
    folder: Path,
    engine: Engine,
    writer: RecordWriter,
    tell: Callable[[str], None],
) -> BootEnded:
    """One engine, from an empty boot folder to the end of its process group; `tell` is told how far its start is."""
    boot_dir = boot_dir_of(folder, planned, attempt)
    arm = plan.arm(planned.arm)
    of_boot: dict[str, Any] = {"boot": planned.number, "attempt": attempt}
    # The record first: a harness that is killed in between must not find a folder that no attempt accounts for.
    writer.write(BootStarted(**of_boot, time=_now(), arm=planned.arm, block=planned.block, phase=planned.phase))
    boot_dir.mkdir()
    record_devices_before(plan, arm, of_boot, writer)
    start = time.monotonic()
    ready_seconds: float | None = None
    status, reason = "ok", ""
    left = plan.probes.due(planned.block)
    logs = BootLogs(of_boot, writer)
    booted: Running | None = None
    try:
        booted = engine.boot(arm, boot_dir)
        with booted as running:
            running.on_phase = tell
            logs.watch(running)
            url = _wait(running, plan)
            ready_seconds = time.monotonic() - start
            told = engine.read_back(arm, running, url)
            record_read_back(told, of_boot, writer)
            record_markers(boot_dir, of_boot, "ready", writer)
            asking = [name for name in left if plan.probes.table(name).needs_engine]
            reason = asyncio.run(_measure(plan, planned, running, url, told, of_boot, asking, left, logs, writer))
            record_devices(of_boot, "after", devices.reading(visible_gpus(arm)), writer)
            logs.record_faults()
            if any(kv.grows(profile) for profile in told.kv_profiles.values()):
                time.sleep(kv.WRITTEN_S)
        if running.killed_by is not None:
            reason = reason or f"the engine ended after its last probe{running.last_words()}"
        record_markers(boot_dir, of_boot, "end", writer)
        if "kv" in plan.probes.due(planned.block):
            for rank, profile in kv.at_end(told.kv_profiles, boot_dir).items():
                writer.write(records.KvProfile(**of_boot, rank=rank, values=profile))
                reading = Reading(f"kv.{kv.SERVED}", profile[kv.SERVED], rank=rank)
                writer.write(_observation(reading, planned, of_boot))
        if left and not reason:
            asyncio.run(_measure(plan, planned, running, None, told, of_boot, list(left), left, logs, writer))
        if reason:
            check_room(boot_dir)
    except (EngineFailed, ProbeFailed) as error:
        reason = str(error)
        logs.record_faults()
        try:
            check_room(boot_dir)
        except ResultsLost:
            status = "interrupted"
            raise
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
                # What ends harness and engine at once is no kill of the engine.
                "killed_by": booted.killed_by if booted and status != "interrupted" else None,
                **log_facts(boot_dir / LOG, folder),
            }
        )
        writer.write(ended)
    return ended


def _wait(running: Running, plan: Plan) -> str | None:
    """The address of the healthy server, or None once an engine has written the profile that alone was wanted."""
    if plan.until == "profile":
        running.wait_profile(plan.timeouts.boot)
        return None
    return running.wait_ready(plan.timeouts.boot).url


async def _measure(
    plan: Plan,
    planned: PlannedBoot,
    running: Running,
    url: str | None,
    told: ReadBack,
    of_boot: dict[str, Any],
    names: list[str],
    left: list[str],
    logs: BootLogs,
    writer: RecordWriter,
) -> str:
    """Run these probes in order, taking each from `left` when it ended; returns why the rest cannot run, or ''."""
    client = Client(url, told.model or str(plan.dims.get("name", "")), plan.timeouts.probe) if url else None
    boot = Boot(plan, planned, client, told.conditions, told.kv_profiles, running.boot_dir)
    try:
        if client:
            await _record_counters(client, plan.timeouts.probe, running, of_boot, "ready", writer)
        for name in names:
            start = time.monotonic()
            failure = ""
            deadline = plan.probes.table(name).deadline() or plan.timeouts.probe
            logs.mark()
            try:
                async with asyncio.timeout(deadline):
                    async for reading in PROBES[name](boot):
                        writer.write(_observation(reading, planned, of_boot))
            except TimeoutError:
                failure = f"not done within {deadline:g} s"
            except httpx.HTTPError as error:
                failure = f"{type(error).__name__} {error}".strip()
            except (ProbeFailed, BadAnswer, ValueError) as error:
                failure = str(error)
            if (
                plan.probes.table(name).timed
                and planned.phase == "measured"
                and not failure
                and (compiled := logs.compiled())
            ):
                failure = f"the server compiled while it was timed: {compiled}"
            seconds = time.monotonic() - start
            status: Literal["failed", "done"] = "failed" if failure else "done"
            writer.write(records.Check(**of_boot, probe=name, status=status, reason=failure, seconds=seconds))
            left.remove(name)
            if client:
                if await _ended(running, bool(failure)):
                    return f"the engine ended during the {name} probe{running.last_words()}"
                await _record_counters(client, plan.timeouts.probe, running, of_boot, name, writer)
    finally:
        if client:
            await client.__aexit__()
    return ""


async def _ended(running: Running, suspicious: bool) -> bool:
    """Whether the engine is gone; after a failure it gets a moment, for connections end before their process does."""
    deadline = time.monotonic() + (GONE_S if suspicious else 0.0)
    while running.alive():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.02)
    return True


def _observation(reading: Reading, planned: PlannedBoot, of_boot: dict[str, Any]) -> records.Observation:
    """A reading as a record. ProbeFailed if it is none: a rank may write anything."""
    try:
        return records.Observation(
            **of_boot,
            metric=reading.metric,
            value=reading.value,
            unit=metric(reading.metric).unit,
            rank=reading.rank,
            item=reading.item,
            cluster=reading.cluster,
            phase=planned.phase,
            raw=reading.raw,
            text=reading.text,
        )
    except ValidationError:
        shown = redact(str(reading.value))[:80]
        raise ProbeFailed(f"{reading.metric} reads {shown!r}, which cannot be recorded") from None


async def _record_counters(
    client: Client, deadline_s: float, running: Running, of_boot: dict[str, Any], moment: str, writer: RecordWriter
) -> None:
    """Counters and the process id that stands in ready.json now; a restart or a reset shows here."""
    try:
        async with asyncio.timeout(deadline_s):  # the client bounds each read, not their sum
            values = await client.counters()
    except TimeoutError:
        late = f"after {moment}: /metrics was not whole within {deadline_s:g} s"
        writer.write(records.Finding(**of_boot, code="no-counters", text=late))
        return
    except (httpx.HTTPError, BadAnswer, ValueError) as error:
        writer.write(records.Finding(**of_boot, code="no-counters", text=f"after {moment}: {error}"))
        return
    ready = running.read_ready()
    writer.write(records.Counters(**of_boot, moment=moment, pid=ready.pid if ready else None, values=values))


def _describe(plan: Plan, planned: PlannedBoot) -> str:
    where = "warm-up" if planned.block is None else f"block {planned.block}/{plan.blocks}"
    return f"{where} {planned.arm}"


def _line(plan: Plan, planned: PlannedBoot, ended: BootEnded) -> str:
    told = f"boot {planned.number}/{len(plan.boots)} {_describe(plan, planned)}: {ended.status}, {ended.seconds:.1f} s"
    return f"{told}; {ended.reason}" if ended.reason else told


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
