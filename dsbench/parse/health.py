"""Fatal events of a server's log, their consequences, and the lines that only sound like one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dsbench.parse.lines import Line, read_lines

Words = tuple[str, ...]

ROOTS: tuple[tuple[str, Words], ...] = (
    ("kv_cache_too_small", (
        "larger than the available KV cache memory",
        "larger than the maximum number of tokens that can be stored in KV cache",
    )),
    ("no_kv_memory", ("No available memory for the cache blocks",)),
    ("illegal_memory_access", ("illegal memory access was encountered", "CUDA_ERROR_ILLEGAL_ADDRESS")),
    ("device_assert", ("device-side assert triggered", "CUDA_ERROR_ASSERT")),
    ("oom", ("CUDA out of memory", "OutOfMemoryError", "CUDA error: out of memory", "HIP out of memory",
             "CUDA_ERROR_OUT_OF_MEMORY")),
    ("nccl_timeout", ("collective operation timeout", "milliseconds before timing out")),
    ("nccl_error", ("NCCL error", "NCCL failure", "ncclSystemError", "ncclInternalError", "ncclUnhandledCudaError",
                    "ncclRemoteError")),
    ("missing_weight", ("weights were not initialized from checkpoint", "There is no module or parameter named",
                        "Missing key(s) in state_dict", "Cannot find any model weights")),
    ("python_assert", ("AssertionError",)),
)  # fmt: skip
"""Phrases of an event by its kind; the first kind that a line has is its own."""

START_FAILED = "engine_core_init_failed"
START_FAILED_WORDS = ("Engine core initialization failed", "EngineCore failed to start", "Engine process failed to")
"""What a front end says of an engine that did not start: an event of its own only where no cause is printed."""

NO_ENGINE_KINDS = ("gate_not_run", "guard_not_evaluated")
"""Kinds that tell of a driver script, not of an engine."""

CONSEQUENCES = (
    *START_FAILED_WORDS,
    "WorkerProc was terminated", "WorkerProc hit an exception", "WorkerProc initialization failed",
    "EngineCore encountered", "EngineDeadError", "died unexpectedly", "Error executing method",
    "failed with error", "Failed core proc",
)  # fmt: skip

HINTS = ("can be ignored", "TORCH_USE_CUDA_DSA", "CUDA_LAUNCH_BLOCKING=1", "might be asynchronously reported")
"""Advice that names an event without being one."""

GATE_NOT_RUN = re.compile(
    r"^\s*(?:/?\w{1,12}sh: .{1,300}: (?:No such file or directory|command not found|Permission denied)"
    r"|.{0,200}\b[Rr][Cc]=12[67]\b)"
)
GUARD_NOT_EVALUATED = re.compile(r"(?i)\bguard\b.{0,80}\b(?:not[ _-]evaluated|unevaluated|not[ _-]run)\b")

BENIGN_WORDS = ("error", "fail", "assert", "fatal", "exception", "traceback", "illegal", "leaked", "warn",
                "terminated", "timeout", "timed out", "undefined symbol")  # fmt: skip
_BENIGN_WHOLE = re.compile(r"\berr\b|\bhang")

_ASSERTION = re.compile(r"Assertion `[^`]{1,500}` failed")
_WRAPPED = re.compile(r"\.(?:cu|cuh|h|hpp|cpp):\d+: .{0,300}:\s*$")
_MISSING_KEY = re.compile(r"KeyError: '[\w.]{1,300}\.(?:weight|bias|weight_scale|weight_scale_inv|scale)'")
_REPEATED = re.compile(r"\[repeated (\d{1,9})x across cluster\]")
_METHOD = re.compile(r"Error executing method '?(\w+)")
_FAILED_CODE = re.compile(r"(?:^|[\s_])[Rr][Cc]=(?!12[67]\b)[1-9]")
_OOM = {
    "requested": re.compile(r"Tried to allocate (\d{1,12}(?:\.\d{1,7})?) (KiB|MiB|GiB)"),
    "device": re.compile(r"GPU (\d{1,6}) has a total capacity"),
    "total": re.compile(r"total capacity of (\d{1,12}(?:\.\d{1,7})?) (MiB|GiB)"),
    "free": re.compile(r"of which (\d{1,12}(?:\.\d{1,7})?) (bytes|KiB|MiB|GiB) is free"),
    "used": re.compile(r"this process has (\d{1,12}(?:\.\d{1,7})?) (MiB|GiB) memory in use"),
}
_MIB = {"bytes": 2.0**-20, "KiB": 2.0**-10, "MiB": 1.0, "GiB": 2.0**10}


@dataclass(frozen=True)
class FatalFinding:
    """One fatal event, where its first line stands."""

    kind: str
    line: int
    text: str
    rank: str | None
    """Tag of the process that printed it."""


@dataclass
class Health:
    """What a log says went wrong."""

    events: list[FatalFinding] = field(default_factory=list)
    fatal_lines: list[int] = field(default_factory=list)
    """Lines of the events and of their consequences."""
    benign_lines: list[int] = field(default_factory=list)
    """Lines that sound alarming and belong to no event."""
    counts: Counter[str] = field(default_factory=Counter)
    """Events by kind, and reports that are no events of their own."""

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(event.kind for event in self.events))


@dataclass(frozen=True)
class OutOfMemory:
    """The figures of the first out-of-memory message; None where it does not print them."""

    requested_mib: float | None
    free_mib: float | None
    total_gib: float | None
    process_used_gib: float | None
    device: int | None


def fatal_findings(text: str) -> list[FatalFinding]:
    """Every fatal event of a log, in order; empty for a log that only sounds alarming."""
    return read_health(read_lines(text)).events


def read_health(lines: Iterable[Line]) -> Health:
    """Events, consequences and look-alikes; a header of a driver script parts one engine's lines from the next's."""
    health = Health()
    section: list[Line] = []
    for line in lines:
        if line.major_header is not None:
            _read_section(section, health)
            section = []
        section.append(line)
    _read_section(section, health)
    return health


def _read_section(lines: Sequence[Line], health: Health) -> None:
    kinds = {index: kind for index, line in enumerate(lines) if (kind := _kind(line.text))}
    if not any(kind not in NO_ENGINE_KINDS for kind in kinds.values()):
        start = next((i for i, line in enumerate(lines) if _has(line.text, START_FAILED_WORDS)), None)
        if start is not None:
            kinds[start] = START_FAILED
    fatal = {lines[index].number for index in kinds}
    if any(kind not in NO_ENGINE_KINDS for kind in kinds.values()):
        fatal |= _consequences(lines, kinds)
    _count(lines, kinds, health)
    benign = {line.number for line in lines if line.number not in fatal and sounds_alarming(line.text)}
    health.fatal_lines += sorted(fatal)
    health.benign_lines += sorted(benign)


def _kind(text: str) -> str | None:
    """The kind of event that a line is, if any."""
    if _has(text, HINTS):
        return None
    for kind, phrases in ROOTS:
        if _has(text, phrases):
            return kind
    if "Assertion `" in text and _ASSERTION.search(text):
        return "device_assert"
    if "KeyError" in text and _MISSING_KEY.search(text):
        return "missing_weight"
    if ("sh: " in text or "c=12" in text.lower()) and GATE_NOT_RUN.search(text[:1000]):
        return "gate_not_run"
    if "uard" in text and GUARD_NOT_EVALUATED.search(text[:1000]):
        return "guard_not_evaluated"
    return None


def _consequences(lines: Sequence[Line], kinds: dict[int, str]) -> set[int]:
    """Numbers of the lines that an event brought with it: its traceback, other processes' reports, exit codes."""
    dumps = {lines[i].source for i in kinds if lines[i].level == "ERROR" and lines[i].where}
    found = {line.number for line in lines if line.level == "ERROR" and line.source in dumps}
    for index in kinds:
        before = lines[index - 1] if index else None
        if before and lines[index].text.lstrip().startswith("Assertion `") and _WRAPPED.search(before.text[:2000]):
            found.add(before.number)
    found |= {line.number for line in lines if _has(line.text, CONSEQUENCES)}
    found |= {line.number for line in lines if "c=" in line.text.lower() and _FAILED_CODE.search(line.text[:1000])}
    return found | _tracebacks(lines, {lines[i].number for i in kinds} | found)


