"""Toggle `mhc_final_fused`: aux means and the head from the last seam's inputs, without the streams between.

POST returns a promise of the new streams. A mean of them is memory that is written when the promise ends: before the
next layer runs, which may write over what the mean is made of, or together with the head, in one kernel. The head takes
a promise where it took streams. A promise is void once another layer has run, which is also what keeps the old streams
from living longer than they did.

The kernels are `impl.ops.dispatch`'s choice for the card, the widths and the number of tokens. They are plain functions
on the current stream that allocate nothing but outputs and scratch, by torch, and read nothing on the host: they can be
captured. vLLM runs a step of each size once before it captures one, and that is where libraries are loaded.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from impl.dims import SHAPES
from impl.ops import dispatch
from impl.vllm_plugin import state
from impl.vllm_plugin.facts import Facts, first, on_v4_gpu, one_stage
from impl.vllm_plugin.mtp_hidden_skip import DO_NOT_READ
from impl.vllm_plugin.patch import DRAFT, MODEL, TILELANG, TILELANG_KERNELS, V033, Patch, replace, sites
from impl.vllm_plugin.sites import Calls, Symbol, Text

TOGGLE = "mhc_final_fused"
POST = "mhc_post_tilelang"
HEAD = "hc_head_fused_kernel_tilelang"
MEAN_OP, HEAD_OP, BOTH_OP = OPS = ("mhc_post_mean", "mhc_post_head", "mhc_post_mean_head")
STREAMS = 4
"""What the kernels mix."""
ALIGNED = 16
"""Bytes of which every tensor's address must be a multiple."""

log = logging.getLogger("vllm.dsbench")
_promised: list[Promise] = []
"""Promises since the last layer."""
_looked: dict[tuple[Any, ...], str] = {}
"""Why tensors of these shapes and types are not taken; empty where they are."""


class Promise:
    """The new streams of one seam, not computed: bf16 [N, hc, H]."""

    def __init__(self, x: Any, residual: Any, post: Any, comb: Any) -> None:
        self._inputs: tuple[Any, Any, Any, Any] | None = (residual, x, post, comb)
        self._mean: Any = None
        self.shape = residual.shape

    def inputs(self) -> tuple[Any, Any, Any, Any]:
        """residual, x, post, comb: as the kernels take them."""
        if self._inputs is None:
            raise RuntimeError(f"{TOGGLE}: streams are read after another layer ran; they must be evaluated before")
        return self._inputs

    def mean(self, dim: int) -> Any:
        """bf16 [N, H], as `streams.mean(dim=1)`: written by `end` or by `head`."""
        if dim != 1:
            raise RuntimeError(f"{TOGGLE}: the mean is over streams, dim 1, and dim {dim} was asked")
        _, x, _, _ = self.inputs()
        if self._mean is None:
            self._mean = x.new_empty(x.shape)
        return self._mean

    def head(self, fn: Any, scale: Any, base: Any, rms_eps: float, hc_eps: float) -> Any:
        """bf16 [N, H], the head over the streams, and the mean where it was asked for; ends the promise."""
        from impl.ops.mhc import HeadWeights

        inputs, mean = self.inputs(), self._mean
        weights, out = HeadWeights(fn, scale, base, hc_eps, rms_eps), inputs[1].new_empty(inputs[1].shape)
        _kernel(HEAD_OP if mean is None else BOTH_OP, inputs)(*inputs, weights, out, mean)
        self._inputs = self._mean = None
        state.take(TOGGLE)
        if mean is not None:
            state.take(TOGGLE)
        return out

    def end(self) -> None:
        """Write the mean that was asked for, and let go of what the streams would be made of."""
        if self._inputs is not None and self._mean is not None:
            _kernel(MEAN_OP, self._inputs)(*self._inputs, self._mean)
            state.take(TOGGLE)
        self._inputs = self._mean = None

    def flatten(self, start_dim: int) -> Promise:
        """What the target would stage for the MTP method; the object in the buffer's place drops it."""
        return self


def shape_of(hidden: int, streams: int) -> str:
    """The tuning table's name for these widths; any, where it has none."""
    alike = (dims.name for dims in SHAPES.values() if (dims.hidden_size, dims.hc_mult) == (hidden, streams))
    return next(alike, dispatch.ANY)


def _kernel(op: str, inputs: tuple[Any, Any, Any, Any]) -> Callable[..., Any]:
    """What dispatch chooses for promised streams that `refusal` has let pass."""
    chosen = _chosen(op, inputs[0])
    if chosen is None:
        raise RuntimeError(f"{TOGGLE}: no kernel computes {op} for {tuple(inputs[0].shape)} on {inputs[0].device}")
    return chosen


def _chosen(op: str, residual: Any) -> Callable[..., Any] | None:
    n, streams, hidden = residual.shape
    return dispatch.kernel(op, residual.device, shape_of(hidden, streams), max(n, 1))


def refusal(x: Any, residual: Any, post: Any, comb: Any) -> str:
    """Why the kernels cannot take these tensors, POST's own; empty where they can.

    Whether a kernel takes shapes and types is asked at the first call of each.
    """
    tensors = (x, residual, post, comb)
    if not all(tensor.is_contiguous() for tensor in tensors):
        return "an input is not contiguous"
    if any(tensor.data_ptr() % ALIGNED for tensor in tensors):
        return f"an input does not begin at a multiple of {ALIGNED} bytes"
    key = (residual.device, *((tensor.shape, tensor.dtype) for tensor in tensors))
    if key not in _looked:
        _looked[key] = _shape_refusal(x, residual, post, comb)
    return _looked[key]


