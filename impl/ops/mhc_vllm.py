"""vLLM's own mHC operations under the names and signatures of `impl.ops.mhc`, to be checked and timed beside ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor

from impl.ops.mhc import HeadWeights, SeamOutput, SeamWeights
from impl.vllm_plugin.install import vllm_version
from impl.vllm_plugin.mhc_seam import Seam


def seam(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, weights: SeamWeights, *,
    residual_out: Tensor | None = None, input_out: Tensor | None = None,
) -> SeamOutput:  # fmt: skip
    """vLLM's fused POST and PRE; with targets given, its kernels in place, as the plugin calls them."""
    from vllm.model_executor.kernels.mhc import tilelang

    function: Any = tilelang.mhc_fused_post_pre_tilelang
    if residual_out is not None:
        function = Seam(function, vllm_version())
        function.reuse = {"residual", "input"}
    new, new_post, new_comb, rows = function(
        y, residual, post[..., None], comb, weights.fn, weights.scale, weights.base, *_gates(weights),
        norm_weight=_bf16(weights.norm), norm_eps=weights.rms_eps,
    )  # fmt: skip
    return SeamOutput(new, new_post[..., 0], new_comb, rows)


def pre(residual: Tensor, weights: SeamWeights) -> SeamOutput:
    from vllm.model_executor.kernels.mhc import tilelang

    post, comb, rows = tilelang.mhc_pre_tilelang(
        residual, weights.fn, weights.scale, weights.base, *_gates(weights),
        norm_weight=_bf16(weights.norm), norm_eps=weights.rms_eps,
    )  # fmt: skip
    return SeamOutput(residual, post[..., 0], comb, rows)


@cache
def _bf16(norm: Tensor) -> Tensor:
    """Once, or the timing would hold a conversion that vLLM does not do."""
    return norm.bfloat16()


def _gates(weights: SeamWeights) -> tuple[float, float, float, float, int]:
    return weights.rms_eps, weights.hc_eps, weights.hc_eps, weights.post_mult, weights.sinkhorn_iters


def post_streams(residual: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    from vllm.model_executor.kernels.mhc import tilelang

    return tilelang.mhc_post_tilelang(y, residual, post[..., None], comb)


def post_mean(residual: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    return post_streams(residual, y, post, comb).mean(dim=1)


def head(streams: Tensor, weights: HeadWeights) -> Tensor:
    from vllm.model_executor.kernels.mhc import tilelang

    return tilelang.hc_head_fused_kernel_tilelang(
        streams, weights.fn, weights.scale, weights.base, weights.rms_eps, weights.hc_eps
    )


def post_head(residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, weights: HeadWeights) -> Tensor:
    return head(post_streams(residual, y, post, comb), weights)


def post_mean_head(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, weights: HeadWeights
) -> tuple[Tensor, Tensor]:
    streams = post_streams(residual, y, post, comb)
    return streams.mean(dim=1), head(streams, weights)


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "mhc_pre": pre,
    "mhc_post": post_streams,
    "mhc_seam": seam,
    "mhc_post_mean": post_mean,
    "mhc_post_head": post_head,
    "mhc_post_mean_head": post_mean_head,
}

__all__ = ["OPERATIONS"]
