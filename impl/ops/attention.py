"""Attention of one latent head, key and value in one, with a sink per head (deepseek_v4_dspark.md, section 3.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from impl.ops.linear import padded_rows
from impl.ops.own_kernels import own_kernels
from impl.ops.workspace import Workspace

MOST_VALUES = 1 << 15
"""Of a token's states, that one program of the kernel can hold."""


def one_launch(device: torch.device, width: int, entries: int) -> bool:
    """Whether a kernel gathers and attends at once: not where `entries` states of `width` are too many for it."""
    held = 1 << (entries - 1).bit_length()
    return own_kernels(device) and not width & (width - 1) and held * width <= MOST_VALUES


def padded_columns(length: int) -> int:
    """Columns of the logits for `length` entries: one more for the sink, then up to a multiple of four."""
    return padded_rows(length + 1)


def sink_attention(q: Tensor, states: Tensor, hidden: Tensor, sink: Tensor, out: Tensor, workspace: Workspace) -> None:
    """softmax over a token's own entries and the sink, times the entries; all fp32.

    q: bf16 [n, heads, D], heads a multiple of four. states: fp32 [n, S, D], overwritten where hidden; S counts padding
    columns, the last entries. hidden: bool [n, S], True for what must not be seen, whatever it holds; column S - 1 must
    be True: it becomes the sink's, an entry of zeros. sink: fp32 [heads]. out: fp32 [n, heads, D].
    """
    n, heads, d = q.shape
    length = states.shape[1]
    with workspace.scope():
        states.masked_fill_(hidden[:, :, None], 0.0)
        query = workspace.empty((n, heads, d), torch.float32).copy_(q)
        logits = workspace.empty((n, heads, length), torch.float32)
        torch.baddbmm(logits, query, states.transpose(1, 2), beta=0, alpha=d**-0.5, out=logits)
        logits.masked_fill_(hidden[:, None], -torch.inf)
        logits[:, :, length - 1].copy_(sink)
        weight = workspace.empty(logits.shape, torch.float32)
        torch.softmax(logits, -1, out=weight)
        torch.bmm(weight, states, out=out)
