"""Toggle `mtp_hidden_skip`: the target keeps no copy of its last streams for a method that never reads them.

Up to 0.26 the copy into the buffer is not guarded, so an object that drops it takes the buffer's place; and the runner
slices whatever the getter returns, so the getter goes. 0.33 asks the class for the getter (it decides how wide the
draft's states are), so there it stays and returns None. The buffer lives for a moment while the model is built.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from impl.vllm_plugin import state
from impl.vllm_plugin.facts import Facts, first, on_v4_gpu
from impl.vllm_plugin.patch import MODEL, V033, Patch, sites
from impl.vllm_plugin.sites import Calls, Symbol, Text

TOGGLE = "mtp_hidden_skip"
GETTER = "get_mtp_target_hidden_states"
DO_NOT_READ = (None, "dspark", "ngram", "ngram_gpu", "suffix")
"""Methods that never read the staged streams. Eagle-like methods get them from the runner up to 0.26."""


class Discard:
    """In the buffer's place: takes a slice and a copy, keeps neither."""

    def __getitem__(self, index: Any) -> Discard:
        return self

    def copy_(self, source: Any) -> Discard:
        state.take(TOGGLE)
        return self


def _patch_model(module: ModuleType, version: str) -> None:
    build = module.DeepseekV4Model.__init__

    @functools.wraps(build)
    def build_without(self: Any, *, vllm_config: Any, prefix: str = "") -> None:
        build(self, vllm_config=vllm_config, prefix=prefix)
        speculative = vllm_config.speculative_config
        method = speculative.method if speculative is not None else None
        if method not in DO_NOT_READ:
            state.markers.refuse(TOGGLE, f"inert: the {method} method reads the staged hidden states")
        elif self._mtp_hidden_buffer is None:
            state.markers.refuse(TOGGLE, "inert: this version stages no hidden states for this start")
        else:
            self._mtp_hidden_buffer = Discard()
            _hide(module.DeepseekV4ForCausalLM, version)

    module.DeepseekV4Model.__init__ = build_without


def _hide(model: Any, version: str) -> None:
    """No reader may get the object that drops: up to 0.26 readers ask whether the getter is there."""
    if version not in V033:
        if GETTER in vars(model):
            delattr(model, GETTER)
        return

    def nothing(self: Any) -> None:
        return None

    setattr(model, GETTER, nothing)


def _refuse(facts: Facts) -> str | None:
    reads = None
    if facts.method not in DO_NOT_READ:
        reads = f"the {facts.method} method reads the hidden states that it would not stage"
    return first(on_v4_gpu(facts), reads)


PATCH = Patch(
    toggle=TOGGLE,
    sites=sites(
        every=(
            Symbol(MODEL, "DeepseekV4Model.__init__", ("self", "*", "vllm_config", "prefix")),
            Symbol(MODEL, f"DeepseekV4ForCausalLM.{GETTER}", ("self",)),
            Text(
                MODEL,
                f"DeepseekV4ForCausalLM.{GETTER}",
                "return getattr(self.model, '_mtp_hidden_buffer', None)",
            ),
            Text(
                MODEL,
                "DeepseekV4Model.forward",
                "self._mtp_hidden_buffer[:num_tokens].copy_(hidden_states.flatten(1))",
            ),
        ),
        up_to_026=(Calls("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", f"self.model.{GETTER}", times=2),),
        v033=(
            Text("vllm.v1.worker.gpu.spec_decode.utils", "get_drafter_hidden_states", "return hidden_states"),
            Text(
                "vllm.v1.worker.gpu.spec_decode.speculator",
                "_target_feeds_hc_residual",
                f"return hasattr(target_cls, '{GETTER}')",
            ),
        ),
    ),
    hooks={MODEL: _patch_model},
    refuse=_refuse,
)

__all__ = ["PATCH"]
