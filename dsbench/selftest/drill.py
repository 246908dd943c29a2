"""Mishaps, each a run of its own: was there one line, the right exit code, no orphan and no lost record?"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from dsbench.engines.server import end_with_parent
from dsbench.engines.strays import end_strays, strays
from dsbench.errors import InputError
from dsbench.judge import REPEATED, judge
from dsbench.records import ExperimentVerdict, Observation, Plan, Record, Run
from dsbench.selftest.broken_engine import FILES
from dsbench.selftest.happenings import PATIENCE_S, Missed, Scene, Skipped
from dsbench.selftest.mishaps import NONE, Mishap
from dsbench.store import RECORDS, load_plan, load_records, load_verdict

SUITE = """
name = "selftest-faults"
summary = "bytes, tokens and one stream"
blocks = 2
warmup_boots = 0
guards = ["kv.available_bytes", "identity.tokens"]
[timeouts]
boot = 20
probe = 8
stop = 3
[probes.kv]
[probes.identity]
tokens = 8
together = 2
prompts = ["7*8=", "kx=42"]
[probes.decode]
streams = [1]
tokens = 24
repeats = 1
"""
RUN = ("-t", "mhc_input_reuse", "--dims", "pico")
"""What is run: two arms of the smallest model, which boots fastest."""
PRIMARY = "kv.peak_activation_bytes"
Start = Callable[[list[str]], "subprocess.Popen[str]"]
ORPHANS_S = 8.0
"""Longest that an engine may outlive a harness that was killed: what its stop may take, and some more."""


@dataclass(frozen=True)
class Met:
    """One mishap: what was planted, what had to come of it, and what came."""

    planted: str
    what: str
    expected: str
    given: str
    outcome: str
    """caught, missed or skipped"""
    seconds: float


def drill(mishaps: Sequence[Mishap], work: Path, without: str = NONE, tell: Callable[[Met], None] | None = None,
          ) -> list[Met]:  # fmt: skip
    """One after the other, each in a folder of its own under `work`, with one detector taken away if named."""
    work.mkdir(parents=True, exist_ok=True)
    (work / "faults.toml").write_text(SUITE, encoding="utf-8")
    rows = []
    for mishap in mishaps:
        rows.append(_met(mishap, work, without))
        if tell:
            tell(rows[-1])
    return rows


def _met(mishap: Mishap, work: Path, without: str) -> Met:
    start = time.monotonic()
    said = f", {mishap.says}" if mishap.says else ""
    after = f"; resumed: exit {mishap.ends[0]}, {mishap.ends[1]}" if mishap.ends else ""
    place = work / mishap.name
    place.mkdir()
    try:
        with ExitStack() as undo:
            given, wrong = _run(mishap, place, work / "faults.toml", without, undo)
        outcome = "missed" if wrong else "caught"
        given = "; ".join([given, *wrong]).replace(f"{place}/", "")
    except Skipped as reason:
        given, outcome = str(reason), "skipped"
    return Met(
        mishap.name, mishap.what, f"exit {mishap.code}{said}{after}", given, outcome, time.monotonic() - start
    )  # fmt: skip


def _run(mishap: Mishap, place: Path, suite: Path, without: str, undo: ExitStack) -> tuple[str, list[str]]:
    """What came of it, and everything that is wrong with that."""
    out = place / mishap.out

    scene = Scene(out, lambda args: start(args), undo)
    start = starter(scene, place, mishap.engine, mishap.harness, without)
    if mishap.happens:
        mishap.happens(scene)
    asked = [*RUN, *mishap.args, "--suite", str(suite), "--blocks", str(mishap.blocks), "-o", str(out)]
    scene.process = start(["ab", *asked])
    try:
        if scene.during:
            scene.during(scene)
    except Missed as problem:
        scene.findings.append(str(problem))
    told = output(scene.process)
    given, wrong = _judged(mishap.code, mishap.says, scene.process.returncode, told)
    wrong += orphans(place)
    if scene.says not in told:
        wrong.append(f"no line says {scene.says!r}")
    before = whole_lines(out)
    if mishap.ends:
        scene.before()
        scene.process = start(["ab", "--resume", str(scene.folder)])
        told = output(scene.process)
        resumed, more = _judged(*mishap.ends, scene.process.returncode, told)
        given, wrong = f"{given}; resumed: {resumed}", [*wrong, *more, *orphans(place)]
        if mishap.whole and not whole_lines(out).startswith(before):
            wrong.append("records were lost")
    if mishap.kept:
        wrong += kept(scene.folder, mishap.whole)
    elif not mishap.ends and list(out.glob(f"*/{RECORDS}")):
        wrong.append("a result was left behind")
    return given, [*wrong, *scene.findings]


def _unwrapped() -> dict[str, str]:
    """This process's environment, without a width that would break what is looked for over lines."""
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"}


