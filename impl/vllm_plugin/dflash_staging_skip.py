"""Toggle `dflash_staging_skip`: the draft's context states go to their cache from where they are mixed.

vLLM copies them into a buffer of [T, H] and reads it back a few lines later, in the same eager region or the same
graph. A hand-over of the source itself is therefore legal, unlike one across steps (`draft_logits_persistent`).
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from impl.vllm_plugin import state
from impl.vllm_plugin.facts import Facts, first
from impl.vllm_plugin.patch import DFLASH, DSPARK, V033, Patch, sites
from impl.vllm_plugin.sites import Symbol, Text

TOGGLE = "dflash_staging_skip"


class HandOver:
    """In the staging buffer's place: rows copied in are the rows read next; each pair is used once.

    Keyed by the start of the rows, for 0.33 may stage a part only.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Any] = {}

    def __getitem__(self, rows: slice) -> Any:
        start = rows.start or 0
        source = self._waiting.pop(start, None)
        if source is None:
            return _Slot(self._waiting, start, rows.stop)
        if source.shape[0] != rows.stop - start:
            raise RuntimeError(f"{TOGGLE}: rows {start}:{rows.stop} are read, {source.shape[0]} were staged")
        return source


class _Slot:
    """Rows about to be staged."""

    def __init__(self, waiting: dict[int, Any], start: int, stop: int) -> None:
        self._waiting, self._start, self._stop = waiting, start, stop

    def copy_(self, source: Any) -> None:
        if source.shape[0] != self._stop - self._start:
            raise RuntimeError(f"{TOGGLE}: {source.shape[0]} rows for {self._start}:{self._stop}")
        self._waiting[self._start] = source
        state.take(TOGGLE)


def _patch_speculator(module: ModuleType, version: str) -> None:
    build = module.DSparkSpeculator.__init__

    @functools.wraps(build)
    def build_without(self: Any, vllm_config: Any, device: Any) -> None:
        build(self, vllm_config, device)
        mode = vllm_config.compilation_config.cudagraph_mode
        if version in V033 and self._aux_staging is None and getattr(mode, "name", "") not in ("NONE", "PIECEWISE"):
            state.markers.refuse(TOGGLE, "the draft's graph reads the staging buffer itself: no aux staging")
            return
        self.hidden_states = HandOver()

    module.DSparkSpeculator.__init__ = build_without


def _refuse(facts: Facts) -> str | None:
    return first(
        None if facts.method == "dspark" else f"only the dspark method stages context, and this is {facts.method}",
        None if facts.runner == "v2" else "dspark runs on the V2 model runner only",
    )


PATCH = Patch(
    toggle=TOGGLE,
    sites=sites(
        every=(
            Symbol(DSPARK, "DSparkSpeculator.__init__", ("self", "vllm_config", "device")),
            Text(DSPARK, "DSparkSpeculator.__init__", "draft_hidden = self.draft_model_config.get_hidden_size()"),
        ),
        up_to_026=(
            Text(
                DFLASH,
                "DFlashSpeculator.propose",
                "self.hidden_states[:num_target_tokens].copy_(hidden_states[:num_target_tokens])",
            ),
        ),
        v033=(
            Text(
                DFLASH,
                "DFlashSpeculator._store_hidden_states",
                "self.hidden_states[start:num_tokens].copy_(hidden_states)",
            ),
            Text(DFLASH, "DFlashSpeculator.__init__", "self._aux_staging: torch.Tensor | None = None"),
        ),
    ),
    hooks={DSPARK: _patch_speculator},
    refuse=_refuse,
)

__all__ = ["PATCH", "HandOver"]
