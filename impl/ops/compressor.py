"""The compressor: state rows of tokens, and one entry for every `ratio` tokens (deepseek_v4_dspark.md, section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.engine.step import Emission
from impl.ops.packed_kv import gather_rows
from impl.ops.tiles import tiles
from impl.ops.workspace import Workspace

POOL_BYTES = 16 << 20
"""State rows gathered at a time."""


def columns_of(ratio: int, width: int) -> int:
    """Columns of kv (and of score) in a state row: ratio 4 overlaps two runs of tokens, one set of columns each."""
    return (2 if ratio == 4 else 1) * width


def score_offsets(apes: list[Tensor]) -> Tensor:
    """fp32 [r, 2 * sum of columns]: what is added to the state rows of one or two compressors side by side.

    Each `ape` [r, columns] belongs to the score half of its row; the kv half gets zeros.
    """
    return torch.cat([half for ape in apes for half in (torch.zeros_like(ape), ape)], dim=1)


def pool(pages: Tensor, per_page: int, emission: Emission, ratio: int, out: Tensor, workspace: Workspace) -> None:
    """Entries before their norm: a softmax over tokens, channel by channel, weighs the tokens' kv.

    pages: uint8 [n_blocks, page_bytes] of fp32 rows [kv | score]. out: fp32 [E, width].
    For ratio 4 the older four tokens use the first half of the columns, the newest four the second.
    """
    n, width = out.shape
    halves = 2 if ratio == 4 else 1
    span = halves * ratio
    row = 2 * halves * width
    tile = max(1, POOL_BYTES // (span * row * 4))
    for part in tiles(n, tile):
        count = part.stop - part.start
        with workspace.scope():
            rows = workspace.empty((count * span, row), torch.float32)
            gather_rows(pages, emission.source_slots[part].reshape(-1), per_page, rows, workspace)
            # [entry, half, token, kv or score, columns' half, channel]: half and columns' half agree.
            mine = rows.view(count, halves, ratio, 2, halves, width).diagonal(0, 1, 4)
            pair = workspace.empty((2, count, width, halves, ratio), torch.float32)
            pair.copy_(mine.permute(2, 0, 3, 4, 1))
            kv, score = pair.view(2, count, width, span).unbind(0)
            missing = workspace.empty((count, span), torch.bool)
            torch.logical_not(emission.source_valid[part], out=missing)
            kv.masked_fill_(missing[:, None], 0.0)
            score.masked_fill_(missing[:, None], -torch.inf)
            weight = workspace.empty(score.shape, torch.float32)
            torch.softmax(score, -1, out=weight)
            torch.sum(weight.mul_(kv), -1, out=out[part])
