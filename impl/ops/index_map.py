"""Rows of dense compressed indices: which entries a token sees, and the map from local to global slots.

A local index counts a request's own entries, 0 to n - 1; a global slot is `block * per_page + entry`, what a page is
read by. Source: deepseek_v4_dspark.md sections 3.3 to 3.5.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.ops.indexer import first_entries
from impl.ops.tiles import tiles
from impl.ops.workspace import Workspace

TILE = 64
"""Rows at a time."""


def fill_local(columns: Tensor, visible: Tensor, rows: Tensor, lens: Tensor, workspace: Workspace) -> None:
    """Every visible entry of each token: 0..n-1, then -1; all of `rows` and `lens` is written.

    columns: int32 [W] = 0..W-1. visible: int64 [N]. rows: int32 [N, W], out. lens: int32 [N], out: min(visible, W).
    """
    lens.copy_(visible).clamp_max_(rows.shape[1])
    for part in tiles(rows.shape[0], TILE):
        first_entries(columns, visible[part], rows[part], workspace)


def to_global(
    local: Tensor, table: Tensor, request_rows: Tensor, per_page: int, out: Tensor, lens: Tensor, workspace: Workspace
) -> None:
    """Global slots of local indices, and how many there are of them; all of `out` and `lens` is written.

    local: int32 [N, W], -1 where there is none. table: int64 [R, B], the blocks of each request. request_rows:
    int64 [N]. per_page: entries a block holds. out: int32 [N, W], `local` itself or apart from it; -1 stays -1, and so
    becomes an index beyond the table's width. lens: int32 [N]. An element depends on nothing but itself and its row's
    blocks, so writing over `local` is safe; a second run over the same rows is not.
    """
    n_blocks = table.shape[1]
    for part in tiles(local.shape[0], TILE):
        with workspace.scope():
            here = local[part]
            blocks = workspace.empty((here.shape[0], n_blocks), torch.int64)
            torch.index_select(table, 0, request_rows[part], out=blocks)
            slots = workspace.empty(here.shape, torch.int64).copy_(here)
            page = workspace.empty(here.shape, torch.int64)
            torch.floor_divide(slots, per_page, out=page)
            missing = torch.lt(slots, 0, out=workspace.empty(here.shape, torch.bool))
            missing.logical_or_(torch.ge(page, n_blocks, out=workspace.empty(here.shape, torch.bool)))
            slots.sub_(page, alpha=per_page)
            block = workspace.empty(here.shape, torch.int64)
            torch.gather(blocks, 1, page.clamp_(0, n_blocks - 1), out=block)
            out[part].copy_(slots.add_(block, alpha=per_page).masked_fill_(missing, -1))
            torch.sum(missing.logical_not_(), 1, dtype=torch.int32, out=lens[part])


__all__ = ["fill_local", "to_global"]