def _tracebacks(lines: Sequence[Line], fatal: set[int]) -> set[int]:
    """Lines of the tracebacks that end in a fatal line; those of one process may lie between another's."""
    found: set[int] = set()
    open_at: dict[tuple[str, str | None, str], list[int]] = {}
    for line in lines:
        who = (line.process, line.rank, line.pid)
        if "Traceback (most recent call last)" in line.text:
            open_at[who] = [line.number]
        elif who in open_at:
            if line.body.startswith(" "):
                open_at[who].append(line.number)
                continue
            block = open_at.pop(who)
            if line.number in fatal:
                found.update(block)
    return found


def _count(lines: Sequence[Line], kinds: dict[int, str], health: Health) -> None:
    """One event a dump: a traceback may name its cause twice, and another process may repeat it."""
    seen: set[tuple[str, object]] = set()
    triggered = 0
    for index, kind in kinds.items():
        line = lines[index]
        if "device-side assert triggered" in line.text:
            triggered += 1
        key = (kind, line.source if line.level == "ERROR" and line.where else line.number)
        relayed = _has(line.text, ("failed with error",)) and any(k == kind for i, k in kinds.items() if i < index)
        if key in seen or relayed:
            continue
        seen.add(key)
        reported = kind == "device_assert" and "Assertion `" not in line.text
        if reported and "device_assert" in health.kinds:
            continue
        health.events.append(FatalFinding(kind, line.number, line.text.strip()[:300], line.rank))
        health.counts[kind] += 1
    if triggered:
        health.counts["device_assert_triggered_line"] += triggered
    for line in lines:
        if "Error executing method" in line.text and (method := _METHOD.search(line.text)):
            repeated = _REPEATED.search(line.text)
            name = f"{method[1].removesuffix('_')}_error_at_least"
            health.counts[name] += 1 + (int(repeated[1]) if repeated else 0)


