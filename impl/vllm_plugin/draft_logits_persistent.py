"""Toggle `draft_logits_persistent`: on, vLLM's own buffer of draft logits; off, the defect of a Python handover.

Off, every drafting step writes fresh memory and assigns it to the attribute that verification reads. A replayed graph
does not run that assignment: the attribute stays with the graph captured last while others write elsewhere. Eager
drafts are right in both states.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from impl.vllm_plugin import state
from impl.vllm_plugin.facts import Facts, first
from impl.vllm_plugin.patch import DSPARK, Patch, sites
from impl.vllm_plugin.sites import Symbol

TOGGLE = "draft_logits_persistent"


def _patch_speculator(module: ModuleType, version: str) -> None:
    draw = module.DSparkSpeculator._sample_sequential

    @functools.wraps(draw)
    def draw_and_keep(self: Any, num_reqs: int, head_hidden: Any) -> None:
        if self.draft_logits is not None and not state.toggles.on(TOGGLE):
            self.draft_logits = self.draft_logits.new_zeros(self.draft_logits.shape)
        draw(self, num_reqs, head_hidden)
        if self.draft_logits is not None and state.toggles.on(TOGGLE):
            state.take(TOGGLE)

    module.DSparkSpeculator._sample_sequential = draw_and_keep


def _refuse(facts: Facts) -> str | None:
    if state.toggles.on(TOGGLE):
        return None
    return first(
        None if facts.method == "dspark" else f"its defect is planted in dspark's drafts, and this is {facts.method}",
        None if facts.draft_sample_method == "probabilistic" else "greedy drafts keep no logits to hand over",
    )


PATCH = Patch(
    toggle=TOGGLE,
    sites=sites(every=(Symbol(DSPARK, "DSparkSpeculator._sample_sequential", ("self", "num_reqs", "head_hidden")),)),
    hooks={DSPARK: _patch_speculator},
    refuse=_refuse,
)

__all__ = ["PATCH"]
