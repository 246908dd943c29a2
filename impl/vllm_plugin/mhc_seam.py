"""vLLM's mHC seam with output buffers of our choice: its own kernels, called as its own function calls them.

A plain function, not a registered operator: what it writes over stays visible to whoever traces it. One thread block a
token loads each element before it stores there, so old and new streams may share memory; the small-token kernel splits
a token over blocks and may not (vllm_hooks.md 4.7).
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from impl.vllm_plugin import state
from impl.vllm_plugin.buffers import reuse_refusal
from impl.vllm_plugin.facts import Facts, first, on_v4_gpu, one_stage
from impl.vllm_plugin.patch import MODEL, TILELANG, TILELANG_KERNELS, V033, replace, sites
from impl.vllm_plugin.sites import Calls, Symbol, Text

NAME = "mhc_fused_post_pre_tilelang"
SMALL_TOKENS = 16
"""Up to 0.26 at most this many tokens take the split kernel; 0.33 asks mhc_fused_post_pre_split_config."""

_PARAMETERS = (
    "x", "residual", "post_layer_mix", "comb_res_mix", "fn", "hc_scale", "hc_base", "rms_eps", "hc_pre_eps",
    "hc_sinkhorn_eps", "hc_post_mult_value", "sinkhorn_repeat", "n_splits", "tile_n", "norm_weight", "norm_eps",
)  # fmt: skip

SITES = sites(
    every=(
        Symbol(TILELANG, NAME, _PARAMETERS),
        Symbol(MODEL, NAME),
        Calls(MODEL, "DeepseekV4DecoderLayer.forward", NAME, times=2, positional=12),
        Symbol("vllm.v1.worker.workspace", "_manager"),
    ),
    up_to_026=(
        Text(TILELANG, NAME, "use_small_fma = num_tokens <= 16"),
        Text(TILELANG, NAME, "residual_cur = torch.empty_like(residual_flat)"),
        Calls(TILELANG, NAME, "mhc_post_tilelang", times=1, positional=7),
        Calls(TILELANG, NAME, "tf32_hc_prenorm_gemm", times=1, positional=5),
        Calls(TILELANG, NAME, "mhc_pre_big_fuse_tilelang", times=1, positional=16),
        Calls(TILELANG, NAME, "mhc_pre_big_fuse_with_norm_tilelang", times=1, positional=18),
        Symbol(TILELANG_KERNELS, "compute_num_split"),
        Symbol(
            TILELANG,
            "_tilelang_hc_prenorm_gemm",
            ("x", "fn", "out", "sqrsum", "hidden_size", "hc_mult", "tile_n", "n_thr", "n_splits"),
        ),
    ),
    v033=(
        Symbol(TILELANG_KERNELS, "mhc_fused_post_pre_split_config", ("num_tokens", "hidden_size", "hc_mult")),
        Text(TILELANG, NAME, "residual_cur = torch.empty_like(residual_flat)"),
        Calls(TILELANG, NAME, "_MHC_POST_TILELANG_KERNEL", times=1, positional=7),
        Calls(TILELANG, NAME, "_MHC_PRE_BIG_FUSE_TILELANG_KERNEL", times=2, positional=13),
        Calls(TILELANG, NAME, "_hc_prenorm_gemm_outputs", times=1, positional=2),
    ),
)


def refuse(facts: Facts) -> str | None:
    return first(on_v4_gpu(facts), one_stage(facts))


class Seam:
    """In place of the model's seam: new streams into the old ones', layer input into the sublayer's output."""

    def __init__(self, original: Any, version: str) -> None:
        self.original = original
        self.v033 = version in V033
        self.reuse: set[str] = set()
        """`residual`, `input`: which buffers to write over."""

    def __call__(
        self, x: Any, residual: Any, post: Any, comb: Any, fn: Any, scale: Any, base: Any, rms_eps: float,
        pre_eps: float, sinkhorn_eps: float, post_mult: float, sinkhorn_repeat: int, n_splits: int = 1,
        tile_n: int = 1, norm_weight: Any = None, norm_eps: float = 1e-6,
    ) -> tuple[Any, Any, Any, Any]:  # fmt: skip
        take_residual = self._may_write("residual", residual, residual)
        take_input = self._may_write("input", x, residual)
        gates = (rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat)
        if not take_residual and not take_input:
            return self.original(
                x, residual, post, comb, fn, scale, base, *gates, n_splits=n_splits, tile_n=tile_n,
                norm_weight=norm_weight, norm_eps=norm_eps,
            )  # fmt: skip
        run = _run_033 if self.v033 else _run_up_to_026
        out = run(
            x, residual, post, comb, fn, scale, base, gates, norm_weight, norm_eps,
            residual if take_residual else None, x if take_input else None,
        )  # fmt: skip
        if out[0].data_ptr() == residual.data_ptr():
            state.take("mhc_residual_reuse")
        if out[3].data_ptr() == x.data_ptr():
            state.take("mhc_input_reuse")
        return out

    def _may_write(self, which: str, tensor: Any, residual: Any) -> bool:
        if which not in self.reuse:
            return False
        toggle = f"mhc_{which}_reuse"
        if self._splits_a_token(residual):
            state.markers.skip(toggle, "small-token path: its programs re-read what others write")
            return False
        reason = reuse_refusal("the old streams" if which == "residual" else "the sublayer output", tensor)
        if reason:
            state.markers.refuse(toggle, reason)
        return not reason

    def _splits_a_token(self, residual: Any) -> bool:
        hc_mult, hidden = residual.shape[-2:]
        n_tokens = residual.numel() // (hc_mult * hidden)
        if not self.v033:
            return n_tokens <= SMALL_TOKENS
        from vllm.model_executor.kernels.mhc.tilelang_kernels import mhc_fused_post_pre_split_config

        return mhc_fused_post_pre_split_config(n_tokens, hidden, hc_mult) is not None


