"""kill -9 of harness, engine or both at random moments of real runs, each gone on with: is everything kept?"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from dsbench.engines.strays import strays
from dsbench.records import BootEnded, Record
from dsbench.selftest.drill import RUN, SUITE, kept, orphans, output, starter, whole_lines
from dsbench.selftest.happenings import Scene
from dsbench.selftest.mishaps import NONE
from dsbench.store import BOOTS, PLAN, load_records, load_verdict

WHO = ("harness", "engine", "both")
KILLS_A_RUN = 5
"""Then the run may end, so that there is a verdict to look at."""
LONGEST_WAIT_S = 12.0
"""Kills come this long after a start at the latest; a run of four boots takes about as long."""


@dataclass
class Kill:
    """One kill: who, when, and what stood in records.jsonl."""

    who: str
    seconds: float
    """After the start of the harness."""
    phase: str
    """Folder of the boot that ran; '' before the first one."""
    records: int
    """Lines that were whole."""
    hit: int
    """Processes that were killed; 0 where nothing ran any more."""


@dataclass
class KilledRun:
    """One experiment that was killed several times and ended in the end."""

    kills: list[Kill] = field(default_factory=list)
    lost: int = 0
    orphans: int = 0
    starts: int = 0
    repeated_boots: int = 0
    """Attempts whose engine was killed under a harness that lived, and that `--resume` repeated."""
    failed_boots: int = 0
    """Boots that stay failed: their engine was killed so for a second time."""
    verdict: str = ""
    problems: list[str] = field(default_factory=list)


def kill_at_random(number: int, work: Path, seed: int, tell: Callable[[KilledRun], None] | None = None,
                   ) -> list[KilledRun]:  # fmt: skip
    """`number` kills that hit something, a few a run; every run goes on until it has its verdict.

    One that ends void because an engine was killed goes on once more, and nothing is killed then.
    """
    rng = random.Random(seed)
    work.mkdir(parents=True, exist_ok=True)
    (work / "kills.toml").write_text(SUITE, encoding="utf-8")
    runs: list[KilledRun] = []
    while (left := number - sum(map(_hits, runs))) > 0:
        runs.append(_killed_run(work / f"run{len(runs) + 1:02d}", min(left, KILLS_A_RUN), rng))
        if tell:
            tell(runs[-1])
    return runs


def _hits(run: KilledRun) -> int:
    return sum(kill.hit > 0 for kill in run.kills)


def _killed_run(place: Path, number: int, rng: random.Random) -> KilledRun:
    run = KilledRun()
    place.mkdir()
    with ExitStack() as undo:
        scene = Scene(place, lambda args: start(args), undo)
        start = starter(scene, place, NONE, NONE, NONE)
        kills = number
        while True:
            run.starts += 1
            begun = list(place.glob(f"*/{PLAN}"))
            again = ["--resume", str(begun[0].parent)] if begun else _asked(place)
            before = whole_lines(place)
            scene.process = start(["ab", *again])
            while scene.running.poll() is None and _hits(run) < kills and run.starts <= 3 * number:
                run.kills.append(_kill(scene, rng))
            told = output(scene.process)
            if not whole_lines(place).startswith(before):
                run.lost += 1
            run.orphans += len(orphans(place))
            if scene.process.returncode != -signal.SIGKILL:
                failed = [end for plan in place.glob(f"*/{PLAN}") for end in _failed(load_records(plan.parent)[0])]
                if not (kills and failed):
                    break
                kills = 0
    return ended(run, place, scene.process.returncode, told)


def ended(run: KilledRun, place: Path, code: int, told: str) -> KilledRun:
    """The verdict, and whether it is the one that these records give to a run that nobody disturbed.

    It is an undisturbed run's own, too, unless the engine of one boot was killed twice.
    """
    if "Traceback" in told:
        run.problems.append("a traceback")
    if not list(place.glob(f"*/{PLAN}")):
        run.problems.append(f"no result: {told.strip()[-200:]}")
        return run
    folder = next(place.glob(f"*/{PLAN}")).parent
    records = load_records(folder)[0]
    run.repeated_boots = sum(end.status == "interrupted" and end.killed_by is not None for end in _ends(records))
    run.failed_boots = len(_failed(records))
    of_engines = Counter(kill.phase.partition("-attempt")[0] for kill in run.kills if kill.who == "engine" and kill.hit)
    run.problems += kept(folder, whole=max(of_engines.values(), default=0) < 2)
    verdict = load_verdict(folder)
    run.verdict = verdict.word if verdict else "none"
    if verdict and verdict.exit_code != code:
        run.problems.append(f"exit code {code} is not that of {verdict.word}")
    if run.failed_boots and run.verdict != "void":
        run.problems.append(f"boots failed, and the verdict is {run.verdict}")
    return run


def _ends(records: list[Record]) -> list[BootEnded]:
    """How every attempt ended at last."""
    return list({(end.boot, end.attempt): end for end in records if isinstance(end, BootEnded)}.values())


def _failed(records: list[Record]) -> list[BootEnded]:
    return [end for end in _ends(records) if end.status == "failed"]


def _asked(place: Path) -> list[str]:
    return [*RUN, "--suite", str(place.parent / "kills.toml"), "-o", str(place)]


def _kill(scene: Scene, rng: random.Random) -> Kill:
    """Wait a random time, then kill -9."""
    who, wait = rng.choice(WHO), rng.uniform(0.0, LONGEST_WAIT_S)
    start = time.monotonic()
    while time.monotonic() < start + wait and scene.running.poll() is None:
        time.sleep(0.005)
    seconds = time.monotonic() - start
    boots = sorted((path for path in scene.out.glob(f"*/{BOOTS}/*")), key=lambda path: path.stat().st_mtime)
    engines = strays(scene.out) if who != "harness" else []
    harness = [scene.running.pid] if who != "engine" and scene.running.poll() is None else []
    hit = 0
    for pid in (*harness, *engines):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            hit += 1
    return Kill(who, seconds, boots[-1].name if boots else "", whole_lines(scene.out).count(b"\n"), hit)