def starter(scene: Scene, place: Path, engine: str, harness: str, without: str) -> Start:
    """What starts `dsbench` with arguments, with these faults; weights that are none go to `place`."""
    line = [sys.executable, "-P", "-m", "dsbench.selftest.broken_harness", engine, harness, without]

    def start(args: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*line, *args],
            env={**_unwrapped(), **_importing(), FILES: str(place), **scene.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            preexec_fn=begin,
        )

    drill_id = os.getpid()

    def begin() -> None:
        end_with_parent(drill_id)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores Ctrl-C, and its children too
        scene.begin()

    return start


def _importing() -> dict[str, str]:
    """Lets a process find the packages that this one has, whatever folder it runs in."""
    spec = importlib.util.find_spec("dsbench")
    places = list(spec.submodule_search_locations or []) if spec else []
    return {"PYTHONPATH": os.pathsep.join(str(Path(place).parent) for place in places)}


def output(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0] + f"\n(still ran after {PATIENCE_S:g} s)"


def _judged(code: int, says: str, given: int, told: str) -> tuple[str, list[str]]:
    """Exit code and line, and what is wrong with them."""
    lines = [line.strip() for line in told.splitlines() if re.search(says, line)] if says else []
    wrong = []
    if given != code or (says and not lines):
        last = [line.strip() for line in told.splitlines() if line.strip()]
        wrong.append(f"the output ends: {last[-1][:200]}" if last else "no output")
    if "Traceback" in told:
        wrong.append("a traceback")
    return f"exit {given}" + (f", {lines[-1]}" if lines else ""), wrong


def orphans(place: Path) -> list[str]:
    """Engines that outlive their harness; they are ended."""
    deadline = time.monotonic() + ORPHANS_S
    while (left := strays(place)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if left:
        end_strays(place)
    return [f"{len(left)} orphans"] if left else []


def whole_lines(out: Path) -> bytes:
    content = b"".join(path.read_bytes() for path in sorted(out.glob(f"*/{RECORDS}")))
    return content[: content.rfind(b"\n") + 1]


def kept(folder: Path, whole: bool) -> list[str]:
    """What is wrong with a stored result: lines that cannot be read, or a verdict that these records do not give."""
    try:
        plan, (records, notices) = load_plan(folder), load_records(folder)
        verdict = load_verdict(folder)
    except InputError as error:
        return [str(error)]
    wrong = list(notices)
    if verdict is None:
        return [*wrong, "no verdict was stored"]
    if without_history(judge(plan, undisturbed(plan, records))) != without_history(verdict):
        wrong.append("an undisturbed run with these records has another verdict")
    if whole:
        values = {o.value for o in records if isinstance(o, Observation) and o.metric == PRIMARY}
        words = {verdict.word, *(row.word for row in verdict.rows if row.metric == PRIMARY)}
        if (words, len(values)) != ({"improved"}, 2):
            wrong.append(f"the verdict is {verdict.word}, not improved")
    return wrong


def without_history(verdict: ExperimentVerdict) -> ExperimentVerdict:
    """The verdict without the notes that tell which boots were repeated, and what to do next, which depends on that."""
    notes = [note for note in verdict.notes if not note.startswith(REPEATED)]
    void = [reason.model_copy(update={"mend": ""}) for reason in verdict.void]
    return verdict.model_copy(
        update={"notes": notes, "void": void, "sentence": "" if void else verdict.sentence}  # it ends with the mend
    )


def undisturbed(plan: Plan, records: Sequence[Record]) -> list[Record]:
    """The records as if every boot had run once: last attempts alone, each called the first."""
    last: dict[int, int] = {}
    for record in records:
        if not isinstance(record, Run):
            last[record.boot] = max(record.attempt, last.get(record.boot, 0))
    runs = [record for record in records if isinstance(record, Run)]
    boots = [
        record.model_copy(update={"attempt": 1})
        for planned in plan.boots
        for record in records
        if not isinstance(record, Run) and (record.boot, record.attempt) == (planned.number, last[planned.number])
    ]
    return [*runs[:1], *boots]
