"""Changed copies of real inputs through every reader: what crashes, what hangs, and what long lines cost."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dsbench.errors import InputError
from dsbench.selftest.fuzz_targets import TARGETS, Case, Target

LIMIT_S = 1.0
"""Seconds of processor time for one case, of whatever length."""
LOADING_S = 60.0
"""The same for real inputs, which come first: modules are loaded then."""
LONGEST_LINE = 1200
"""Characters of a refusal."""
SAVED = 20
"""Problems of a target that are kept as files, each of another kind."""
PROBLEM = "problem.txt"
MEMORY = "/dev/shm"
"""Where a million small files cost little; without it they are temporary files."""


class TooSlow(BaseException):
    """A case took more than its time. No reader may catch it."""


class NoLine(Exception):
    """A refusal that is not one line of text."""


@dataclass
class Fuzzed:
    """What came of one target."""

    target: str
    cases: int = 0
    refused: int = 0
    """Cases that ended in one line, as bad input should."""
    crashed: int = 0
    too_slow: int = 0
    slowest_ms: float = 0.0
    long_lines: int = 0
    slowest_long_line_ms: float = 0.0
    seconds: float = 0.0
    problems: dict[str, str] = field(default_factory=dict)
    """Kind of a problem, and where its first case was saved."""

    @property
    def failed(self) -> bool:
        return bool(self.crashed or self.too_slow)


def fuzz(
    target: Target,
    cases: int,
    seed: int,
    out: Path,
    *,
    long_lines: bool = True,
    tell: Callable[[], None] = lambda: None,
) -> Fuzzed:
    """Try `cases` changed inputs, the same for the same seed, and the long lines. Failing ones are kept under `out`."""
    found = Fuzzed(target.name)
    start = time.monotonic()
    shapes = target.shapes()
    with _working_folder() as work:
        for number, case in enumerate(shapes):  # unchanged, which also loads every module before anything is timed
            _try(target, case, work, found, out / f"{target.name}-shape-{number}", LOADING_S)
        found.refused = 0
        for number in range(cases):
            rng = random.Random(f"{seed} {target.name} {number}")
            case = target.vary(rng, rng.choice(shapes))
            found.cases += 1
            ms = _try(target, case, work, found, out / f"{target.name}-{seed}-{number}")
            found.slowest_ms = max(found.slowest_ms, ms)
            tell()
        for number, case in enumerate(target.long() if long_lines else ()):
            found.long_lines += 1
            ms = _try(target, case, work, found, out / f"{target.name}-long-{number}")
            found.slowest_long_line_ms = max(found.slowest_long_line_ms, ms)
    found.seconds = time.monotonic() - start
    return found


def again(saved: Path) -> list[Fuzzed]:
    """Try the saved cases of a folder once more, or the one that the folder is. InputError if there is none."""
    folders = [path.parent for path in sorted(saved.rglob(PROBLEM))]
    targets = {target.name: target for target in TARGETS}
    known = [(targets[name], folder) for folder in folders if (name := folder.name.split("-")[0]) in targets]
    if not known:
        raise InputError(f"--from {saved}: no saved case of --fuzz is there")
    found = []
    with _working_folder() as work:
        for target, folder in known:
            for shape in target.shapes()[:1]:  # loads modules, which takes longer than a case may
                _try(
                    target, shape, work, Fuzzed(target.name, problems=dict.fromkeys(map(str, range(SAVED)), "")), folder
                )
            case = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != PROBLEM}
            one = Fuzzed(target.name, cases=1)
            one.slowest_ms = _try(target, case, work, one, folder)
            found.append(one)
    return found


def _try(target: Target, case: Case, work: Path, found: Fuzzed, place: Path, limit_s: float | None = None) -> float:
    """Read one case and count what came of it; milliseconds of processor time."""
    for path in work.iterdir():
        if path.name not in case:
            path.unlink() if path.is_file() else shutil.rmtree(path)
    for name, content in case.items():
        (work / name).write_bytes(content)
    start = time.process_time()
    try:
        with _limited(limit_s or LIMIT_S):
            try:
                target.read(work, case)
            except InputError as error:
                found.refused += 1
                _check_line(str(error))
    except TooSlow as error:
        found.too_slow += 1
        _save(target, case, found, place, error)
    except Exception as error:
        found.crashed += 1
        _save(target, case, found, place, error)
    return (time.process_time() - start) * 1000


def _check_line(line: str) -> None:
    """A refusal is one line that can be printed."""
    if "\n" in line or len(line) > LONGEST_LINE:
        raise NoLine(f"{len(line)} characters in {line.count(chr(10)) + 1} lines: {line[:100]!r}")
    line.encode()


def _save(target: Target, case: Case, found: Fuzzed, place: Path, error: BaseException) -> None:
    """Keep the first case of each kind of problem; a kind is an error and the line of code that raised it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "dsbench" in frame.filename]
    where = ours[-1] if ours else last
    kind = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}"
    if isinstance(error, TooSlow):
        kind = f"more than {LIMIT_S:g} s"
    if kind in found.problems or len(found.problems) >= SAVED:
        return
    found.problems[kind] = str(place)
    if not (place / PROBLEM).exists():
        place.mkdir(parents=True, exist_ok=True)
        for name, content in case.items():
            (place / name).write_bytes(content)
        told = "".join(traceback.format_exception(error))[-20_000:]
        replay = f"dsbench selftest --fuzz --from {place}\n{target.command.format(place)}\n"
        (place / PROBLEM).write_text(f"{kind}\n{replay}\n{told}", encoding="utf-8", errors="backslashreplace")


@contextlib.contextmanager
def _working_folder() -> Iterator[Path]:
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="dsbench-fuzz-", dir=memory) as folder:
        yield Path(folder)


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """TooSlow after so much processor time; other work on the machine does not count."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
