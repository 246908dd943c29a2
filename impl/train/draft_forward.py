"""The DSpark draft as one differentiable function of its weights, over rows of many sequences at once.

A block drafts after one anchor token: K query rows at the anchor's position and after, the anchor and K - 1 noise
tokens. They attend to the window rows before the anchor, whose states come from the target's aux means, and to the
whole block. Rounding is as in `forward`: bf16 for aux means, main_x, streams, x, y, q, o, h and its norm; e4m3 for
cached states; projections, Markov bias and confidence fp32. Source: deepseek_v4_dspark.md sections 1.2, 3.1 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impl.dims import Dims
from impl.model.draft_weights import PREFIX, draft_dims
from impl.train.attention import Turn, project_heads, query_heads, rms_norm, window_rows
from impl.train.forward import (
    PLAIN,
    Parts,
    Seam,
    Trace,
    Weights,
    compile_parts,
    forward,
    head_mix,
    head_weights,
    of_layer,
    worth_compiling,
)
from impl.train.rope import rope_table
from impl.train.rounding import EXACT, SERVED, Rounding


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
def target_context(
    weights: Weights, sequences: Sequence[Tensor], dims: Dims, quantize: bool = True, parts: Parts | None = None
) -> Context:
    """The target run over `sequences`, int64 `[B, S]` each."""
    aux, logits = [], []
    for rows in sequences:
        means: list[Tensor] = []
        use = parts if worth_compiling(rows) else None
        logits.append(forward(weights, rows, dims, quantize=quantize, aux=means, parts=use).flatten(0, 1))
        aux.append(torch.cat(means, dim=-1).flatten(0, 1))
    longest = max(rows.shape[1] for rows in sequences)
    ids = torch.cat([rows.flatten() for rows in sequences])
    return Context(ids, positions_of(sequences), torch.cat(aux), torch.cat(logits), longest)


def positions_of(sequences: Sequence[Tensor]) -> Tensor:
    """int64 `[T]`: every row's position in its sequence."""
    return torch.cat([torch.arange(s.shape[1], device=s.device).expand(s.shape).flatten() for s in sequences])