def _shape_refusal(x: Any, residual: Any, post: Any, comb: Any) -> str:
    import torch

    n, hidden = x.shape
    wanted = {
        "x": (x, (n, hidden), torch.bfloat16),
        "residual": (residual, (n, STREAMS, hidden), torch.bfloat16),
        "post": (post, (n, STREAMS, 1), torch.float32),
        "comb": (comb, (n, STREAMS, STREAMS), torch.float32),
    }
    for name, (tensor, shape, dtype) in wanted.items():
        if (tuple(tensor.shape), tensor.dtype) != (shape, dtype):
            return f"the kernels take {name} of {dtype} {shape}, got {tensor.dtype} {tuple(tensor.shape)}"
    before = dispatch.asked()
    missing = [op for op in OPS if _chosen(op, residual) is None]
    if missing:
        return f"no kernel computes {missing[0]} for {tuple(residual.shape)} on {residual.device}"
    if (now := dispatch.asked()) != before:
        log.info("%s: %s", TOGGLE, ", ".join(f"{op} by {'/'.join(now[op])}" for op in OPS if op in now))
    return ""


def _patch_layers(module: ModuleType, version: str) -> None:
    forward = module.DeepseekV4DecoderLayer.forward

    @functools.wraps(forward)
    def forward_after_promises(self: Any, *args: Any, **kwargs: Any) -> Any:
        while _promised:
            _promised.pop().end()
        return forward(self, *args, **kwargs)

    module.DeepseekV4DecoderLayer.forward = forward_after_promises
    patch_consumer(module, version)


def patch_consumer(module: ModuleType, version: str) -> None:
    """POST and the head of a module that uses them: a promise, and what takes it."""
    compute, head = getattr(module, POST), getattr(module, HEAD)

    @functools.wraps(compute)
    def promise(x: Any, residual: Any, post_layer_mix: Any, comb_res_mix: Any) -> Any:
        if reason := refusal(x, residual, post_layer_mix, comb_res_mix):
            state.markers.refuse(TOGGLE, reason)
            return compute(x, residual, post_layer_mix, comb_res_mix)
        promised = Promise(x, residual, post_layer_mix.squeeze(-1), comb_res_mix)
        _promised.append(promised)
        return promised

    @functools.wraps(head)
    def head_of(streams: Any, fn: Any, scale: Any, base: Any, rms_eps: float, hc_eps: float) -> Any:
        if not isinstance(streams, Promise):
            return head(streams, fn, scale, base, rms_eps, hc_eps)
        return streams.head(fn, scale, base, rms_eps, hc_eps)

    replace(module, POST, promise)
    replace(module, HEAD, head_of)


def _refuse(facts: Facts) -> str | None:
    reads = sharded = None
    if facts.method not in DO_NOT_READ:
        reads = f"the {facts.method} method reads the streams before the head"
    if facts.version in V033 and facts.expert_parallel and facts.tp > 1:
        sharded = "with expert parallelism and TP > 1 this version gathers the streams of all ranks before the head"
    return first(on_v4_gpu(facts), one_stage(facts), reads, sharded) or kernels_refusal(facts)


def kernels_refusal(facts: Facts) -> str | None:
    """Why no kernel computes the operations on such a card; None where one does. The GPU is not touched.

    What nvcc has to build is built here, once: in a worker it would be in the midst of the memory profile.
    """
    if facts.streams != STREAMS:
        return f"its kernels mix {STREAMS} streams, and this model has {facts.streams}"
    capability, shape = facts.capability, shape_of(facts.hidden, facts.streams)
    try:
        found = [dispatch.usable(op, capability, shape) for op in OPS]
        for op, backends in zip(OPS, found, strict=True):
            if not any(why == "" for why in backends.values()):
                return f"no kernel computes {op}: " + "; ".join(f"{name}: {why}" for name, why in backends.items())
        if any(backends.get("cuda") == "" for backends in found):
            from impl.ops.cuda.build import build_all

            build_all()
    except dispatch.DispatchError as error:
        return str(error)
    except (RuntimeError, OSError) as error:
        return f"its CUDA kernels cannot be built: {str(error).splitlines()[0]}: {dispatch.FORCE}=triton does without"
    return None


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
            # What the head computes, and of which types: `impl.ops.mhc.HeadWeights`, in the kernels' own words.
            *(
                Text(TILELANG_KERNELS, "hc_head_fuse_tilelang", statement)
                for statement in (
                    "fn: T.Tensor[[hc_mult, hc_dim], T.float32]",
                    "hc_scale: T.Tensor[[1], T.float32]",
                    "hc_base: T.Tensor[[hc_mult], T.float32]",
                    "rsqrt_val[0] = T.rsqrt(sqrsum_r[0] / hc_dim + rms_eps)",
                    "pre_mix_shared[m] = T.sigmoid(mixes_r[m] * rsqrt_val[0] * hc_scale[0] + hc_base[m]) + hc_eps",
                    "ol[i1_h] += pre * xl[i_hc, i1_h]",
                )
            ),
            *(
                Text(module, f"{owner}.__init__", f"self.hc_head_{name} = nn.Parameter({shape}, requires_grad=False)")
                for module, owner, width in (
                    (MODEL, "DeepseekV4Model", "self.hc_dim"),
                    (DRAFT, "DSparkDeepseekV4Model", "hc_dim"),
                )
                for name, shape in (
                    ("fn", f"torch.empty(self.hc_mult, {width}, dtype=torch.float32)"),
                    ("base", "torch.empty(self.hc_mult, dtype=torch.float32)"),
                    ("scale", "torch.empty(1, dtype=torch.float32)"),
                )
            ),
        ),
    ),
    hooks={MODEL: _patch_layers, DRAFT: patch_consumer},
    refuse=_refuse,
)

__all__ = ["PATCH", "Promise", "patch_consumer", "refusal", "shape_of"]
