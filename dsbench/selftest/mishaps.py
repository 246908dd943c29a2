"""What can go wrong around a run: how each mishap is made to happen, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dsbench.selftest import happenings
from dsbench.selftest.happenings import Scene

NONE = "-"


@dataclass(frozen=True)
class Mishap:
    """One run of `dsbench ab` in which something goes wrong."""

    name: str
    what: str
    code: int
    """Exit code that the run must have."""
    says: str
    """Regular expression that one line of its output must match."""
    engine: str = NONE
    """Fault of the candidate's engines."""
    harness: str = NONE
    """Fault of the harness process."""
    happens: Callable[[Scene], None] | None = None
    """What happens to the run while it goes on; it may raise `Skipped`."""
    ends: tuple[int, str] | None = None
    """Exit code and line of the `--resume` that follows; None where none follows."""
    args: tuple[str, ...] = ()
    """Further arguments of the run."""
    out: str = "results"
    blocks: int = 1
    whole: bool = False
    """Whether the run must end as an undisturbed one does, its bytes improved."""
    kept: bool = True
    """Whether a result must be there afterwards."""


IMPROVED = r"improved: kv\.peak_activation_bytes -32,768 B"


def _void(name: str, what: str, says: str) -> Mishap:
    return Mishap(name, what, 4, says, engine=name.replace("-", "_"))


def _harmless(name: str, what: str, engine: str = NONE, harness: str = NONE, **more: str) -> Mishap:
    return Mishap(name, what, 0, IMPROVED, engine, harness, blocks=2, whole=True, out=more.get("out", "results"))


def _stopped(name: str, what: str, code: int, says: str, happens: Callable[[Scene], None]) -> Mishap:
    return Mishap(name, what, code, says, happens=happens, ends=(0, IMPROVED), blocks=2, whole=True)


MISHAPS = (
    # the engine's process
    _void("exits-at-boot", "the engine exits at boot", "ended with code 3 before it was ready.*no such kernel image"),
    _void("hangs-at-boot", "the engine hangs at boot", r"never wrote ready\.json within 20 s"),
    _void("hangs-mid-stream", "the engine hangs in the middle of a stream", "probe decode failed: not done within 8 s"),
    _void("dies-mid-decode", "the engine ends in the middle of a stream", "the engine ended during the decode probe"),
    Mishap("killed-child", "the engine is killed as when memory runs out, and again when the run is resumed", 4,
           r"the engine ended during the decode probe; killed by signal 9 \(SIGKILL\): out of memory",
           "killed_child", happens=happenings.limits_memory, ends=(4, "boots repeated after their engine was killed")),
    _harmless("grandchildren", "a deaf grandchild, and one that left the group", "grandchildren"),
    # its answers
    _void("status-500", "completions answer 500", "/v1/completions answered 500"),
    _void("status-429", "completions answer 429", "/v1/completions answered 429"),
    _void("stream-truncated", "a stream ends within a line", "probe decode failed: .*streamed a line that is not JSON"),
    _void("stream-without-end", "a stream ends without its last lines", "the stream's usage says None"),
    _void("invalid-utf8", "answers are not UTF-8", "/v1/completions answered something that is not JSON"),
    _void("huge-line", "one line of a stream has 50 MB", "probe decode failed: .*streamed a line of more than"),
    _void("wrong-model-name", "the server has another model's name", "/v1/completions answered 404: .*model"),
    _void("slow-drip", "a token every 0.6 s", "probe decode failed: not done within 8 s"),
    _void("counters-reset", "the server's counters start again from 0", "counter-reset.*counters fell"),
    # ports
    Mishap("port-taken", "the engine's port is taken", 2, r"the engine refuses this build: .*cannot listen on .*in use",
           "port_taken", happens=happenings.holds_port, kept=False),
    Mishap("port-stolen", "another server answers at the engine's port", 4, "answered without|answered 404|not JSON",
           "port_stolen", happens=happenings.answers_elsewhere),
    # weights
    Mishap("weights-empty", "the weights are an empty file", 2, r"the engine refuses this build: .*empty\.safetensors",
           "weights_empty", kept=False),
    Mishap("weights-corrupt", "the weights are cut off", 2, r"the engine refuses this build: .*corrupt\.safetensors",
           "weights_corrupt", kept=False),
    # logs and clocks
    _harmless("log-rotated", "the log is rotated during a boot", "log_rotated"),
    _harmless("log-nuls", "100,000 NULs in the log", "log_nuls"),
    _harmless("log-huge-line", "a line of 50 MB in the log", "log_huge_line"),
    _harmless("clock-jump", "the wall clock jumps by a day, in engine and harness", "clock_jump", "clock_jump"),
    _harmless("time-zone", "the time zone changes during the run", harness="time_zone"),
    _harmless("odd-path", "blanks and unicode in the path of the results", out="ergebnisse 結果/a b"),
    # the disk
    _stopped("disk-full", "the disk is full from the second boot on", 2, "cannot write .*(No space left|too large).*"
             "ab --resume", happenings.fills_disk),
    _stopped("results-read-only", "the results are read-only from the second boot on", 2,
             "cannot write .*Permission denied.*ab --resume", happenings.makes_read_only),
    Mishap("results-deleted", "the results are deleted during the run", 2, "cannot write .*(removed|No such file)",
           happens=happenings.deletes_results, kept=False, blocks=2),
    Mishap("byte-changed", "a byte of the records changes between two runs", 130, "interrupted",
           happens=happenings.changes_byte, ends=(2, r"records\.jsonl:\d+: damaged"), kept=False),
    Mishap("line-missing", "a line of the records is gone between two runs", 130, "interrupted",
           happens=happenings.loses_line, ends=(2, r"records\.jsonl:\d+: damaged: it does not follow"), kept=False),
    _stopped("torn-line", "the last record is torn when the harness is killed", -9, "", happenings.tears_line),
    # signals and locks
    _stopped("sigint", "Ctrl-C", 130, "dsbench: interrupted", happenings.interrupts),
    _stopped("sigint-twice", "Ctrl-C, and again while the engine is stopped", 130, "dsbench: interrupted",
             happenings.interrupts_twice),
    _stopped("sigterm", "SIGTERM", 130, "dsbench: interrupted", happenings.terminates),
    _stopped("kill-9", "kill -9 of the harness", -9, "", happenings.kills_harness),
    _stopped("kill-9-engine", "kill -9 of the engine", 4,
             "engines were killed: boots 2 are repeated, once, by: dsbench ab --resume", happenings.kills_engine),
    _stopped("kill-9-both", "kill -9 of harness and engine", -9, "", happenings.kills_both),
    Mishap("two-harnesses", "a second harness goes on with the same results", 0, IMPROVED, blocks=2, whole=True,
           happens=happenings.runs_twice),
    Mishap("gpu-held", "another process measures on GPU 0", 2,
           r"dsbench: GPU 0 is measured by another dsbench, which holds \S+/dsbench-gpu0\.lock: wait for it",
           harness="one_gpu", happens=happenings.holds_gpu, args=("--device", "cuda"), kept=False),
)  # fmt: skip
