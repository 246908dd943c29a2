"""The planted defects: how each is planted, and what the judge must say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dsbench.records import Word

Group = Literal["bytes", "drafts", "synthetic", "speed", "text"]


@dataclass(frozen=True)
class Plant:
    """One faulted arm. Its boots share a baseline with the other arms of its group."""

    name: str
    what: str
    group: Group
    word: Word
    """What the judge must say of the arm against the baseline."""
    sign: str
    """Code of the void reason, or metric whose row must say `word`."""
    fault: str = ""
    """Function of `dsbench.selftest.faults` that the faulted engine calls before it starts."""
    toggles: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    """Flags that the engine gets behind the harness's back."""
    in_records: bool = False
    """Planted in the stored records after the boots, not in the engine."""


PLANTS = (
    # toggles and their markers
    Plant("branch-gone", "the reuse branch was deleted, its toggle stays on", "bytes", "void", "marker-missing",
          "branch_gone", ("mhc_input_reuse",)),
    Plant("branch-always", "the optimized branch runs in an arm whose toggle is off", "bytes", "void",
          "marker-misplaced", "branch_always"),
    Plant("held-by-another", "at one seam in three something else holds the buffer to write over", "bytes", "void",
          "marker-refused", "held_by_another", ("mhc_input_reuse",)),
    Plant("toggles-dropped", "a wrapper drops DSBENCH_TOGGLES", "bytes", "void", "toggles-not-in-effect",
          "toggles_dropped", ("mhc_input_reuse",)),
    # differences nobody declared
    Plant("other-limit", "fewer requests at a time than planned", "bytes", "void", "condition-not-in-effect",
          args=("--max-num-seqs", "4")),
    Plant("other-seed", "another seed than planned", "bytes", "void", "condition-differs", args=("--seed", "7")),
    Plant("other-weights", "random weights for the trained ones", "bytes", "void", "condition-differs",
          args=("--load-format", "dummy")),
    Plant("other-version", "another torch under one arm", "bytes", "void", "condition-differs", "other_version"),
    Plant("warm-cache", "a prefix cache in one arm", "bytes", "void", "condition-differs", "warm_cache"),
    Plant("other-graphs", "eager in one arm, replayed graphs in the other", "drafts", "void", "condition-differs",
          args=("--eager",)),
    Plant("silent-rank", "the engine says nothing of what it runs", "bytes", "void", "conditions-missing",
          "silent_rank"),
    # readings that are none
    Plant("one-log", "both boots show one log", "bytes", "void", "shared-log", "one_log"),
    Plant("read-twice", "the second boot's clock readings are the first's, copied", "bytes", "void",
          "identical-readings", in_records=True),
    Plant("check-refused", "the server refuses what one probe asks", "bytes", "void", "check-missing",
          "check_refused"),
    Plant("counters-reset", "the server's counters start again from 0", "bytes", "void", "counter-reset",
          "counters_reset"),
    Plant("engine-restarted", "the engine is replaced by a fresh one within a boot", "bytes", "void",
          "engine-restarted", "engine_restarted"),
    Plant("engine-dies", "the engine ends in the middle of a boot", "bytes", "void", "boot-failed", "engine_dies"),
    Plant("kv-pinned", "KV memory is fixed by hand, not profiled", "bytes", "void", "kv-pinned", "kv_pinned"),
    Plant("profile-rewritten", "recorded bytes are not those that the engine wrote", "bytes", "void", "kv-disagrees",
          in_records=True),
    Plant("illegal-access", "an illegal memory access in the log of an engine that goes on", "bytes", "void",
          "fatal-finding", "illegal_access"),
    Plant("drift", "weights grow, which no toggle touches", "bytes", "void", "drift", "drift"),
    # results that are worse
    Plant("small-path-alias", "residual reuse in the small-token path", "bytes", "regressed", "identity.tokens",
          toggles=("residual_reuse_small_path",)),
    Plant("double-map", "index rows mapped twice", "bytes", "regressed", "identity.tokens",
          toggles=("c128_double_map",)),
    Plant("row-corrupt", "one index row in two is corrupt", "bytes", "regressed", "identity.tokens",
          toggles=("c128_row_corrupt:2",)),
    Plant("leak", "every step keeps 4 KiB", "bytes", "regressed", "kv.resident_bytes", toggles=("leak:4096",)),
    Plant("not-repeatable", "noise on the logits: no two boots agree", "bytes", "regressed", "identity.tokens",
          "not_repeatable"),
    Plant("stale-logits", "draft logits handed over by reassignment, stale under replay", "drafts", "regressed",
          "output_law", toggles=("draft_logits_persistent=off",)),
    Plant("accept-all", "the verifier accepts every draft", "drafts", "regressed", "output_law", "accept_all"),
    Plant("other-temperature", "the server samples at half the temperature", "drafts", "regressed", "output_law",
          "other_temperature"),
    Plant("slipped-argument", "optional arguments of the sampler slip by one", "synthetic", "regressed",
          "accept.per_position", toggles=("rejection_keyword_binding=off",)),
    Plant("bos-leaks", "a begin-of-sequence token stands in the middle of an answer", "text", "regressed",
          "coherence.clean", "bos_leaks"),
    Plant("slow-step", "every step takes 60 % longer", "speed", "regressed", "decode.tps.c1",
          toggles=("slow_step:60",)),
)  # fmt: skip

CLEAN = "clean"
"""Arm of each group in which nothing is planted: it must not be called void or regressed."""
