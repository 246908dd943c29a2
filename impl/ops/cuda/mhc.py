"""mHC on Hopper by thread-block clusters: the seam, PRE and the fused heads, each reading its streams once (`mhc.cu`).

Outputs may alias inputs at any number of tokens: every element is read and overwritten by one and the same thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from impl.ops.cuda.build import CAPABILITY, load
from impl.ops.mhc import HeadWeights, SeamOutput, SeamWeights

HIDDEN, STREAMS = 4096, 4
"""What `mhc.cu` is built for."""
SEAM, PRE, HEAD = 0, 1, 2
WARPS = 16


class _Args(ctypes.Structure):
    """`Args` of mhc.cu, field by field."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("residual", "y", "post", "comb", "fn", "scale", "base", "norm")),
        *((name, ctypes.c_void_p) for name in ("residual_out", "input_out", "mean", "post_out", "comb_out")),
        *((name, ctypes.c_float) for name in ("hc_eps", "rms_eps", "post_mult")),
        *((name, ctypes.c_int) for name in ("iters", "tokens")),
    ]


def seam(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, weights: SeamWeights, *,
    residual_out: Tensor | None = None, input_out: Tensor | None = None, warps: int = WARPS,
) -> SeamOutput:  # fmt: skip
    """As `impl.ops.mhc.seam`; `residual_out` may be `residual` and `input_out` may be `y` at any number of tokens."""
    new = torch.empty_like(residual) if residual_out is None else residual_out
    layer_input = torch.empty_like(y) if input_out is None else input_out
    new_post, new_comb = torch.empty_like(post), torch.empty_like(comb)
    _launch(
        SEAM, warps, residual, weights, y=y, post=post, comb=comb, residual_out=new, input_out=layer_input,
        post_out=new_post, comb_out=new_comb, norm=weights.norm,
    )  # fmt: skip
    return SeamOutput(new, new_post, new_comb, layer_input)


def pre(residual: Tensor, weights: SeamWeights, *, warps: int = WARPS) -> SeamOutput:
    """As `impl.ops.mhc.pre`."""
    n, hc, hidden = residual.shape
    layer_input = residual.new_empty(n, hidden)
    post = residual.new_empty(n, hc, dtype=torch.float32)
    comb = residual.new_empty(n, hc, hc, dtype=torch.float32)
    _launch(PRE, warps, residual, weights, input_out=layer_input, post_out=post, comb_out=comb, norm=weights.norm)
    return SeamOutput(residual, post, comb, layer_input)


def post_head(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, weights: HeadWeights, out: Tensor,
    mean: Tensor | None = None, *, warps: int = WARPS,
) -> None:  # fmt: skip
    """As `impl.ops.mhc.post_head`; `out` or `mean` may be `y`."""
    _launch(HEAD, warps, residual, weights, y=y, post=post, comb=comb, input_out=out, mean=mean)


def _launch(
    mode: int, warps: int, residual: Tensor, weights: SeamWeights | HeadWeights, **tensors: Tensor | None
) -> None:
    n, hc, hidden = residual.shape
    if (hc, hidden) != (STREAMS, HIDDEN):
        raise ValueError(f"these kernels are built for {STREAMS} streams of {HIDDEN}, got {hc} of {hidden}")
    named = {"residual": residual, "fn": weights.fn, "scale": weights.scale, "base": weights.base, **tensors}
    given = {name: tensor for name, tensor in named.items() if tensor is not None}
    for name, tensor in given.items():
        wanted = torch.bfloat16 if name in BF16 else torch.float32
        if tensor.dtype != wanted or not tensor.is_contiguous() or tensor.device != residual.device:
            raise ValueError(
                f"{name} must be contiguous {wanted} on {residual.device}, got {tensor.dtype}, "
                f"strides {tensor.stride()} on {tensor.device}"
            )
    if n == 0:
        return
    args = _Args(hc_eps=weights.hc_eps, rms_eps=weights.rms_eps, tokens=n)
    if isinstance(weights, SeamWeights):
        args.post_mult, args.iters = weights.post_mult, weights.sinkhorn_iters
    for name, tensor in given.items():
        setattr(args, name, tensor.data_ptr())
    library = _library(residual.device.index or 0)
    code = library.mhc_launch(mode, warps, ctypes.byref(args), torch.cuda.current_stream(residual.device).cuda_stream)
    if code:
        raise RuntimeError(
            "mhc.cu: " + (f"no kernel of {warps} warps" if code < 0 else library.mhc_error(code).decode())
        )


BF16 = {"residual", "y", "residual_out", "input_out", "mean"}


@cache
def _library(device: int) -> ctypes.CDLL:
    capability = torch.cuda.get_device_capability(device)
    if capability != CAPABILITY:
        raise RuntimeError(f"mhc.cu is built for compute capability {CAPABILITY}, got {capability}")
    library = load("mhc")
    library.mhc_launch.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    library.mhc_error.restype = ctypes.c_char_p
    return library


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "mhc_seam": seam,
    "mhc_post_head": post_head,
    "mhc_post_mean_head": post_head,
    "mhc_pre": pre,
}
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {name: [{"warps": 16}, {"warps": 8}] for name in OPERATIONS}

__all__ = ["OPERATIONS", "VARIANTS", "post_head", "pre", "seam"]
