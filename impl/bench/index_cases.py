"""Index rows to time: the map to global slots, fresh and in place, and the rows of one step in one shared buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from impl.bench.case import Case, Inputs, Outputs, integers, size, workspace
from impl.dims import Dims

BLOCKS = 5000
"""Blocks that the tables name."""


def inputs(dims: Dims, tokens: int, device: torch.device, seed: int) -> Inputs:
    """Prefill rows over all lengths up to the model's; the table as wide as they need."""
    width, per_page = dims.index_row_width, dims.block_tokens // dims.large_ratio
    visible = integers(device, seed, width, tokens)
    columns = torch.arange(width, dtype=torch.int32, device=device)
    requests = integers(device, seed + 1, dims.max_num_seqs, tokens)
    table = integers(device, seed + 2, BLOCKS, dims.max_num_seqs, -(-width // per_page))
    rows = torch.where(columns < visible[:, None], columns, -1).to(torch.int32)
    return {
        "local": rows, "visible": visible, "columns": columns, "table": table, "requests": requests,
        "per_page": per_page, "ratio": dims.large_ratio, "positions": visible * dims.large_ratio,
        "lens": torch.empty(tokens, dtype=torch.int32, device=device),
        "valid": torch.ones(tokens, dtype=torch.bool, device=device),
        "n_decode": tokens // 2 if tokens > 64 else tokens,
        "requests_32": requests.int(), "table_32": table.int(),
    }  # fmt: skip


def _map(function: Callable[..., Any], i: Inputs, out: Tensor) -> Outputs:
    function(i["local"], i["table"], i["requests"], i["per_page"], out, i["lens"], workspace(out))
    return out, i["lens"]


def _map_fresh(function: Callable[..., Any], i: Inputs) -> Outputs:
    return _map(function, i, torch.empty_like(i["local"]))


def _map_in_place(function: Callable[..., Any], i: Inputs) -> Outputs:
    return _map(function, i, i["local"])


def _metadata(function: Callable[..., Any], i: Inputs) -> Outputs:
    rows, n = torch.empty_like(i["local"]), i["n_decode"]
    function(
        i["visible"], i["table"], i["requests"], i["per_page"], rows[:n], rows[n:], i["lens"], i["columns"],
        workspace(rows),
    )  # fmt: skip
    return rows, i["lens"][:n]


def _vllm_map(i: Inputs) -> Outputs:
    from vllm.models.deepseek_v4.common.ops.cache_utils import compute_global_topk_indices_and_lens

    return compute_global_topk_indices_and_lens(i["local"], i["requests_32"], i["table_32"], i["per_page"], i["valid"])


def _vllm_map_in_place(i: Inputs) -> Outputs:
    from impl.vllm_plugin.c128_indices_in_place import map_in_place
    from impl.vllm_plugin.install import vllm_version

    lens = map_in_place(
        i["local"], i["requests_32"], i["table_32"], i["per_page"], i["valid"], vllm_version()
    )  # fmt: skip
    return i["local"], lens


def _vllm_metadata(i: Inputs) -> Outputs:
    from vllm.models.deepseek_v4.sparse_mla import build_c128a_topk_metadata

    rows, lens, n = torch.empty_like(i["local"]), torch.empty_like(i["lens"]), i["n_decode"]
    build_c128a_topk_metadata(
        i["positions"], i["ratio"], n, i["requests_32"], i["table_32"], i["per_page"], i["positions"], rows, lens,
        rows[n:], max_compressed_tokens=rows.shape[1],
    )  # fmt: skip
    return rows, lens[:n]


def _table(i: Inputs) -> int:
    return size(i["table"], i["requests"], i["lens"])


CASES = (
    Case("index_map", "fresh", inputs, _map_fresh, lambda i: 2 * size(i["local"]) + _table(i), _vllm_map,
         bitwise=(0, 1)),
    Case("index_map", "in place", inputs, _map_in_place, lambda i: 2 * size(i["local"]) + _table(i),
         _vllm_map_in_place, changed=("local",), bitwise=(0, 1)),
    Case("topk_metadata", "shared buffer", inputs, _metadata, lambda i: size(i["local"], i["visible"]) + _table(i),
         _vllm_metadata, bitwise=(0, 1)),
)  # fmt: skip

__all__ = ["CASES"]
