"""Toggle `c128_indices_in_place`: dense prefill rows are mapped to global slots once a step, where they lie.

Only FlashInfer's SM120 attention reads global slots in its prefill; FlashMLA (SM90) reads local ones and is refused.
Unverified on SM120: no such card was at hand. `python -m impl.vllm_plugin.check_ops index` on one compares the mapping
in place with the fresh one, through a simulated consumer; a served run there is what would verify the rest.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from impl.vllm_plugin import state
from impl.vllm_plugin.facts import Facts, first, on_v4_gpu
from impl.vllm_plugin.patch import CACHE_OPS, FLASHINFER, V033, Patch, replace, sites
from impl.vllm_plugin.sites import Calls, Symbol, Text

TOGGLE = "c128_indices_in_place"
MAP = "compute_global_topk_indices_and_lens"
KERNEL = "_compute_global_topk_indices_and_lens_kernel"
LAUNCHER_033 = "_COMPUTE_GLOBAL_TOPK_INDICES_AND_LENS_KERNEL"
ATTENTION_CLASS = "DeepseekV4FlashInferSM120Attention"


def map_in_place(rows: Any, requests: Any, block_table: Any, block_size: int, valid: Any, version: str) -> Any:
    """Global slots over the local indices `rows` [N, W] int32, by vLLM's own kernel; returns the lengths [N] int32.

    The kernel loads an element and stores that element; nothing else reads it. A second run over the same rows would
    map slots, not indices.
    """
    import torch
    from vllm.models.deepseek_v4.common.ops import cache_utils

    lens = torch.empty(rows.shape[0], dtype=torch.int32, device=rows.device)
    if version in V033:
        getattr(cache_utils, LAUNCHER_033)(rows, lens, rows, requests, block_table, block_size, valid)
    else:
        getattr(cache_utils, KERNEL)[(rows.shape[0],)](
            rows, rows.stride(0), lens, rows, rows.stride(0), rows.shape[-1], requests, block_table,
            block_table.stride(0), block_size, valid, TRITON_BLOCK_SIZE=1024,
        )  # fmt: skip
    return lens


def whole_rows(rows: Any) -> Any:
    """Rows in their buffer's full width: the SM120 kernel takes rows to lie side by side. Lengths cap what it reads."""
    width = rows.stride(0)
    if rows.shape[-1] == width:
        return rows
    return rows.as_strided((rows.shape[0], width), (width, 1), rows.storage_offset())


class _Step:
    """The dense layers' metadata of the step that is running, if a dense layer's prefill is."""

    metadata: Any = None


def _patch_attention(module: ModuleType, version: str) -> None:
    attention = getattr(module, ATTENTION_CLASS)
    prefill, convert = attention._forward_prefill, getattr(module, MAP)
    step = _Step()

    @functools.wraps(prefill)
    def forward_prefill(self: Any, *args: Any, **kwargs: Any) -> Any:
        metadata = kwargs["attn_metadata"] if "attn_metadata" in kwargs else args[4]
        step.metadata = metadata if self.compress_ratio == 128 else None
        try:
            return prefill(self, *args, **kwargs)
        finally:
            step.metadata = None

    @functools.wraps(convert)
    def convert_once(
        topk_indices: Any, token_to_req_indices: Any, block_table: Any, block_size: int, is_valid_token: Any
    ) -> Any:
        metadata = step.metadata
        if metadata is None or topk_indices is not metadata.c128a_prefill_topk_indices:
            return convert(topk_indices, token_to_req_indices, block_table, block_size, is_valid_token)
        mapped = getattr(metadata, "_dsbench_mapped", None)
        if mapped is None:
            lens = map_in_place(topk_indices, token_to_req_indices, block_table, block_size, is_valid_token, version)
            mapped = metadata._dsbench_mapped = (whole_rows(topk_indices), lens)
        state.take(TOGGLE)
        return mapped

    attention._forward_prefill = forward_prefill
    replace(module, MAP, convert_once)


def _refuse(facts: Facts) -> str | None:
    reason = None
    if facts.platform != "sm120":
        reason = f"only SM120's attention reads global slots in its prefill; on {facts.platform} it reads local indices"
    return first(on_v4_gpu(facts), reason)


PATCH = Patch(
    toggle=TOGGLE,
    sites=sites(
        every=(
            Symbol(
                FLASHINFER,
                f"{ATTENTION_CLASS}._forward_prefill",
                ("self", "q", "compressed_k_cache", "swa_k_cache", "output", "attn_metadata", "swa_metadata"),
            ),
            Symbol(FLASHINFER, MAP),
            Calls(FLASHINFER, f"{ATTENTION_CLASS}._forward_prefill", MAP, times=1, positional=5),
            Text(
                FLASHINFER,
                f"{ATTENTION_CLASS}._forward_prefill",
                "local_topk_indices = attn_metadata.c128a_prefill_topk_indices",
            ),
            Symbol(
                CACHE_OPS,
                MAP,
                ("topk_indices", "token_to_req_indices", "block_table", "block_size", "is_valid_token"),
            ),
        ),
        up_to_026=(
            Symbol(
                CACHE_OPS,
                KERNEL,
                (
                    "global_topk_indices_ptr", "global_topk_indices_stride", "topk_lens_ptr", "topk_indices_ptr",
                    "topk_indices_stride", "topk", "token_to_req_indices_ptr", "block_table_ptr",
                    "block_table_stride", "block_size", "is_valid_token_ptr", "TRITON_BLOCK_SIZE",
                ),
            ),
        ),
        v033=(Symbol(CACHE_OPS, LAUNCHER_033), Calls(CACHE_OPS, MAP, LAUNCHER_033, times=1, positional=7)),
    ),
    hooks={FLASHINFER: _patch_attention},
    refuse=_refuse,
)  # fmt: skip

__all__ = ["PATCH", "map_in_place", "whole_rows"]
