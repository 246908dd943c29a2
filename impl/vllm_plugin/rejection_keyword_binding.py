"""Toggle `rejection_keyword_binding`: optional arguments of rejection sampling by name; off, by place.

The parameter that made them slip, `draft_logits_index_mapping`, is in no released vLLM: it is put into the signature
here, before the synthetic rates. On, the call is bound by vLLM's own parameter names and nothing slips. Off, the rates
land in the new parameter and are lost: no error, and drafts are accepted as if nothing had been asked.
The V1 sampler names its optional arguments already, so it has no off state.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from impl.vllm_plugin import state
from impl.vllm_plugin.facts import Facts, first
from impl.vllm_plugin.patch import REJECTION_V1, REJECTION_V2, REJECTION_V2_UTILS, Patch, replace, sites
from impl.vllm_plugin.sites import Calls, Symbol, Text

TOGGLE = "rejection_keyword_binding"
CALL = "rejection_sample"
ADDED = "draft_logits_index_mapping"
FIRST_OPTIONAL = {REJECTION_V2: "synthetic_conditional_rates", REJECTION_V1: "synthetic_mode"}
CPU_VERSION = "0.32.0"
"""The CPU build; only its V1 sampler is known here."""


def extended(sample: Callable[..., Any], before: str) -> Callable[..., Any]:
    """`sample` with the added parameter in front of `before`. Its value is dropped: upstream has no use for it."""
    names = list(inspect.signature(sample).parameters)
    names.insert(names.index(before), ADDED)

    @functools.wraps(sample)
    def with_added(*args: Any, **kwargs: Any) -> Any:
        bound = {**dict(zip(names, args, strict=False)), **kwargs}
        bound.pop(ADDED, None)
        return sample(**bound)

    return with_added


def _patch_sampler(module: ModuleType, version: str) -> None:
    sample = getattr(module, CALL)
    names = list(inspect.signature(sample).parameters)
    callee = extended(sample, FIRST_OPTIONAL[module.__name__])

    @functools.wraps(sample)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not state.toggles.on(TOGGLE):
            return callee(*args, **kwargs)
        state.take(TOGGLE)
        return callee(**dict(zip(names, args, strict=False)), **kwargs)

    replace(module, CALL, call)


def _refuse(facts: Facts) -> str | None:
    if state.toggles.on(TOGGLE):
        return None
    return first(
        None if facts.method else "there is no speculation, so nothing is verified",
        None if facts.runner == "v2" else "the V1 sampler names its optional arguments: none can slip",
        None if facts.synthetic else "without synthetic acceptance the argument that slips is None either way",
    )


_V1 = (
    Symbol(REJECTION_V1, CALL),
    Calls(REJECTION_V1, "RejectionSampler.forward", CALL, times=1, positional=8),
)
_V2 = (
    Symbol(REJECTION_V2, CALL),
    Text(
        REJECTION_V2_UTILS,
        CALL,
        "num_reqs = cu_num_logits.shape[0] - 1",
    ),
)

PATCH = Patch(
    toggle=TOGGLE,
    sites={
        **sites(
            every=(*_V1, *_V2),
            up_to_026=(Calls(REJECTION_V2, "RejectionSampler", CALL, times=1, positional=12),),
            v033=(Calls(REJECTION_V2, "RejectionSampler", CALL, times=1, positional=12),),
        ),
        CPU_VERSION: _V1,
    },
    hooks={REJECTION_V2: _patch_sampler, REJECTION_V1: _patch_sampler},
    refuse=_refuse,
)

__all__ = ["PATCH", "extended"]
