"""mHC operations to time: PRE, POST, the seam, and POST fused with the mean, with the head, and with both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from impl.bench.case import Case, Inputs, Outputs, normal, size
from impl.dims import Dims
from impl.ops.mhc import HeadWeights, SeamWeights


def inputs(dims: Dims, tokens: int, device: torch.device, seed: int) -> Inputs:
    hc, hidden = dims.hc_mult, dims.hidden_size
    width = hc * hidden

    def real(part: int, *shape: int) -> torch.Tensor:
        return normal(device, 100 * seed + part, *shape)

    comb = torch.softmax(real(1, tokens, hc, hc), -1)
    for _ in range(3):
        comb /= comb.sum(-2, keepdim=True)
        comb /= comb.sum(-1, keepdim=True)
    # As bf16 numbers: vLLM keeps the norm's weight in bf16.
    norm = (1 + 0.1 * real(2, hidden)).bfloat16().float()
    gates = (1 + 0.1 * real(3, 3), 0.1 * real(4, dims.n_mix))
    return {
        "y": real(5, tokens, hidden).bfloat16(),
        "residual": real(6, tokens, hc, hidden).bfloat16(),
        "post": 2 * torch.sigmoid(real(7, tokens, hc)),
        "comb": comb.contiguous(),
        "weights": SeamWeights(
            real(8, dims.n_mix, width) / width**0.5, *gates, norm, dims.hc_eps, dims.rms_norm_eps, dims.sinkhorn_iters
        ),
        "head": HeadWeights(
            real(9, hc, width) / width**0.5, 1 + 0.1 * real(10, 1), 0.1 * real(11, hc), dims.hc_eps, dims.rms_norm_eps
        ),
    }


def four(i: Inputs) -> tuple[torch.Tensor, ...]:
    """What a seam and POST take: residual, y, post, comb."""
    return i["residual"], i["y"], i["post"], i["comb"]


def _pre(function: Callable[..., Any], i: Inputs) -> Outputs:
    out = function(i["residual"], i["weights"])
    return out.post, out.comb, out.layer_input


def _seam(function: Callable[..., Any], i: Inputs) -> Outputs:
    return tuple(function(*four(i), i["weights"]))


def _seam_in_place(function: Callable[..., Any], i: Inputs) -> Outputs:
    return tuple(function(*four(i), i["weights"], residual_out=i["residual"], input_out=i["y"]))


def _post(function: Callable[..., Any], i: Inputs) -> Outputs:
    return (function(*four(i)),)


def _mean(function: Callable[..., Any], i: Inputs) -> Outputs:
    out = torch.empty_like(i["y"])
    function(*four(i), out)
    return (out,)


def _head(function: Callable[..., Any], i: Inputs) -> Outputs:
    out = torch.empty_like(i["y"])
    function(*four(i), i["head"], out)
    return (out,)


def _head_in_place(function: Callable[..., Any], i: Inputs) -> Outputs:
    function(*four(i), i["head"], i["y"])
    return (i["y"],)


def _mean_head(function: Callable[..., Any], i: Inputs) -> Outputs:
    out, mean = torch.empty_like(i["y"]), torch.empty_like(i["y"])
    function(*four(i), i["head"], out, mean)
    return out, mean


def _fn(i: Inputs, name: str) -> int:
    weights = i[name]
    return size(weights.fn, weights.scale, weights.base) + (size(weights.norm) if name == "weights" else 0)


def _read(i: Inputs) -> int:
    return size(*four(i))


def _vllm_pre(i: Inputs) -> Outputs:
    from vllm.model_executor.kernels.mhc import tilelang

    w = i["weights"]
    post, comb, x = tilelang.mhc_pre_tilelang(
        i["residual"], w.fn, w.scale, w.base, *_eps(w), norm_weight=_norm(i), norm_eps=w.rms_eps
    )
    return post.squeeze(-1), comb, x


def _eps(w: SeamWeights) -> tuple[float | int, ...]:
    return w.rms_eps, w.hc_eps, w.hc_eps, w.post_mult, w.sinkhorn_iters


def _norm(i: Inputs) -> torch.Tensor:
    """The weight as vLLM has it, converted once: not a part of the operation."""
    if "norm_bf16" not in i:
        i["norm_bf16"] = i["weights"].norm.bfloat16()
    return i["norm_bf16"]


def _vllm_seam(i: Inputs) -> Outputs:
    from vllm.model_executor.kernels.mhc import tilelang

    return _vllm_seam_by(tilelang.mhc_fused_post_pre_tilelang, i)


def _vllm_seam_in_place(i: Inputs) -> Outputs:
    """vLLM's own kernels with our buffers; its small-token path as it is, with fresh ones."""
    from vllm.model_executor.kernels.mhc import tilelang

    from impl.vllm_plugin.install import vllm_version
    from impl.vllm_plugin.mhc_seam import Seam

    seam: Any = Seam(tilelang.mhc_fused_post_pre_tilelang, vllm_version())
    seam.reuse = {"residual", "input"}
    return _vllm_seam_by(seam, i)


