"""The DSpark draft as one differentiable function of its weights, over rows of many sequences at once.

A block drafts after one anchor token: K query rows at the anchor's position and after, the anchor and K - 1 noise
tokens. They attend to the window rows before the anchor, whose states come from the target's aux means, and to the
whole block. Rounding is as in `forward`: bf16 for aux means, main_x, streams, x, y, q, o, h and its norm; e4m3 for
cached states; projections, Markov bias and confidence fp32. Source: deepseek_v4_dspark.md sections 1.2, 3.1 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impl.dims import Dims
from impl.model.draft_weights import PREFIX, draft_dims
from impl.train.forward import (
    Trace,
    Weights,
    forward,
    head_mix,
    moe,
    project_heads,
    query_heads,
    rms_norm,
    rope_table,
    seam_in,
    seam_out,
    window_rows,
)
from impl.train.rounding import Exact, Rounding, Served


@dataclass(frozen=True)
class Context:
    """What the frozen target makes of a set of sequences, each starting at position 0, rows laid end to end."""

    ids: Tensor
    """int64 `[T]`"""
    positions: Tensor
    """int64 `[T]`, 0 at the start of every sequence"""
    aux: Tensor
    """`[T, n_aux * H]` stream means"""
    logits: Tensor
    """fp32 `[T, V]`; row i predicts row i + 1 of its sequence"""
    longest: int
    """Rows of the longest sequence"""


class Drafted(NamedTuple):
    logits: Tensor
    """fp32 `[N, K, V]` with the Markov bias of the token before"""
    confidence: Tensor
    """fp32 `[N, K]`, before the sigmoid"""
    hidden: Tensor
    """h `[N, K, H]`, before the norm"""


@torch.no_grad()
def target_context(weights: Weights, sequences: Sequence[Tensor], dims: Dims, quantize: bool = True) -> Context:
    """The target run over `sequences`, int64 `[B, S]` each."""
    ids, positions, aux, logits = [], [], [], []
    for rows in sequences:
        means: list[Tensor] = []
        logits.append(forward(weights, rows, dims, quantize=quantize, aux=means).flatten(0, 1))
        aux.append(torch.cat(means, dim=-1).flatten(0, 1))
        ids.append(rows.flatten())
        positions.append(torch.arange(rows.shape[1], device=rows.device).expand(rows.shape).flatten())
    longest = max(rows.shape[1] for rows in sequences)
    return Context(torch.cat(ids), torch.cat(positions), torch.cat(aux), torch.cat(logits), longest)


def block_rows(context: Context, anchors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Row numbers of the `count` rows from each anchor on, `[N, count]`, and whether they are in its sequence.

    Rows beyond the sequence point at some row that must not count.
    """
    offsets = torch.arange(count, device=anchors.device)
    rows = (anchors[:, None] + offsets).clamp_max(len(context.ids) - 1)
    return rows, context.positions[rows] == context.positions[anchors][:, None] + offsets


def draft(
    weights: Weights, target: Weights, context: Context, anchors: Tensor, dims: Dims, *,
    quantize: bool = True, trace: Trace | None = None,
) -> Drafted:  # fmt: skip
    """Blocks after `anchors`, int64 `[N]` row numbers of `context`; the tokens before each draft are the text's own.

    Draft k of a block is for the row k + 1 after its anchor. `target` gives embedding and head, which get no gradient.
    """
    own = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    rounding: Rounding = Served() if quantize else Exact()
    k, n, layers = dims.draft_tokens, len(anchors), draft_dims(dims)
    previous = context.ids[block_rows(context, anchors, k)[0]]
    ids = torch.full_like(previous, dims.noise_token_id)
    ids[:, 0] = previous[:, 0]
    main = rounding.bf16(rms_norm(F.linear(context.aux, own["main_proj"]), own["main_norm"], dims.rms_norm_eps))
    streams = rounding.bf16(F.embedding(ids.flatten(), target["embed"].detach()))
    streams = streams.unsqueeze(1).expand(-1, dims.hc_mult, -1)
    for layer in range(dims.n_draft_layers):
        at = f"layers.{layer}."
        x, post, comb = seam_in(own, f"{at}hc_attn", streams, f"{at}attn_norm", layers, rounding)
        y = block_attention(own, at, x.view(n, k, -1), main, context, anchors, dims, rounding)
        streams = rounding.bf16(seam_out(streams, y.flatten(0, 1), post, comb))
        x, post, comb = seam_in(own, f"{at}hc_ffn", streams, f"{at}ffn_norm", layers, rounding)
        y = moe(own, layer, x, ids.flatten(), layers, rounding, trace)
        streams = rounding.bf16(seam_out(streams, y, post, comb))
    hidden = rounding.bf16(head_mix(own, streams, layers)).view(n, k, -1)
    normed = rounding.bf16(rms_norm(hidden, own["norm"], dims.rms_norm_eps))
    before = F.embedding(previous, own["markov.w1"])
    logits = F.linear(normed, target["lm_head"].detach()) + F.linear(before, own["markov.w2"])
    confidence = F.linear(torch.cat((hidden, before), dim=-1), own["confidence"]).squeeze(-1)
    return Drafted(logits, confidence, hidden)


def block_attention(
    own: Weights, at: str, x: Tensor, main: Tensor, context: Context, anchors: Tensor, dims: Dims, rounding: Rounding
) -> Tensor:
    """y `[N, K, H]` of the blocks' layer inputs `[N, K, H]`; main `[T, H]` makes the context's states."""
    n, k, _ = x.shape
    d, eps = dims.head_dim, dims.rms_norm_eps
    cos, sin = rope_table(context.longest + k, 1, False, dims.rope_dim, dims, x.device)
    at_rows = context.positions
    at_block = context.positions[anchors][:, None] + torch.arange(k, device=x.device)
    w_input = own[f"{at}attn.wqkv_a"]
    latent = F.linear(main, w_input[dims.q_lora_rank :])  # no attention norm on main_x
    states = window_rows(own, at, latent, cos[at_rows], sin[at_rows], dims, rounding)

    low, latent = F.linear(x, w_input).split((dims.q_lora_rank, d), dim=-1)
    low = rms_norm(low, own[f"{at}attn.q_norm"], eps)
    q = query_heads(own, at, low, cos[at_block], sin[at_block], dims, rounding)
    block = window_rows(own, at, latent, cos[at_block], sin[at_block], dims, rounding)

    back = torch.arange(-dims.window, 0, device=x.device)
    near = states.index_select(0, (anchors[:, None] + back).clamp_min(0).flatten()).view(n, dims.window, d)
    hidden = context.positions[anchors][:, None] + back < 0
    keys = torch.cat((near, block), dim=1)
    scores = (q.view(n, k * dims.n_heads, d) @ keys.transpose(1, 2) * d**-0.5).view(n, k, dims.n_heads, -1)
    scores = scores.masked_fill(F.pad(hidden, (0, k))[:, None, None], -torch.inf)
    sink = own[f"{at}attn.sink"][:, None].expand(n, k, dims.n_heads, 1)
    mass = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    o = (mass.reshape(n, k * dims.n_heads, -1) @ keys).view(n, k, dims.n_heads, d)
    return project_heads(own, at, o, cos[at_block], sin[at_block], dims, rounding)
