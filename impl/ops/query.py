"""Queries and cache entries on their way into attention: norm and RoPE of queries, RoPE and packing of entries.

Torch reference (deepseek_v4_dspark.md sections 3.1, 3.6 and 3.7), in token tiles: fp32 math, one rounding at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.ops import packed_kv
from impl.ops.norm import rms_norm_
from impl.ops.packed_kv import Packing, StateLayout
from impl.ops.rope import rotate_, table_rows
from impl.ops.tiles import tiles
from impl.ops.workspace import Workspace

TILE = 256
"""Tokens at a time."""


def query_norm_rope(
    q: Tensor, positions: Tensor, table: Tensor, eps: Tensor, workspace: Workspace, out: Tensor | None = None
) -> Tensor:
    """RMSNorm of each head, without a weight, then RoPE of its last `2 * pairs` values; in place without `out`.

    q: bf16 [N, heads, D]. positions: int64 [N]. table: complex64 [P, pairs]. eps: fp32 [1]. out: bf16 [N, heads, D],
    `q` itself or apart from it. Returns where the queries are.
    """
    target = q if out is None else out
    for part in tiles(q.shape[0], TILE):
        with workspace.scope():
            tile = workspace.empty(q[part].shape, torch.float32).copy_(q[part])
            turn = workspace.empty((tile.shape[0], table.shape[1]), torch.complex64)
            target[part] = rotate_(rms_norm_(tile, eps, workspace), table_rows(table, positions[part], turn))
    return target


def kv_insert(
    kv: Tensor,
    positions: Tensor,
    table: Tensor,
    slots: Tensor,
    pages: Tensor,
    layout: StateLayout,
    packing: Packing,
    workspace: Workspace,
) -> None:
    """RoPE of cache entries, their packing, and their insertion into pages of bytes.

    kv: bf16 or fp32 [N, D], normed, left as it is. positions: int64 [N]. table: complex64 [P, pairs]. slots: int64 [M],
    M <= N: rows behind are padding; a negative slot is nowhere, and so is one of block 0, which holds zeros. pages:
    uint8 [n_blocks, page_bytes], out. At flash a state is 448 e4m3 codes, 64 bf16 values and 8 scale bytes: 584 bytes.
    """
    for part in tiles(slots.shape[0], TILE):
        with workspace.scope():
            rows = kv[: slots.shape[0]][part]
            tile = workspace.empty(rows.shape, torch.float32).copy_(rows)
            turn = workspace.empty((tile.shape[0], table.shape[1]), torch.complex64)
            rotate_(tile, table_rows(table, positions[: slots.shape[0]][part], turn))
            data, scales = packed_kv.pack_states(tile, layout, workspace)
            # A slot of block 0 stores zeros there, which is what block 0 holds.
            packed_kv.store(pages, slots[part].clamp(min=0), packing, data, scales, workspace)


__all__ = ["kv_insert", "query_norm_rope"]