def _vllm_seam_by(seam: Callable[..., Any], i: Inputs) -> Outputs:
    w = i["weights"]
    streams, post, comb, x = seam(
        i["y"], i["residual"], i["post"][..., None], i["comb"], w.fn, w.scale, w.base, *_eps(w),
        norm_weight=_norm(i), norm_eps=w.rms_eps,
    )  # fmt: skip
    return streams, post.squeeze(-1), comb, x


def _vllm_post(i: Inputs) -> Outputs:
    from vllm.model_executor.kernels.mhc import tilelang

    return (tilelang.mhc_post_tilelang(i["y"], i["residual"], i["post"][..., None], i["comb"]),)


def _vllm_mean(i: Inputs) -> Outputs:
    return (_vllm_post(i)[0].mean(dim=1),)


def _vllm_head(i: Inputs) -> Outputs:
    return (vllm_head_of(_vllm_post(i)[0], i),)


def vllm_head_of(streams: torch.Tensor, i: Inputs) -> torch.Tensor:
    from vllm.model_executor.kernels.mhc import tilelang

    w = i["head"]
    return tilelang.hc_head_fused_kernel_tilelang(streams, w.fn, w.scale, w.base, w.rms_eps, w.hc_eps)


def _vllm_mean_head(i: Inputs) -> Outputs:
    (streams,) = _vllm_post(i)
    return vllm_head_of(streams, i), streams.mean(dim=1)


CASES = (
    Case("mhc_pre", "fresh", inputs, _pre,
         lambda i: size(i["residual"], i["post"], i["comb"], i["y"]) + _fn(i, "weights"), _vllm_pre),
    Case("mhc_post", "fresh", inputs, _post, lambda i: _read(i) + size(i["residual"]), _vllm_post, bitwise=(0,)),
    Case("mhc_seam", "fresh", inputs, _seam, lambda i: 2 * _read(i) + _fn(i, "weights"), _vllm_seam, bitwise=(0,)),
    Case("mhc_seam", "in place", inputs, _seam_in_place, lambda i: 2 * _read(i) + _fn(i, "weights"),
         _vllm_seam_in_place, changed=("residual", "y")),
    Case("mhc_post_mean", "fresh", inputs, _mean, lambda i: _read(i) + size(i["y"]), _vllm_mean, bitwise=(0,)),
    Case("mhc_post_head", "fresh", inputs, _head, lambda i: _read(i) + size(i["y"]) + _fn(i, "head"), _vllm_head),
    Case("mhc_post_head", "in place", inputs, _head_in_place,
         lambda i: _read(i) + size(i["y"]) + _fn(i, "head"), _vllm_head, changed=("y",)),
    Case("mhc_post_mean_head", "fresh", inputs, _mean_head,
         lambda i: _read(i) + 2 * size(i["y"]) + _fn(i, "head"), _vllm_mean_head, bitwise=(1,)),
)  # fmt: skip

FRESH = {case.op: case for case in CASES if case.form == "fresh"}


def computed(op: str, function: Callable[..., Any], i: Inputs, in_place: bool = False) -> Outputs:
    """One operation in fresh memory, or with its outputs over its inputs as far as they may be: also in forms that no
    engine has."""
    if not in_place or op == "mhc_pre":
        return FRESH[op].run(function, i)
    if op == "mhc_seam":
        return _seam_in_place(function, i)
    if op == "mhc_post":
        return (function(*four(i), out=i["residual"]),)
    if op == "mhc_post_mean":
        function(*four(i), i["y"])
        return (i["y"],)
    if op == "mhc_post_head":
        return _head_in_place(function, i)
    mean = torch.empty_like(i["y"])
    function(*four(i), i["head"], i["y"], mean)
    return i["y"], mean


__all__ = ["CASES", "computed", "four", "inputs", "vllm_head_of"]
