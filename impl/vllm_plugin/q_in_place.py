"""Toggle `q_in_place`: queries are normed and rotated where the projection left them.

vLLM's insert operator allocates its query output even when there is nothing to pad. Its sibling for bf16 caches works
in place: with no slots to insert it is the query half alone. The insert operator with no heads is the cache half alone,
and allocates only its least padding of 8 heads, in pieces of PIECE rows. Both are vLLM's kernels, so no rounding is
ours. They are two launches for one, so steps of at most PIECE / 8 rows, whose queries are no larger than that scratch,
keep vLLM's way.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from impl.platforms import padded_heads, query_in_place_refusal
from impl.vllm_plugin import state
from impl.vllm_plugin.buffers import reuse_refusal
from impl.vllm_plugin.facts import Facts, on_v4_gpu
from impl.vllm_plugin.patch import ATTENTION, Patch, sites
from impl.vllm_plugin.sites import Calls, Symbol

TOGGLE = "q_in_place"
INSERT = "_fused_qnorm_rope_kv_insert"
PIECE = 1024
LEAST_HEADS = 8
QUERY_OP = "fused_deepseek_v4_qnorm_rope_kv_rope_full_cache_bf16_insert"
INSERT_OP = "fused_deepseek_v4_qnorm_rope_kv_rope_quant_insert"


def _patch_attention(module: ModuleType, version: str) -> None:
    insert = module.DeepseekV4Attention._fused_qnorm_rope_kv_insert

    @functools.wraps(insert)
    def insert_in_place(self: Any, q: Any, kv: Any, positions: Any, attn_metadata: Any) -> Any:
        if not isinstance(attn_metadata, dict):
            return insert(self, q, kv, positions, attn_metadata)
        cache = self.swa_cache_layer.kv_cache
        if q.shape[0] <= PIECE // LEAST_HEADS:
            state.markers.skip(TOGGLE, "small step: its padded query is no larger than the scratch that replaces it")
            return insert(self, q, kv, positions, attn_metadata)
        if reason := _shape_refusal(self, cache) or reuse_refusal("the projection's output", q):
            state.markers.refuse(TOGGLE, reason)
            return insert(self, q, kv, positions, attn_metadata)
        metadata = attn_metadata[self.swa_cache_layer.prefix]
        turn_queries(q, kv, positions, self.rotary_emb.cos_sin_cache, self.eps)
        insert_keys(
            kv, cache, metadata.slot_mapping, positions, self.rotary_emb.cos_sin_cache, self.eps, metadata.block_size
        )
        state.take(TOGGLE)
        return q

    module.DeepseekV4Attention._fused_qnorm_rope_kv_insert = insert_in_place


def _shape_refusal(attention: Any, cache: Any) -> str | None:
    if str(cache.dtype) != "torch.uint8":
        return f"inert: with a {cache.dtype} cache nothing is padded"
    return query_in_place_refusal(attention.n_local_heads, attention.padded_heads)


def turn_queries(q: Any, kv: Any, positions: Any, cos_sin: Any, eps: float) -> None:
    """Norm and RoPE over `q`, bf16 [N, heads, 512]; `kv` [N, 512] is looked at for its shape only."""
    import torch

    no_slots, no_cache = positions.new_empty(0), q.new_empty((1, 1, q.shape[-1]))
    getattr(torch.ops._C, QUERY_OP)(q, kv, no_cache, no_slots, positions, cos_sin, eps, 1)


def insert_keys(kv: Any, cache: Any, slots: Any, positions: Any, cos_sin: Any, eps: float, block_size: int) -> None:
    """RoPE, quantization and insertion of `kv`, bf16 [N, 512], at `slots`, int64 [M <= N] (-1: nowhere)."""
    import torch

    insert, pages = getattr(torch.ops._C, INSERT_OP), cache.view(cache.shape[0], -1)
    for start in range(0, slots.shape[0], PIECE):
        rows = slice(start, min(start + PIECE, slots.shape[0]))
        part = kv[rows]
        no_heads = part.new_empty((part.shape[0], 0, part.shape[1]))
        insert(no_heads, part, pages, slots[rows], positions[rows], cos_sin, LEAST_HEADS, eps, block_size)


def _refuse(facts: Facts) -> str | None:
    if reason := on_v4_gpu(facts):
        return reason
    local = facts.heads // facts.tp
    try:
        return query_in_place_refusal(local, padded_heads(facts.platform, local))
    except ValueError as error:
        return str(error)


PATCH = Patch(
    toggle=TOGGLE,
    sites=sites(
        every=(
            Symbol(
                ATTENTION, f"DeepseekV4Attention.{INSERT}", ("self", "q", "kv", "positions", "attn_metadata")
            ),
            Calls(
                ATTENTION, f"DeepseekV4Attention.{INSERT}", f"torch.ops._C.{INSERT_OP}", times=1, positional=9
            ),
            Calls(ATTENTION, f"DeepseekV4Attention.{INSERT}", f"torch.ops._C.{QUERY_OP}", times=1, positional=8),
        ),
    ),
    hooks={ATTENTION: _patch_attention},
    refuse=_refuse,
)  # fmt: skip

__all__ = ["PATCH", "insert_keys", "turn_queries"]
