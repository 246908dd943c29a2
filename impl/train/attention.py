"""The attention sublayer of the trained forward (sections 3.1 to 3.3); one latent row is both key and value.

Cached states are dense here: sliding-window rows are read block by block, compressed rows all at once under a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impl.dims import Dims
from impl.train.rope import rope_table, rotate
from impl.train.rounding import Rounding

Weights = Mapping[str, Tensor]

Turn = tuple[Tensor, Tensor]
"""fp32 cos and sin `[positions, pairs]`"""


MASKED = -1e30
"""Logit of what is not seen. Its softmax is 0 as that of -inf is, but no difference of two of them is nan."""


class View(NamedTuple):
    """What a forward sees less of than the engine does, in training or for a test."""

    reach: int | None = None
    """Rows that the sliding window shows, the latest ones; None is all of it."""
    hidden: str = ""
    """The kind of compressed entries that no token sees: `C4A`, or `C128A` for the large ratio."""


WHOLE = View()


class Tables(NamedTuple):
    """What attention reads that follows from the shapes alone."""

    tokens: Turn
    window: Tensor
    """`window_mask`"""
    visible: Tensor | None
    """`visible_entries` of a compressed layer"""
    entries: Turn | None
    index_tokens: Turn | None
    """Of an indexed layer's queries, as all that follows"""
    index_entries: Turn | None