def sounds_alarming(text: str) -> bool:
    """Whether a line has one of the words that a search for trouble would find."""
    lower = text.lower()
    return _has(lower, BENIGN_WORDS) or (("err" in lower or "hang" in lower) and bool(_BENIGN_WHOLE.search(lower)))


def out_of_memory(lines: Iterable[Line]) -> OutOfMemory | None:
    """The figures of the first line that says how much was asked for; None if none does."""
    for line in lines:
        if "Tried to allocate" in line.text:
            device = _OOM["device"].search(line.text)
            return OutOfMemory(
                requested_mib=_mib("requested", line.text),
                free_mib=_mib("free", line.text),
                total_gib=_gib("total", line.text),
                process_used_gib=_gib("used", line.text),
                device=int(device[1]) if device else None,
            )
    return None


def _mib(name: str, text: str) -> float | None:
    found = _OOM[name].search(text)
    return float(found[1]) * _MIB[found[2]] if found else None


def _gib(name: str, text: str) -> float | None:
    found = _OOM[name].search(text)
    return (float(found[1]) if found[2] == "GiB" else float(found[1]) / 1024) if found else None


def _has(text: str, phrases: Iterable[str]) -> bool:
    for phrase in phrases:  # noqa: SIM110 - any() of a generator takes three times as long, and this runs on every line
        if phrase in text:
            return True
    return False
