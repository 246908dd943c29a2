"""Toggle `mhc_final_fused`: aux means and the head from the last seam's inputs, without the streams between.

POST returns a promise of the new streams. Its mean is taken at once, while what it reads is alive; the head takes a
promise where it took streams. A promise is void once another layer has run, which is also what keeps the old streams
from living longer than they did.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from impl.vllm_plugin import state
from impl.vllm_plugin.facts import Facts, first, on_v4_gpu, one_stage
from impl.vllm_plugin.mtp_hidden_skip import DO_NOT_READ
from impl.vllm_plugin.patch import DRAFT, MODEL, TILELANG, V033, Patch, replace, sites
from impl.vllm_plugin.sites import Calls, Symbol, Text

TOGGLE = "mhc_final_fused"
POST = "mhc_post_tilelang"
HEAD = "hc_head_fused_kernel_tilelang"

_promised: list[Promise] = []
"""Promises since the last layer."""


class Promise:
    """The new streams of one seam, not computed: bf16 [N, hc, H]."""

    def __init__(self, x: Any, residual: Any, post: Any, comb: Any) -> None:
        self._inputs: tuple[Any, Any, Any, Any] | None = (x, residual, post, comb)
        self.shape = residual.shape

    def inputs(self) -> tuple[Any, Any, Any, Any]:
        if self._inputs is None:
            raise RuntimeError(f"{TOGGLE}: streams are read after another layer ran; they must be evaluated before")
        return self._inputs

    def release(self) -> None:
        self._inputs = None

    def mean(self, dim: int) -> Any:
        """bf16 [N, H], as `streams.mean(dim=1)`."""
        if dim != 1:
            raise RuntimeError(f"{TOGGLE}: the mean is over streams, dim 1, and dim {dim} was asked")
        from impl.vllm_plugin import post_kernels

        out = post_kernels.post_mean(*self.inputs())
        state.take(TOGGLE)
        return out

    def flatten(self, start_dim: int) -> Promise:
        """What the target would stage for the MTP method; the object in the buffer's place drops it."""
        return self


def _patch_layers(module: ModuleType, version: str) -> None:
    forward = module.DeepseekV4DecoderLayer.forward

    @functools.wraps(forward)
    def forward_after_release(self: Any, *args: Any, **kwargs: Any) -> Any:
        while _promised:
            _promised.pop().release()
        return forward(self, *args, **kwargs)

    module.DeepseekV4DecoderLayer.forward = forward_after_release
    _patch_consumer(module, version)


def _patch_consumer(module: ModuleType, version: str) -> None:
    compute, head = getattr(module, POST), getattr(module, HEAD)

    @functools.wraps(compute)
    def promise(x: Any, residual: Any, post_layer_mix: Any, comb_res_mix: Any) -> Any:
        from impl.vllm_plugin import post_kernels

        if reason := post_kernels.fits(x, residual, post_layer_mix, comb_res_mix):
            state.markers.refuse(TOGGLE, reason)
            return compute(x, residual, post_layer_mix, comb_res_mix)
        promised = Promise(x, residual, post_layer_mix, comb_res_mix)
        _promised.append(promised)
        return promised

    @functools.wraps(head)
    def head_of(streams: Any, fn: Any, scale: Any, base: Any, rms_eps: float, hc_eps: float) -> Any:
        if not isinstance(streams, Promise):
            return head(streams, fn, scale, base, rms_eps, hc_eps)
        from impl.vllm_plugin import post_kernels

        x, residual, post, comb = streams.inputs()
        out = post_kernels.post_head(x, residual, post, comb, fn, scale, base, rms_eps, hc_eps)
        streams.release()
        state.take(TOGGLE)
        return out

    replace(module, POST, promise)
    replace(module, HEAD, head_of)


def _refuse(facts: Facts) -> str | None:
    reads = sharded = None
    if facts.method not in DO_NOT_READ:
        reads = f"the {facts.method} method reads the streams before the head"
    if facts.version in V033 and facts.expert_parallel and facts.tp > 1:
        sharded = "with expert parallelism and TP > 1 this version gathers the streams of all ranks before the head"
    return first(on_v4_gpu(facts), one_stage(facts), reads, sharded)


PATCH = Patch(
    toggle=TOGGLE,
    sites=sites(
        every=(
            Symbol(TILELANG, POST, ("x", "residual", "post_layer_mix", "comb_res_mix")),
            Symbol(TILELANG, HEAD, ("hs_flat", "fn", "hc_scale", "hc_base", "rms_eps", "hc_eps")),
            Calls(MODEL, "DeepseekV4Model.forward", POST, times=2, positional=4),
            Calls(MODEL, "DeepseekV4Model.forward", HEAD, times=1, positional=6),
            Calls(MODEL, "DeepseekV4Model.forward", "aux_recon.mean", times=1),
            Text(MODEL, "DeepseekV4Model.forward", "hidden_states = final_aux_recon"),
            Calls(DRAFT, "DSparkDeepseekV4Model.forward", POST, times=1, positional=4),
            Calls(DRAFT, "DSparkDeepseekV4Model.forward", HEAD, times=1, positional=6),
        ),
    ),
    hooks={MODEL: _patch_layers, DRAFT: _patch_consumer},
    refuse=_refuse,
)

__all__ = ["PATCH", "Promise"]
