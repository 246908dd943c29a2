"""Boots that run again because an engine was killed from outside: once, that says nothing of the build."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dsbench.engines.ended import KILLS, signal_named
from dsbench.records import BootEnded, BootStarted, Plan, Record, Run

RAN_COLD = "the engine of its warm-up was killed, so that it ran cold; repeated"


def was_killed(ended: BootEnded) -> bool:
    return ended.killed_by in KILLS


def to_repeat(plan: Plan, records: Sequence[Record]) -> list[tuple[BootEnded, str]]:
    """Last ends of boots that are to run again, and why: their engine was killed, for the first time.

    A boot whose engine was killed twice stays as it is: that is what a build which runs out of memory does. With a
    warm-up go the boots that ran well after it on its host.
    """
    reused = {boot.number for boot in plan.boots if boot.reused is not None}
    own = [record for record in records if not isinstance(record, Run) and record.boot not in reused]
    started = {(record.boot, record.attempt): record for record in own if isinstance(record, BootStarted)}
    ends = {(record.boot, record.attempt): record for record in own if isinstance(record, BootEnded)}
    # Every host of a pool has warm-ups of its own; a block may move from one to another.
    place = {key: (start.boot, start.host if start.block is None else None) for key, start in started.items()}
    kills = Counter(place[key] for key, end in ends.items() if key in place and was_killed(end))
    last = {place[key]: key for key in started}.values()
    once = [
        key
        for key in last
        if key in ends and ends[key].status == "failed" and was_killed(ends[key]) and kills[place[key]] == 1
    ]
    cold = {started[key].host for key in once if started[key].block is None}
    behind = [
        key
        for key in last
        if key in ends and ends[key].status == "ok" and started[key].block is not None and started[key].host in cold
    ]
    # What ran cold comes first: the end of its warm-up, once taken back, no longer tells that it did.
    return [*((ends[key], RAN_COLD) for key in behind), *((ends[key], _reason(ends[key])) for key in once)]


def _reason(ended: BootEnded) -> str:
    return f"its engine was killed by {signal_named(ended.killed_by or 0)}; repeated"


def marked(ended: BootEnded, reason: str, time: str) -> BootEnded:
    """The record that takes a boot's end back: what it read stays in the records and is not judged."""
    return ended.model_copy(update={"time": time, "status": "interrupted", "reason": reason})
