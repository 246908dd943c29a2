"""Which compressed entries a token attends to: C4A indexer, dense C128A rows (deepseek_v4_dspark.md, section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.ops.packed_kv import DECODE_SHIFT, Packing, decode_e4m3, quantize_, round_bf16_
from impl.ops.workspace import Workspace


def quantize_query(
    q: Tensor, head_weight: Tensor, n_heads: int, codes: Tensor, folded: Tensor, workspace: Workspace
) -> None:
    """e4m3 codes of an indexer query, their power-of-two scales folded into the head weights.

    q: fp32 [n, heads, d] after RoPE, overwritten; of the heads, n_heads are real and the rest zero.
    head_weight: fp32 [n, heads].
    codes: uint8 [n, heads, d], out. folded: fp32 [n, heads], out; it also makes up for keys decoded 2^8 too small.
    """
    quantize_(round_bf16_(q, workspace), folded, codes)
    folded.mul_(head_weight).mul_(2.0**DECODE_SHIFT * q.shape[2] ** -0.5 * n_heads**-0.5)


def score_chunk(
    q: Tensor, folded: Tensor, pages: Tensor, blocks: Tensor, packing: Packing, out: Tensor, workspace: Workspace
) -> None:
    """Scores of the candidates in whole pages: sum over heads of weight * relu(q . key).

    q: fp32 [n, heads, d]. folded: fp32 [n, heads]. blocks: int64 [n, B], pages to read. out: fp32 [n, B * per_page].
    A chunk has one shape for every token, so a row's bits depend on nothing but its own query and pages.
    """
    n, heads, d = q.shape
    width = out.shape[1]
    with workspace.scope():
        flat = workspace.empty((blocks.numel(),), torch.int64)
        flat.view(blocks.shape).copy_(blocks)
        codes = workspace.empty((len(flat), packing.per_page * d), torch.uint8)
        torch.index_select(pages[:, : codes.shape[1]], 0, flat, out=codes)
        scale = workspace.empty((len(flat), packing.per_page * packing.scale.width), torch.uint8)
        torch.index_select(pages[:, packing.scale.first : packing.scale.first + scale.shape[1]], 0, flat, out=scale)
        keys = workspace.empty((n, width, d), torch.float32)
        keys.copy_(decode_e4m3(codes, workspace).view(n, width, d))
        dots = workspace.empty((n, heads, width), torch.float32)
        torch.bmm(q, keys.transpose(1, 2), out=dots)
        torch.sum(dots.relu_().mul_(folded[:, :, None]), 1, out=out)
        out.mul_(scale.view(torch.float32).view(n, width))


def top_entries(scores: Tensor, columns: Tensor, visible: Tensor, out: Tensor, workspace: Workspace) -> None:
    """The best visible entries of each row in ascending order, -1 behind them; of equal scores the lowest index wins.

    scores: fp32 [n, C], overwritten. columns: int64 [C] = 0..C-1. visible: int64 [n]. out: int64 [n, topk], topk <= C.
    """
    with workspace.scope():
        hidden = workspace.empty(scores.shape, torch.bool)
        torch.ge(columns, visible[:, None], out=hidden)
        scores.add_(0.0).masked_fill_(hidden, -torch.inf)  # adding 0 makes -0 equal to 0
        # An int64 that sorts by score, then by lower index: the float's bits as an ordered integer, above the index.
        bits = scores.view(torch.int32)
        flip = workspace.empty(bits.shape, torch.int32)
        torch.bitwise_right_shift(bits, 31, out=flip)
        bits.bitwise_xor_(flip.bitwise_and_(0x7FFFFFFF))
        order = workspace.empty(bits.shape, torch.int64)
        order.copy_(bits).bitwise_left_shift_(32).sub_(columns)
        best_of(order, visible, out, workspace)


def best_of(order: Tensor, visible: Tensor, out: Tensor, workspace: Workspace) -> None:
    """The columns of the largest keys, int64 [n, C], in ascending order, and -1 behind the visible ones."""
    n, topk = out.shape
    with workspace.scope():
        best = workspace.empty((n, topk), torch.int64)
        where = workspace.empty((n, topk), torch.int64)
        torch.topk(order, topk, sorted=False, out=(best, where))
        # Entries not visible lie above all visible ones, so they end up at the tail.
        torch.sort(where, out=(out, best))
        mask_hidden(out, out, visible, workspace)


def first_entries(columns: Tensor, visible: Tensor, out: Tensor, workspace: Workspace) -> None:
    """All visible entries, 0..n-1, then -1: `out` [n, W], int32 or int64. columns: [>= W] of out's type, 0, 1, 2..."""
    row = columns[: out.shape[1]]
    out.copy_(row)
    mask_hidden(out, row, visible, workspace)


def mask_hidden(out: Tensor, entries: Tensor, visible: Tensor, workspace: Workspace) -> None:
    with workspace.scope():
        hidden = workspace.empty(out.shape, torch.bool)
        torch.ge(entries, visible[:, None], out=hidden)
        out.masked_fill_(hidden, -1)


__all__ = ["best_of", "first_entries", "quantize_query", "score_chunk", "top_entries"]
