"""vLLM's own mHC functions of one version over the CPU stand-ins of their kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from impl.vllm_plugin.patch import TILELANG, TILELANG_KERNELS, V033
from tests.impl.vllm_plugin import kernels
from tests.impl.vllm_plugin.extract import module_of

FUSED = "mhc_fused_post_pre_tilelang"
POST = "mhc_post_tilelang"
HEAD = "hc_head_fused_kernel_tilelang"


def tilelang(root: Path, version: str, stand_in: Callable[..., ModuleType]) -> ModuleType:
    """The module `tilelang` with the real FUSED, POST and HEAD, in place where vLLM imports it from."""
    small = 32 if version in V033 else 16

    def split_kernel(*args: object, **kwargs: object) -> None:
        raise AssertionError("the small-token kernel is not stood in for")

    def outputs(z, fn, *, hidden_size, hc_mult):
        products, squares = z.new_zeros((1, *z.shape[:1], fn.shape[0])).float(), z.new_zeros((1, z.shape[0])).float()
        kernels.prenorm_gemm(z, fn, products, squares)
        return products, squares

    stand_in(
        TILELANG_KERNELS,
        compute_num_split=lambda block_k, k, grid: 2,
        mhc_post_tilelang=kernels.post,
        mhc_fused_tilelang=split_kernel,
        mhc_pre_big_fuse_tilelang=kernels.big_fuse_026,
        mhc_pre_big_fuse_with_norm_tilelang=kernels.big_fuse_with_norm_026,
        hc_head_fuse_tilelang=kernels.head,
        mhc_fused_post_pre_split_config=lambda n, hidden, hc: (1, 1) if n <= small else None,
        _MHC_FUSED_TILELANG_KERNEL=split_kernel,
        _MHC_POST_TILELANG_KERNEL=kernels.post,
        _MHC_PRE_BIG_FUSE_TILELANG_KERNEL=kernels.big_fuse_033,
        _HC_HEAD_FUSED_TILELANG_KERNEL=kernels.head,
    )
    stand_in(
        "vllm.utils.deep_gemm", is_deep_gemm_supported=lambda: True, tf32_hc_prenorm_gemm=kernels.prenorm_gemm
    )  # fmt: skip
    stand_in("vllm.utils.math_utils", cdiv=lambda a, b: -(-a // b))
    stand_in("vllm.v1.worker.workspace", _manager=None)
    real = module_of(
        root, TILELANG, [FUSED, POST, HEAD], _hc_prenorm_gemm_outputs=outputs,
        _tilelang_hc_prenorm_gemm=kernels.prenorm_gemm,
    )  # fmt: skip
    return stand_in(TILELANG, **{k: v for k, v in vars(real).items() if not k.startswith("__")})
