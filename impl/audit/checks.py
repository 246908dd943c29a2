"""The checks of the audit: what each asks, which toggles it concerns, and how it is run (torch-free)."""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from impl.audit.report import NotRun, Outcome, Report
from impl.toggles import ToggleError, find


@dataclass(frozen=True)
class Check:
    name: str
    """Its module in impl.audit, whose `check` runs it."""
    question: str
    toggles: tuple[str, ...]
    """Toggles whose claims rest on the answer."""


CHECKS = (
    Check(
        "partition",
        "do decodes and prefills part the shared index buffer exactly, and is what is stale in it harmless?",
        ("c128a_topk_shared",),
    ),
    Check(
        "readers",
        "does every layer read index rows of one kind, global or local, the fallback included?",
        ("c128_indices_in_place", "c128_double_map"),
    ),
    Check(
        "mutations",
        "do operations write what they declare, and nothing else?",
        ("mhc_residual_reuse", "mhc_input_reuse", "mhc_final_fused", "q_in_place", "c128_indices_in_place"),
    ),
    Check(
        "call_sites",
        "are the sampler's adjacent optional arguments given by name?",
        ("rejection_keyword_binding",),
    ),
    Check(
        "graph_replay",
        "does replay cover what is captured, what runs beside it, and do the seams trace without a break?",
        ("draft_logits_persistent", "mhc_residual_reuse", "mhc_input_reuse", "mhc_final_fused"),
    ),
    Check("mtp_buffer", "is the MTP staging buffer only where the method reads it?", ("mtp_hidden_skip",)),
    Check(
        "dead_readers",
        "does anything read a reused buffer after its death?",
        (
            "mhc_residual_reuse",
            "mhc_input_reuse",
            "mhc_final_fused",
            "q_in_place",
            "c128a_topk_shared",
            "c128_indices_in_place",
            "dflash_staging_skip",
            "residual_reuse_small_path",
        ),
    ),
    Check(
        "sp_moe_gate",
        "is sequence-parallel MoE on exactly where each rule says, and does the shared expert follow?",
        ("sp_moe_config_aware",),
    ),
)


def concerning(toggle: str | None) -> Sequence[Check]:
    """The checks of a toggle; all without one. ToggleError for a name unknown, or one that no check concerns."""
    if toggle is None:
        return CHECKS
    name = find(toggle).name
    chosen = [check for check in CHECKS if name in check.toggles]
    if not chosen:
        raise ToggleError(f"no check of the audit concerns toggle '{name}': leave --toggle out to run all of them")
    return chosen


def run(check: Check) -> Report:
    """Run one check. One that raises has not answered its question: it is not-run, whatever it raised."""
    start, reason, outcome = time.monotonic(), "", Outcome()
    try:
        outcome = importlib.import_module(f"impl.audit.{check.name}").check()
    except NotRun as error:
        reason = str(error)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Report(
        check=check.name,
        question=check.question,
        status="not-run" if reason else "findings" if outcome.findings else "clean",
        findings=outcome.findings,
        evidence=outcome.evidence,
        reason=reason,
        seconds=round(time.monotonic() - start, 2),
    )
