"""From a plan to records over the hosts of a pool: free hosts take the next block, and a lost one gives its back."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from dsbench import __version__, records
from dsbench.boot_files import boot_dir_of, next_attempt
from dsbench.errors import InputError, ResultsLost
from dsbench.fingerprint import Host
from dsbench.killed import marked, to_repeat
from dsbench.pool.hosts import Ended, Files, Line, Lost, Message, Node, Pool
from dsbench.pool.unit import unpack
from dsbench.progress import progress_bar
from dsbench.record_lines import parse
from dsbench.records import RECORD, BootEnded, BootStarted, Plan, PlannedBoot, Record, Run
from dsbench.store import RecordWriter, load_records, stored_digest

LOOK_S = 1.0


def spread(plan: Plan, folder: Path, pool: Pool, *, quiet: bool = False) -> None:
    """Run every block of the plan that is not whole yet, appending to `folder`/records.jsonl as records are made.

    A block runs whole on one host, whose first unit are warm-ups of its own. If the host is lost the block's boots
    are marked and it runs again elsewhere. ResultsLost if no host is left.
    """
    with RecordWriter(folder) as writer, pool, progress_bar(quiet=quiet) as progress:
        nodes = pool.nodes()
        driver = _Driver(plan, folder, writer, nodes)
        task = progress.add_task("boots", total=sum(boot.phase == "measured" for boot in plan.boots))
        try:
            while driver.left():
                for node, unit in driver.given():
                    pool.start(node, unit)
                progress.update(task, completed=driver.measured(), description=driver.describe())
                found = pool.next(LOOK_S)
                told = driver.hear(*found) if found else ""
                if told and not quiet:
                    progress.console.print(told, soft_wrap=True, markup=False, highlight=False)
        except BaseException as error:
            driver.stop(f"{type(error).__name__} {error}".strip())
            raise


@dataclass
class _Unit:
    """Boots that one node has at work: the warm-ups, or a block."""

    boots: list[PlannedBoot]
    block: int | None
    attempts: dict[int, int] = field(default_factory=dict)
    """Of those that have started."""
    ended: dict[int, BootEnded] = field(default_factory=dict)
    crc32: int = 0
    """Checksum of the last line that the node told, which the next one must name."""


class _Driver:
    """What is done, what is at work, and what is left."""

    def __init__(self, plan: Plan, folder: Path, writer: RecordWriter, nodes: list[Node]) -> None:
        self.plan = plan
        self.folder = folder
        self.writer = writer
        self._attempts: dict[int, int] = {}
        self._warm: set[str] = set()
        self._work: dict[str, _Unit] = {}
        self._warmups = [boot for boot in plan.boots if boot.block is None]
        self._blocks = {boot.block: [b for b in plan.boots if b.block == boot.block] for boot in plan.boots}
        self._blocks.pop(None, None)
        self._nodes = {node.id: node for node in nodes}
        past = load_records(folder)[0]
        self._hosts = _named(nodes, past)
        self._done: dict[int, BootEnded] = {}
        self._resume(past)
        self._queue = deque(block for block, boots in self._blocks.items() if not self._whole(boots))
        self._check()
        writer.write(
            Run(time=_now(), pid=os.getpid(), harness_version=__version__, resumed=bool(past),
                hosts=[self._hosts[node.id] for node in nodes], plan_sha256=stored_digest(folder))
        )  # fmt: skip

    def left(self) -> bool:
        return bool(self._queue or self._work)

    def measured(self) -> int:
        return len(self._done) + sum(len(unit.ended) for unit in self._work.values() if unit.block is not None)

    def describe(self) -> str:
        at_work = (f"{self._hosts[node].name}: {_what(unit)}" for node, unit in self._work.items())
        return ", ".join(at_work) or "boots"

    # --- giving ---------------------------------------------------------------------------------------------------

    def given(self) -> list[tuple[Node, Plan]]:
        """A unit for every idle node, as long as blocks are left."""
        if self._queue and not self._nodes:
            raise ResultsLost(
                f"no host of the pool is left; start nodes and go on with: dsbench ab --resume {self.folder}"
            )
        found = []
        for node in self._nodes.values():
            if node.id in self._work or not self._queue:
                continue
            if self._warmups and self._hosts[node.id].name not in self._warm:
                unit = _Unit(self._warmups, None)
            else:
                block = self._queue.popleft()
                unit = _Unit(self._blocks[block], block)
            self._work[node.id] = unit
            found.append((node, self.plan.model_copy(update={"boots": unit.boots, "looks": [], "pool": None})))
        return found

    # --- taking ---------------------------------------------------------------------------------------------------

    def hear(self, node: Node, message: Message) -> str:
        """Take one message of a node; returns a line for a person where a boot has ended or a host is lost."""
        if node.id not in self._nodes:
            return ""
        if isinstance(message, Line):
            try:
                record = self._next_record(self._work[node.id], message.content)
            except ValueError as error:
                return self.hear(node, Lost(f"a line that it told is damaged: {error}"))
            ended = self._take(node, record)
            return self._line(node, ended) if ended else ""
        if isinstance(message, Files):
            self._store(node, message)
            return ""
        if isinstance(message, Lost):
            self._lose(node, message.reason)
            return f"{self._name(node)} is lost: {message.reason}"
        self._end(node, message)
        return ""

    def stop(self, reason: str) -> None:
        """Mark the boots that are at work; their blocks run again whole when the experiment goes on."""
        for node in [self._nodes[node] for node in self._work]:
            self._give_back(node, reason)

    def _next_record(self, unit: _Unit, content: bytes) -> Record:
        """The record of a unit's next line. ValueError if that is not what was written, or one before it is missing."""
        line = parse(content)
        if line.after != unit.crc32:
            raise ValueError("it does not follow the line before it")
        unit.crc32 = line.crc32
        return RECORD.validate_json(line.content)

    def _take(self, node: Node, record: Record) -> BootEnded | None:
        """Append one record of a node, under the attempt that it is here; returns the end of a boot."""
        if isinstance(record, Run):
            return None
        unit = self._work[node.id]
        if isinstance(record, BootStarted):
            recorded = self._attempts.get(record.boot, 0)
            self._attempts[record.boot] = next_attempt(self.folder, _planned(unit, record.boot), recorded)
            unit.attempts[record.boot] = self._attempts[record.boot]
            record = record.model_copy(update={"host": self._name(node)})
        record = record.model_copy(update={"attempt": unit.attempts[record.boot]})
        if not isinstance(record, BootEnded):
            self.writer.write(record)
            return None
        if record.log is not None:
            log = self._boot_dir(unit, record.boot) / Path(record.log).name
            record = record.model_copy(update={"log": str(log.relative_to(self.folder))})
        self.writer.write(record)
        if record.status != "interrupted":
            unit.ended[record.boot] = record
        return record

    def _store(self, node: Node, files: Files) -> None:
        """The folder of a boot, before its last record."""
        folder = self._boot_dir(self._work[node.id], files.boot)
        try:
            folder.mkdir()
            unpack(files.archive, folder)
        except OSError as error:
            told = f"cannot write {folder}: {error.strerror or error}"
            raise ResultsLost(f"{told}; mend it and go on with: dsbench ab --resume {self.folder}") from None

    def _end(self, node: Node, message: Ended) -> None:
        """A unit is over: the node is warm, or its block is done. Otherwise the experiment stops."""
        if message.code:
            self._give_back(node, message.said)
            told = f"{self._name(node)}: {message.said}"
            if not self._done and "refuses this build" in message.said:
                raise InputError(told)
            raise ResultsLost(f"{told}; mend it and go on with: dsbench ab --resume {self.folder}")
        unit = self._work.pop(node.id)
        if unit.block is None:
            self._warm.add(self._name(node))
        else:
            self._done |= unit.ended

    def _lose(self, node: Node, reason: str) -> None:
        """The node is gone, and its block begins anew elsewhere."""
        del self._nodes[node.id]
        if node.id in self._work:
            self._give_back(node, f"{self._name(node)} was lost: {reason}")

    def _give_back(self, node: Node, reason: str) -> None:
        unit = self._work.pop(node.id)
        for boot, attempt in unit.attempts.items():
            if boot not in unit.ended:
                self._interrupt(boot, attempt, reason)
        if unit.block is not None:
            for ended in unit.ended.values():
                self._supersede(ended, reason)
            self._queue.appendleft(unit.block)

    def _interrupt(self, boot: int, attempt: int, reason: str) -> None:
        self.writer.write(
            BootEnded(boot=boot, attempt=attempt, time=_now(), status="interrupted", reason=reason, seconds=0)
        )

    def _supersede(self, ended: BootEnded, reason: str) -> None:
        """A boot that ended well in a block that did not: what it read stays in the records and is not judged."""
        self.writer.write(marked(ended, f"superseded, for its block runs again whole: {reason}", _now()))

    def _name(self, node: Node) -> str:
        return self._hosts[node.id].name

    def _line(self, node: Node, ended: BootEnded) -> str:
        boot = next(boot for boot in self.plan.boots if boot.number == ended.boot)
        where = "warm-up" if boot.block is None else f"block {boot.block}/{self.plan.blocks}"
        reason = f"; {ended.reason}" if ended.reason else ""
        return (
            f"{self._name(node)} boot {boot.number} {where} {boot.arm}: {ended.status}, {ended.seconds:.1f} s{reason}"
        )

    def _boot_dir(self, unit: _Unit, boot: int) -> Path:
        return boot_dir_of(self.folder, _planned(unit, boot), unit.attempts[boot])

    # --- going on -------------------------------------------------------------------------------------------------

    def _resume(self, past: list[Record]) -> None:
        """Mark what an earlier run left open and what is to run again, and take what is whole."""
        hosts = {(r.boot, r.attempt): r.host for r in past if isinstance(r, BootStarted)}
        ends = {(r.boot, r.attempt): r for r in past if isinstance(r, BootEnded)}
        for (boot, attempt), host in hosts.items():
            self._attempts[boot] = max(attempt, self._attempts.get(boot, 0))
            if (boot, attempt) not in ends:
                self._interrupt(boot, attempt, f"the harness stopped before this boot of {host} ended")
        again = {(end.boot, end.attempt): why for end, why in to_repeat(self.plan, past)}
        warmups = {boot.number for boot in self._warmups}
        for key, why in again.items():
            if key[0] in warmups:
                self.writer.write(marked(ends.pop(key), why, _now()))
        well = {key: end for key, end in ends.items() if end.status != "interrupted"}
        ran = {(hosts[key], key[0]) for key in well}
        for name in (host.name for host in self._hosts.values()):
            if all((name, boot.number) in ran for boot in self._warmups):
                self._warm.add(name)
        for boots in self._blocks.values():
            last = [well.get((boot.number, self._attempts.get(boot.number, 0))) for boot in boots]
            on = {hosts[end.boot, end.attempt] for end in last if end is not None}
            found = [end for end in last if end is not None]
            killed = [again[end.boot, end.attempt] for end in found if (end.boot, end.attempt) in again]
            failed = any(end.status == "failed" and (end.boot, end.attempt) not in again for end in found)
            if len(found) == len(boots) and len(on) == 1 and (failed or not killed):
                self._done |= {end.boot: end for end in found}
                continue
            for end in found:
                reason = killed[0] if killed else "the harness stopped before the block ended"
                if (end.boot, end.attempt) in again:
                    self.writer.write(marked(end, again[end.boot, end.attempt], _now()))
                else:
                    self._supersede(end, reason)

    def _whole(self, boots: list[PlannedBoot]) -> bool:
        return all(boot.number in self._done for boot in boots)

    def _check(self) -> None:
        """A plan that was made for equal hosts runs on no other."""
        for node in self._nodes.values():
            if self.plan.fingerprint and (changed := self.plan.fingerprint.changes(node.fingerprint)):
                where = self._hosts[node.id].name
                raise InputError(f"{where} is not like the hosts of the plan ({', '.join(changed)}): start anew")


def _named(nodes: list[Node], past: list[Record]) -> dict[str, Host]:
    """Hosts by node: those that are known keep their names, others get the next ones."""
    known = {host.node: host.name for record in past if isinstance(record, records.Run) for host in record.hosts}
    fresh = (f"host{number}" for number in range(len(known) + 1, len(known) + len(nodes) + 1))
    return {
        node.id: Host(
            name=known.get(node.id) or next(fresh), node=node.id, gpus=node.gpus, fingerprint=node.fingerprint
        )
        for node in nodes
    }


def _planned(unit: _Unit, boot: int) -> PlannedBoot:
    return next(planned for planned in unit.boots if planned.number == boot)


def _what(unit: _Unit) -> str:
    return "warm-ups" if unit.block is None else f"block {unit.block}"


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="milliseconds")
