"""The indexer's choice: the best candidates of each token, or all where they fit (deepseek_v4_dspark.md, 3.3)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from impl.ops import indexer
from impl.ops.own_kernels import own_kernels
from impl.ops.packed_kv import Packing
from impl.ops.tiles import tiles
from impl.ops.workspace import Workspace


class Query(NamedTuple):
    codes: Tensor
    """uint8 [n, heads, index_dim]: e4m3, padding heads at the end"""
    weight: Tensor
    """fp32 [n, heads]: head weights with the queries' scales"""
    n_heads: int
    """Real ones."""


class Candidates(NamedTuple):
    pages: Tensor
    """uint8 [n_blocks, page_bytes]: keys"""
    blocks: Tensor
    """int64 [n, B]: each token's block table"""
    packing: Packing
    chunk: int
    """Entries scored at a time, whole pages."""
    entries: Tensor
    """int64 [C] = 0..C-1, C at least the longest context's entries up to whole chunks"""


def choose(
    query: Query, candidates: Candidates, visible: Tensor, max_position: int | None, out: Tensor, workspace: Workspace
) -> None:
    """Entries chosen for each token, int64 `out` [n, topk], ascending, -1 behind them; all visible ones where they fit.

    visible: int64 [n], how many entries each token may see. max_position: none lies further; None where the host does
    not know.
    """
    n, topk = out.shape
    pages, blocks, packing, chunk, entries = candidates
    per_page = packing.per_page
    reach = blocks.shape[1] * per_page
    if max_position is not None:
        reach = min(reach, (max_position + 1) // 4)
    if reach <= topk:
        indexer.first_entries(entries, visible, out, workspace)
        return
    width = -(-reach // chunk) * chunk
    with workspace.scope():
        if own_kernels(out.device):
            from impl.ops.triton.indexer import entry_order

            order = workspace.empty((n, width), torch.int64)
            entry_order(query.codes, query.weight, query.n_heads, blocks, visible, pages, packing, order)
            indexer.best_of(order, visible, out, workspace)
            return
        if width > blocks.shape[1] * per_page:
            known, blocks = blocks, workspace.empty((n, width // per_page), torch.int64).zero_()
            blocks[:, : known.shape[1]].copy_(known)
        wide = workspace.empty(query.codes.shape, torch.float32)
        wide.copy_(query.codes.view(torch.float8_e4m3fn))
        scores = workspace.empty((n, width), torch.float32)
        for columns in tiles(width, chunk):
            some = blocks[:, columns.start // per_page : columns.stop // per_page]
            indexer.score_chunk(wide, query.weight, pages, some, packing, scores[:, columns], workspace)
        indexer.top_entries(scores, entries[:width], visible, out, workspace)