def tables(length: int, ratio: int, dims: Dims, device: torch.device, view: View = WHOLE) -> Tables:
    """Tables of sequences of `length`, a multiple of the window."""
    rope = dims.rope_dim

    def turn(stride: int, width: int) -> Turn:
        return rope_table(length // stride, stride, ratio > 0, width, dims, device)

    window = window_mask(length // dims.window, dims.window, view.reach or dims.window, device)
    if not ratio:
        return Tables(turn(1, rope), window, None, None, None, None)
    hidden = view.hidden == ("C4A" if ratio == 4 else "C128A")
    visible, entries = visible_entries(length, ratio, device, hidden), turn(ratio, rope)
    if ratio != 4:
        return Tables(turn(1, rope), window, visible, entries, None, None)
    width = dims.index_rope_dim
    return Tables(turn(1, rope), window, visible, entries, turn(1, width), turn(4, width))


def attention(
    weights: Weights, x: Tensor, at: Tables, ratio: int, dims: Dims, rounding: Rounding, dense: bool,
    row_weight: Tensor | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """y `[B, S, H]` (bf16 values) of the layer input `x` `[B, S, H]`; S is a multiple of the window.

    `weights` are the layer's own, by their names behind `layers.N.`. `dense` shows every visible entry to an indexed
    layer. With `row_weight` `[B, S]`, an indexed layer also gives the loss of its scores, a scalar.
    """
    d, eps = dims.head_dim, dims.rms_norm_eps
    low, latent = F.linear(x, weights["attn.wqkv_a"]).split((dims.q_lora_rank, d), dim=-1)
    low = rms_norm(low, weights["attn.q_norm"], eps)
    q = query_heads(weights, low, *at.tokens, dims, rounding)
    rows = window_rows(weights, latent, *at.tokens, dims, rounding)

    entries = scores = None
    selected = at.visible
    if at.entries is not None and at.visible is not None:
        entries = compress(weights, "compressor.", x, ratio, d, at.entries, eps)
        entries = rounding.state(entries, dims.rope_dim, dims.quant_group)
        narrow = ratio == 4 and entries.shape[1] > dims.index_topk
        if at.index_tokens is not None and (row_weight is not None or (narrow and not dense)):
            # The indexer learns only to rank as attention does: no gradient into the layers it reads.
            scores = index_scores(weights, x.detach(), low.detach(), at, dims, rounding)
            if narrow and not dense:
                selected = select_entries(scores, at.visible, dims.index_topk)
    o, loss = attend(q, rows, entries, selected, at, scores, row_weight, weights["attn.sink"], dims)
    return project_heads(weights, o, *at.tokens, dims, rounding), loss


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, fp32."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def query_heads(weights: Weights, low: Tensor, cos: Tensor, sin: Tensor, dims: Dims, rounding: Rounding) -> Tensor:
    """Rotated queries `[..., heads, D]` of the normed low-rank rows `[..., q_lora]`; cos, sin `[..., rope_dim / 2]`."""
    q = rounding.bf16(F.linear(low, weights["attn.wq_b"])).unflatten(-1, (dims.n_heads, dims.head_dim))
    return rounding.bf16(rotate(rms_norm(q, None, dims.rms_norm_eps), cos.unsqueeze(-2), sin.unsqueeze(-2)))


def window_rows(weights: Weights, latent: Tensor, cos: Tensor, sin: Tensor, dims: Dims, rounding: Rounding) -> Tensor:
    """Cached states `[..., D]` of latents `[..., D]`."""
    rows = rotate(rms_norm(latent, weights["attn.kv_norm"], dims.rms_norm_eps), cos, sin)
    return rounding.state(rows, dims.rope_dim, dims.quant_group)


def project_heads(weights: Weights, o: Tensor, cos: Tensor, sin: Tensor, dims: Dims, rounding: Rounding) -> Tensor:
    """y `[..., H]` of the heads' outputs `[..., heads, D]`, turned back by their query's position."""
    o = rounding.bf16(rotate(o, cos.unsqueeze(-2), -sin.unsqueeze(-2)))
    grouped = o.reshape(-1, dims.o_groups, dims.n_heads // dims.o_groups * dims.head_dim)
    low = torch.einsum("ngi,gri->ngr", grouped, weights["attn.wo_a"]).flatten(1)
    return rounding.bf16(F.linear(low, weights["attn.wo_b"]).view(*o.shape[:-2], -1))


def attend(
    q: Tensor, rows: Tensor, entries: Tensor | None, selected: Tensor | None, at: Tables, scores: Tensor | None,
    row_weight: Tensor | None, sink: Tensor, dims: Dims,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """o `[B, S, heads, D]` of one softmax over the window, the selected entries and the sink.

    q `[B, S, heads, D]`, rows `[B, S, D]`, entries `[B, C, D]`, selected `[B, S, C]` or `[S, C]`, scores `[B, S, C]`.
    Also returns the loss of the scores, when `row_weight` is given.
    """
    batch, length, heads, d = q.shape
    window = dims.window
    blocks = length // window
    queries = q.reshape(batch * blocks, window * heads, d)
    blocked = rows.view(batch, blocks, window, d)
    near = torch.cat((F.pad(blocked, (0, 0, 0, 0, 1, 0))[:, :-1], blocked), dim=2).view(batch * blocks, 2 * window, d)
    scale = d**-0.5
    near_logits = (queries @ near.transpose(1, 2) * scale).view(batch, blocks, window, heads, 2 * window)
    near_logits = near_logits.masked_fill(~at.window, MASKED)
    logits = [near_logits.view(batch, length, heads, 2 * window), sink[:, None].expand(batch, length, heads, 1)]
    far_logits = None
    if entries is not None and selected is not None:
        far_logits = q.reshape(batch, length * heads, d) @ entries.transpose(1, 2) * scale
        far_logits = far_logits.view(batch, length, heads, -1)
        logits.append(far_logits.masked_fill(~selected.unsqueeze(-2), MASKED))
    joined = torch.cat(logits, dim=-1)
    mass = torch.softmax(joined, dim=-1)
    o = (mass[..., : 2 * window].reshape(batch * blocks, window * heads, -1) @ near).view(batch, length * heads, d)
    if entries is not None:
        o = o + mass[..., 2 * window + 1 :].reshape(batch, length * heads, -1) @ entries
    o = o.view(batch, length, heads, d)
    if scores is None or row_weight is None or far_logits is None or at.visible is None:
        return o, None
    with torch.no_grad():
        # Entries outside the selection count with the mass they would get, so that a missed one can be found again.
        total = sink[:, None] - mass[..., 2 * window : 2 * window + 1].clamp_min(1e-30).log()
        wanted = (far_logits - total).clamp_max(30.0).exp().sum(2).masked_fill(~at.visible, 0.0)
        wanted = wanted / wanted.sum(-1, keepdim=True).clamp_min(1e-30)
    return o, ranking_loss(scores, wanted, at.visible, row_weight)


@lru_cache(maxsize=256)
def window_mask(blocks: int, window: int, reach: int, device: torch.device) -> Tensor:
    """True where a query of a block sees a row of the block before or its own: `[blocks, window, 1, 2 window]`.

    It sees the last `reach` rows, its own counted, 1 to `window`.
    """
    query = torch.arange(window, device=device)[:, None]
    key = torch.arange(2 * window, device=device)[None, :] - window
    inside = (key <= query) & (key > query - reach)
    first = inside & (key >= 0)
    return torch.stack([first] + [inside] * (blocks - 1)).unsqueeze(2)


@lru_cache(maxsize=256)
def visible_entries(length: int, ratio: int, device: torch.device, hidden: bool = False) -> Tensor:
    """True where the query at p sees entry j, j < (p + 1) // ratio: `[S, S // ratio]`; nowhere when `hidden`."""
    if hidden:
        return torch.zeros(length, length // ratio, dtype=torch.bool, device=device)
    count = (torch.arange(length, device=device) + 1) // ratio
    return torch.arange(length // ratio, device=device)[None, :] < count[:, None]


def compress(weights: Weights, prefix: str, x: Tensor, ratio: int, width: int, turn: Turn, eps: float) -> Tensor:
    """One row for every `ratio` tokens: `[B, S // ratio, width]`, normed and rotated, not yet rounded."""
    batch, length, _ = x.shape
    count = length // ratio
    kv, score = F.linear(x[:, : count * ratio], weights[f"{prefix}wkv_gate"]).chunk(2, dim=-1)
    kv = kv.reshape(batch, count, ratio, kv.shape[-1])
    score = score.reshape(kv.shape) + weights[f"{prefix}ape"]
    if ratio == 4:  # overlap: the older window's tokens use the first columns, the newer's the second
        old_kv = F.pad(kv[..., :width], (0, 0, 0, 0, 1, 0))[:, :-1]
        old_score = F.pad(score[..., :width], (0, 0, 0, 0, 1, 0), value=MASKED)[:, :-1]
        kv, score = torch.cat((old_kv, kv[..., width:]), dim=2), torch.cat((old_score, score[..., width:]), dim=2)
    pooled = (torch.softmax(score, dim=2) * kv).sum(2)
    return rotate(rms_norm(pooled, weights[f"{prefix}norm"], eps), *turn)


def index_scores(weights: Weights, x: Tensor, low: Tensor, at: Tables, dims: Dims, rounding: Rounding) -> Tensor:
    """Ranking scores `[B, S, C]` of the compressed entries (section 3.3)."""
    assert at.index_tokens is not None
    assert at.index_entries is not None
    batch, length, _ = x.shape
    heads, d = dims.index_heads, dims.index_dim
    cos, sin = at.index_tokens
    q = F.linear(low, weights["indexer.wq_b"]).view(batch, length, heads, d)
    q = rounding.index(rotate(q, cos[:, None], sin[:, None]))
    keys = compress(weights, "indexer.compressor.", x, 4, d, at.index_entries, dims.rms_norm_eps)
    keys = rounding.index(keys)
    head_weights = F.linear(x, weights["indexer.w"]) * (d**-0.5 * heads**-0.5)
    dots = torch.relu(q.reshape(batch, length * heads, d) @ keys.transpose(1, 2))
    return (dots.view(batch, length, heads, -1) * head_weights.unsqueeze(-1)).sum(2)


def select_entries(scores: Tensor, visible: Tensor, topk: int) -> Tensor:
    """True at the `topk` best visible entries of each row, the lowest index winning ties: `[B, S, C]`."""
    if scores.shape[-1] <= topk:
        return visible.unsqueeze(0)
    ranked = scores.detach().masked_fill(~visible, MASKED)
    least = ranked.topk(topk, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, tied = ranked > least, ranked == least
    room = topk - above.sum(-1, keepdim=True)
    return (above | (tied & (tied.cumsum(-1) <= room))) & visible


def ranking_loss(scores: Tensor, wanted: Tensor, visible: Tensor, row_weight: Tensor) -> Tensor:
    """KL(wanted || softmax of scores) over visible entries: mean by `row_weight` of the rows that see two or more."""
    seen = visible.sum(-1) > 1
    weight = row_weight * seen
    log_p = torch.log_softmax(scores.masked_fill(~visible, MASKED), dim=-1)
    log_p = log_p.masked_fill(~(visible & seen[:, None]), 0.0)
    loss = (wanted * (wanted.clamp_min(1e-30).log() - log_p)).sum(-1)
    return (loss * weight).sum() / weight.sum().clamp_min(1e-9)
