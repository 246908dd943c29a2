"""Queries and cache entries to time: norm and RoPE, fresh and in place, and quantization with insertion."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from impl.bench.case import Case, Inputs, Outputs, integers, normal, size, workspace
from impl.dims import Dims
from impl.ops.packed_kv import StateLayout
from impl.ops.rope import RopeTable

POSITIONS = 65_536
"""Positions of the shared RoPE table, at most."""
PAGE_UNIT = 576
"""vLLM pads its pages to a multiple of one entry's data."""


@cache
def _table(dims: Dims, device: str) -> tuple[Tensor, Tensor]:
    """Our table, and vLLM's: all cosines of a position, then its sines."""
    rows = RopeTable(dims.with_changes(max_model_len=min(POSITIONS, dims.max_model_len)), 4, device).rows
    return rows, torch.cat((rows.real, rows.imag), 1).contiguous()


def inputs(dims: Dims, tokens: int, device: torch.device, seed: int) -> Inputs:
    layout, per_page = StateLayout.of(dims), dims.swa_page_tokens
    table, cos_sin = _table(dims, str(device))
    blocks = 2 + -(-2 * tokens // per_page)
    page = -(-per_page * (layout.data_bytes + layout.scale_bytes) // PAGE_UNIT) * PAGE_UNIT
    gen = torch.Generator(device).manual_seed(seed)
    slots = per_page + torch.randperm((blocks - 1) * per_page, device=device, generator=gen)[:tokens]
    slots[6::7] = -1
    return {
        "q": normal(device, seed, tokens, dims.n_heads, dims.head_dim, dtype=torch.bfloat16),
        "kv": normal(device, seed + 1, tokens, dims.head_dim, dtype=torch.bfloat16),
        "positions": integers(device, seed + 2, table.shape[0], tokens),
        "table": table, "cos_sin": cos_sin, "slots": slots, "layout": layout, "packing": layout.packing(per_page),
        "pages": torch.zeros((blocks, page), dtype=torch.uint8, device=device),
        "eps": torch.full((1,), dims.rms_norm_eps, device=device), "eps_number": dims.rms_norm_eps,
        "per_page": per_page,
    }  # fmt: skip


def _fresh(function: Callable[..., Any], i: Inputs) -> Outputs:
    out = torch.empty_like(i["q"])
    return (function(i["q"], i["positions"], i["table"], i["eps"], workspace(out), out),)


def _in_place(function: Callable[..., Any], i: Inputs) -> Outputs:
    return (function(i["q"], i["positions"], i["table"], i["eps"], workspace(i["q"])),)


def _insert(function: Callable[..., Any], i: Inputs) -> Outputs:
    function(i["kv"], i["positions"], i["table"], i["slots"], i["pages"], i["layout"], i["packing"], workspace(i["kv"]))
    return _parts(i)


def _parts(i: Inputs) -> Outputs:
    """Views of the pages: codes, rope values, scales."""
    pages, layout, per_page = i["pages"], i["layout"], i["per_page"]
    data = pages[:, : per_page * layout.data_bytes].unflatten(1, (per_page, layout.data_bytes))
    scales = pages[:, per_page * layout.data_bytes :][:, : per_page * layout.scale_bytes]
    return data[..., : layout.nope], data[..., layout.nope :].view(torch.bfloat16), scales


def _vllm_fresh(i: Inputs) -> Outputs:
    import vllm._custom_ops  # noqa: F401  registers the operators

    from impl.vllm_plugin.q_in_place import INSERT_OP

    insert = getattr(torch.ops._C, INSERT_OP)
    return (
        insert(i["q"], i["kv"], i["pages"], i["slots"][:0], i["positions"], i["cos_sin"], i["q"].shape[1],
               i["eps_number"], i["per_page"]),
    )  # fmt: skip


def _vllm_in_place(i: Inputs) -> Outputs:
    import vllm._custom_ops  # noqa: F401

    from impl.vllm_plugin.q_in_place import turn_queries

    turn_queries(i["q"], i["kv"], i["positions"], i["cos_sin"], i["eps_number"])
    return (i["q"],)


def _vllm_insert(i: Inputs) -> Outputs:
    """With no heads; its least padding of queries, 8 heads of zeros, is a part of the operator."""
    import vllm._custom_ops  # noqa: F401

    from impl.vllm_plugin.q_in_place import insert_keys

    insert_keys(
        i["kv"], i["pages"], i["slots"], i["positions"], i["cos_sin"], i["eps_number"], i["per_page"]
    )  # fmt: skip
    return _parts(i)


def _turn(i: Inputs) -> int:
    return i["positions"].shape[0] * i["table"].shape[1] * 8 + size(i["positions"])


CASES = (
    Case("query_norm_rope", "fresh", inputs, _fresh, lambda i: 2 * size(i["q"]) + _turn(i), _vllm_fresh),
    Case("query_norm_rope", "in place", inputs, _in_place, lambda i: 2 * size(i["q"]) + _turn(i), _vllm_in_place,
         changed=("q",)),
    Case("kv_insert", "paged", inputs, _insert,
         lambda i: size(i["kv"], i["slots"]) + _turn(i)
         + i["slots"].shape[0] * (i["layout"].data_bytes + i["layout"].scale_bytes), _vllm_insert),
)  # fmt: skip

__all__ = ["CASES"]