def install(module: ModuleType, version: str, which: str) -> None:
    """Put a seam that writes over `which` in place of the model's, or add to the one that is there."""
    seam = getattr(module, NAME)
    if not isinstance(seam, Seam):
        seam = Seam(seam, version)
        replace(module, NAME, seam)
    seam.reuse.add(which)


def _norm(norm_weight: Any) -> Any:
    import torch

    return None if norm_weight is None else norm_weight.to(torch.bfloat16).contiguous()


def _empty(like: Any, *shape: int) -> Any:
    import torch

    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _run_up_to_026(
    x: Any, residual: Any, post: Any, comb: Any, fn: Any, scale: Any, base: Any, gates: tuple[Any, ...],
    norm_weight: Any, norm_eps: float, residual_out: Any, input_out: Any,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """POST, projection, gates and norm: the large-token path of 0.25.1 and 0.26.0."""
    import torch
    from vllm.model_executor.kernels.mhc import tilelang_kernels as kernels
    from vllm.model_executor.kernels.mhc.tilelang import _tilelang_hc_prenorm_gemm
    from vllm.utils.deep_gemm import is_deep_gemm_supported, tf32_hc_prenorm_gemm

    hc, hidden = residual.shape[-2:]
    outer, width, old = residual.shape[:-2], hc * (hc + 2), residual.view(-1, hc, hidden)
    n_tokens, deep_gemm = old.shape[0], is_deep_gemm_supported()
    n_splits = kernels.compute_num_split(64, hc * hidden, -(-n_tokens // 64)) if deep_gemm else 1
    products, squares = _empty(x, n_splits, n_tokens, width), _empty(x, n_splits, n_tokens)
    new = torch.empty_like(old) if residual_out is None else residual_out.view(-1, hc, hidden)
    new_post, new_comb = _empty(x, n_tokens, hc), _empty(x, n_tokens, hc * hc)
    layer_input = torch.empty_like(x) if input_out is None else input_out
    layer_input = layer_input.view(n_tokens, hidden)

    post, comb = post.view(n_tokens, hc), comb.view(n_tokens, hc, hc)
    kernels.mhc_post_tilelang(comb, old, post, x.view(n_tokens, hidden), new, hc, hidden)
    if deep_gemm:
        tf32_hc_prenorm_gemm(new.view(n_tokens, hc * hidden), fn, products, squares, n_splits)
    else:
        _tilelang_hc_prenorm_gemm(new.view(n_tokens, hc * hidden), fn, products, squares, hidden, hc)
    inputs = (products, squares, scale, base, new, new_post, new_comb, layer_input)
    weight = _norm(norm_weight)
    if weight is None:
        kernels.mhc_pre_big_fuse_tilelang(*inputs, hidden, *gates, n_splits, hc)
    else:
        kernels.mhc_pre_big_fuse_with_norm_tilelang(*inputs, weight, hidden, *gates, norm_eps, n_splits, hc)
    return _shaped(outer, hc, hidden, new, new_post, new_comb, layer_input)


def _run_033(
    x: Any, residual: Any, post: Any, comb: Any, fn: Any, scale: Any, base: Any, gates: tuple[Any, ...],
    norm_weight: Any, norm_eps: float, residual_out: Any, input_out: Any,
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """The same path of 0.33.0, where launchers choose splits and tiles."""
    import torch
    from vllm.model_executor.kernels.mhc import tilelang_kernels as kernels
    from vllm.model_executor.kernels.mhc.tilelang import _hc_prenorm_gemm_outputs

    hc, hidden = residual.shape[-2:]
    outer, old = residual.shape[:-2], residual.view(-1, hc, hidden)
    n_tokens = old.shape[0]
    new_post, new_comb = _empty(x, n_tokens, hc), _empty(x, n_tokens, hc * hc)
    layer_input = torch.empty_like(x) if input_out is None else input_out
    layer_input = layer_input.view(n_tokens, hidden)
    new = torch.empty_like(old) if residual_out is None else residual_out.view(-1, hc, hidden)

    post, comb = post.view(n_tokens, hc), comb.view(n_tokens, hc, hc)
    kernels._MHC_POST_TILELANG_KERNEL(comb, old, post, x.view(n_tokens, hidden), new, hc, hidden)
    products, squares = _hc_prenorm_gemm_outputs(
        new.view(n_tokens, hc * hidden), fn, hidden_size=hidden, hc_mult=hc
    )  # fmt: skip
    kernels._MHC_PRE_BIG_FUSE_TILELANG_KERNEL(
        products, squares, scale, base, new, new_post, new_comb, layer_input, *gates, norm_weight=_norm(norm_weight),
        norm_eps=norm_eps,
    )  # fmt: skip
    return _shaped(outer, hc, hidden, new, new_post, new_comb, layer_input)


def _shaped(
    outer: Any, hc: int, hidden: int, new: Any, post: Any, comb: Any, layer_input: Any
) -> tuple[Any, Any, Any, Any]:
    return (
        new.view(*outer, hc, hidden),
        post.view(*outer, hc, 1),
        comb.view(*outer, hc, hc),
        layer_input.view(*outer, hidden),
    )


__all__ = ["SITES", "Seam", "install", "refuse"]