def block_rows(context: Context, anchors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Row numbers of the `count` rows from each anchor on, `[N, count]`, and whether they are in its sequence.

    Rows beyond the sequence point at some row that must not count.
    """
    offsets = torch.arange(count, device=anchors.device)
    rows = (anchors[:, None] + offsets).clamp_max(len(context.ids) - 1)
    return rows, context.positions[rows] == context.positions[anchors][:, None] + offsets


def draft(
    weights: Weights, target: Weights, context: Context, anchors: Tensor, dims: Dims, *,
    quantize: bool = True, trace: Trace | None = None, parts: Parts | None = None,
) -> Drafted:  # fmt: skip
    """Blocks after `anchors`, int64 `[N]` row numbers of `context`; the tokens before each draft are the text's own.

    Draft k of a block is for the row k + 1 after its anchor. `target` gives embedding and head, which get no gradient.
    """
    own = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    rounding, parts = SERVED if quantize else EXACT, parts or PLAIN_DRAFT
    k, n, shape = dims.draft_tokens, len(anchors), draft_dims(dims)
    previous = context.ids[block_rows(context, anchors, k)[0]]
    ids = torch.full_like(previous, dims.noise_token_id)
    ids[:, 0] = previous[:, 0]
    ids = ids.flatten()
    main = rounding.bf16(rms_norm(F.linear(context.aux, own["main_proj"]), own["main_norm"], dims.rms_norm_eps))
    blocks = Blocks.of(context, anchors, dims)
    streams = rounding.bf16(F.embedding(ids, target["embed"].detach())).unsqueeze(1).expand(-1, dims.hc_mult, -1)
    x, post, comb = parts.seam_in(Seam.of(own, "layers.0.hc_attn", "layers.0.attn_norm"), streams, shape, rounding)
    for layer in range(dims.n_draft_layers):
        at, of_this = f"layers.{layer}.", of_layer(own, layer)
        near = context_rows(of_this, main, blocks, dims, rounding)
        y, _ = parts.attention(of_this, x.view(n, k, -1), near, blocks.turn, blocks.hidden, dims, rounding)
        seam = Seam.of(own, f"{at}hc_ffn", f"{at}ffn_norm")
        streams, x, post, comb = parts.seam(seam, streams, y.flatten(0, 1), post, comb, shape, rounding)
        y, load = parts.moe(of_this, x, ids, shape, rounding)
        if trace is not None:
            trace.expert_load[layer] = load
        if layer + 1 < dims.n_draft_layers:
            seam = Seam.of(own, f"layers.{layer + 1}.hc_attn", f"layers.{layer + 1}.attn_norm")
            streams, x, post, comb = parts.seam(seam, streams, y, post, comb, shape, rounding)
        else:
            streams = parts.seam_out(streams, y, post, comb, rounding)
    hidden = rounding.bf16(head_mix(head_weights(own), streams, shape)).view(n, k, -1)
    normed = rounding.bf16(rms_norm(hidden, own["norm"], dims.rms_norm_eps))
    before = F.embedding(previous, own["markov.w1"])
    logits = F.linear(normed, target["lm_head"].detach()) + F.linear(before, own["markov.w2"])
    confidence = F.linear(torch.cat((hidden, before), dim=-1), own["confidence"]).squeeze(-1)
    return Drafted(logits, confidence, hidden)


class Blocks(NamedTuple):
    """Where the blocks and their context are: the same for every layer."""

    context_turn: Turn
    """cos and sin `[T, pairs]` of the context's rows"""
    turn: Turn
    """`[N, K, pairs]`"""
    near: Tensor
    """int64 `[N * window]`: the context rows before each anchor"""
    hidden: Tensor
    """bool `[N, window + K]`: true where there is no such row in the sequence"""

    @classmethod
    def of(cls, context: Context, anchors: Tensor, dims: Dims) -> Blocks:
        k, device = dims.draft_tokens, anchors.device
        cos, sin = rope_table(context.longest + k, 1, False, dims.rope_dim, dims, device)
        first = context.positions[anchors][:, None]
        rows, block = context.positions, first + torch.arange(k, device=device)
        back = torch.arange(-dims.window, 0, device=device)
        near = (anchors[:, None] + back).clamp_min(0).flatten()
        hidden = F.pad(first + back < 0, (0, k))
        return cls((cos[rows], sin[rows]), (cos[block], sin[block]), near, hidden)


def context_rows(weights: Weights, main: Tensor, at: Blocks, dims: Dims, rounding: Rounding) -> Tensor:
    """States `[N, window, D]` of the rows before each anchor, from main `[T, H]`. No attention norm on main_x."""
    latent = F.linear(main, weights["attn.wqkv_a"][dims.q_lora_rank :])
    states = window_rows(weights, latent, *at.context_turn, dims, rounding)
    return states.index_select(0, at.near).view(-1, dims.window, dims.head_dim)


def block_attention(
    weights: Weights, x: Tensor, near: Tensor, turn: Turn, hidden: Tensor, dims: Dims, rounding: Rounding
) -> tuple[Tensor, None]:
    """y `[N, K, H]` of the blocks' layer inputs `[N, K, H]`; near `[N, window, D]` is their context, where not hidden.

    `weights` are the layer's own, by their names behind `layers.N.`.
    """
    n, k, _ = x.shape
    d, eps = dims.head_dim, dims.rms_norm_eps
    low, latent = F.linear(x, weights["attn.wqkv_a"]).split((dims.q_lora_rank, d), dim=-1)
    low = rms_norm(low, weights["attn.q_norm"], eps)
    q = query_heads(weights, low, *turn, dims, rounding)
    block = window_rows(weights, latent, *turn, dims, rounding)

    keys = torch.cat((near, block), dim=1)
    scores = (q.view(n, k * dims.n_heads, d) @ keys.transpose(1, 2) * d**-0.5).view(n, k, dims.n_heads, -1)
    scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
    sink = weights["attn.sink"][:, None].expand(n, k, dims.n_heads, 1)
    mass = torch.softmax(torch.cat((scores, sink), dim=-1), dim=-1)[..., :-1]
    o = (mass.reshape(n, k * dims.n_heads, -1) @ keys).view(n, k, dims.n_heads, d)
    return project_heads(weights, o, *turn, dims, rounding), None


PLAIN_DRAFT = PLAIN._replace(attention=block_attention)


@lru_cache(maxsize=1)
def compiled_draft() -> Parts:
    return compile_parts(PLAIN_DRAFT)
