"""The target as one differentiable function of its weights: `[B, S]` token ids to `[B, S, V]` logits.

Every sequence starts at position 0. With `quantize` the values are rounded where the serving engine rounds
them (deepseek_v4_dspark.md 2.1, 3.1, 3.2, 3.3, 3.6) and gradients pass straight through:
bf16: embedding and R', x, the normed layer input, y, q as projected and as read, o, the head's output and its norm;
e4m3 with a power-of-two scale: the nope part of every cached state (its rope part bf16), indexer queries and keys.
Everything else is fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impl.dims import Dims
from impl.train.attention import WHOLE, View, attention, rms_norm, tables
from impl.train.rounding import EXACT, SERVED, Rounding
from impl.train.sinkhorn import sinkhorn

Weights = Mapping[str, Tensor]


@dataclass
class Trace:
    """What the losses need beside the logits, gathered layer by layer."""

    index_kl: list[Tensor]
    """One scalar an indexed layer: KL of its scores to the attention mass, mean over the rows that see entries."""
    expert_load: dict[int, Tensor]
    """Layer -> `[E]` share of the picked routes each expert got."""
    row_weight: Tensor | None = None
    """fp32 `[B, S]`: what each row counts for in `index_kl`; alike without it"""


class Seam(NamedTuple):
    """The weights of one seam and of the norm behind it."""

    fn: Tensor
    scale: Tensor
    base: Tensor
    norm: Tensor

    @classmethod
    def of(cls, weights: Weights, seam: str, norm: str) -> Seam:
        return cls(weights[f"{seam}.fn"], weights[f"{seam}.scale"], weights[f"{seam}.base"], weights[norm])


class Parts(NamedTuple):
    """The functions that a forward is made of: as written, or compiled."""

    seam_in: Callable[..., tuple[Tensor, Tensor, Tensor]]
    seam: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    attention: Callable[..., tuple[Tensor, Tensor | None]]
    moe: Callable[..., tuple[Tensor, Tensor]]
    seam_out: Callable[..., Tensor]
    head: Callable[..., Tensor]


def forward(
    weights: Weights, ids: Tensor, dims: Dims, *, quantize: bool = True, dense: bool = False,
    trace: Trace | None = None, aux: list[Tensor] | None = None, parts: Parts | None = None,
    view: View = WHOLE,
) -> Tensor:  # fmt: skip
    """Logits fp32 `[B, S, V]` of int64 `ids` `[B, S]`.

    `dense` shows every visible compressed entry to indexed layers (the indexer's warm-up).
    `view` is what it sees. `trace`, when given, is filled; `aux` gets the stream means `[B, S, H]` after each of
    `dims.aux_layers`, in order.
    """
    batch, length = ids.shape
    padded = -(-length // dims.window) * dims.window
    ids = F.pad(ids, (0, padded - length))
    rounding = SERVED if quantize else EXACT
    parts = parts or PLAIN
    row_weight = None
    if trace is not None:
        alike = torch.ones(batch, length, device=ids.device) if trace.row_weight is None else trace.row_weight
        row_weight = F.pad(alike, (0, padded - length), value=1.0 if trace.row_weight is None else 0.0)
    streams = rounding.bf16(F.embedding(ids.flatten(), weights["embed"])).unsqueeze(1).expand(-1, dims.hc_mult, -1)
    x, post, comb = parts.seam_in(Seam.of(weights, "layers.0.hc_attn", "layers.0.attn_norm"), streams, dims, rounding)
    for layer, ratio in enumerate(dims.compress_ratios):
        at, own = f"layers.{layer}.", of_layer(weights, layer)
        table = tables(padded, ratio, dims, ids.device, view)
        y, kl = parts.attention(own, x.view(batch, padded, -1), table, ratio, dims, rounding, dense, row_weight)
        seam = Seam.of(weights, f"{at}hc_ffn", f"{at}ffn_norm")
        streams, x, post, comb = parts.seam(seam, streams, y.flatten(0, 1), post, comb, dims, rounding)
        y, load = parts.moe(own, x, ids.flatten(), dims, rounding)
        if trace is not None:
            trace.expert_load[layer] = load
            if kl is not None:
                trace.index_kl.append(kl)
        if layer + 1 < dims.n_layers:
            seam = Seam.of(weights, f"layers.{layer + 1}.hc_attn", f"layers.{layer + 1}.attn_norm")
            streams, x, post, comb = parts.seam(seam, streams, y, post, comb, dims, rounding)
        else:
            streams = parts.seam_out(streams, y, post, comb, rounding)
        if aux is not None and layer in dims.aux_layers:
            aux.append(rounding.bf16(streams.mean(1)).view(batch, padded, -1)[:, :length])
    hidden = parts.head(head_weights(weights), streams, dims, rounding)
    return F.linear(hidden, weights["lm_head"]).view(batch, padded, -1)[:, :length]


def of_layer(weights: Weights, layer: int) -> dict[str, Tensor]:
    """A layer's attention and MoE weights by their names behind `layers.N.`, the same in all layers of a kind."""
    at = f"layers.{layer}."
    return {name.removeprefix(at): tensor for name, tensor in weights.items() if name.startswith(at)}


# Manifold-constrained hyper-connections (section 2.1); streams R are [N, hc, H].


def seam(
    weights: Seam, streams: Tensor, y: Tensor, post: Tensor, comb: Tensor, dims: Dims, rounding: Rounding
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """POST of one sublayer, PRE of the next: new streams, and what `seam_in` gives of them."""
    streams = seam_out(streams, y, post, comb, rounding)
    return streams, *seam_in(weights, streams, dims, rounding)


def seam_in(weights: Seam, streams: Tensor, dims: Dims, rounding: Rounding) -> tuple[Tensor, Tensor, Tensor]:
    """PRE: layer input `[N, H]` (normed), post gates `[N, hc]` and mixing matrix `[N, hc, hc]` (source, target)."""
    pre, post, comb = gates(weights, streams, dims)
    x = rounding.bf16((pre.unsqueeze(2) * streams).sum(1))
    return rounding.bf16(rms_norm(x, weights.norm, dims.rms_norm_eps)), post, comb


def gates(weights: Seam, streams: Tensor, dims: Dims) -> tuple[Tensor, Tensor, Tensor]:
    hc, eps = dims.hc_mult, dims.hc_eps
    mixes = projection(streams, weights.fn, dims.rms_norm_eps)
    scale, base = weights.scale, weights.base
    pre = torch.sigmoid(mixes[:, :hc] * scale[0] + base[:hc]) + eps
    post = dims.post_mult * torch.sigmoid(mixes[:, hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    comb = (mixes[:, 2 * hc :] * scale[2] + base[2 * hc :]).view(-1, hc, hc)
    return pre, post, sinkhorn(comb, dims.sinkhorn_iters, eps)


def projection(streams: Tensor, fn: Tensor, eps: float) -> Tensor:
    """Rows of `fn` `[M, hc*H]` applied to the flattened, root-mean-square-normed streams: `[N, M]`."""
    flat = streams.flatten(1)
    return F.linear(flat, fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def seam_out(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor, rounding: Rounding) -> Tensor:
    """POST: R'_j = sum_i C[i, j] R_i + post_j y, `[N, hc, H]` (bf16 values)."""
    return rounding.bf16(mixed(streams, comb) + post.unsqueeze(2) * y.unsqueeze(1))


def mixed(streams: Tensor, comb: Tensor) -> Tensor:
    """sum_i C[i, j] R_i: as a matrix product, or where a compiler fuses, as sums over the four streams."""
    if not torch.compiler.is_compiling():
        return torch.bmm(comb.transpose(1, 2), streams)
    return (comb.unsqueeze(3) * streams.unsqueeze(2)).sum(1)


def head_weights(weights: Weights) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return weights["hc_head.fn"], weights["hc_head.scale"], weights["hc_head.base"], weights["norm"]


def head(weights: tuple[Tensor, Tensor, Tensor, Tensor], streams: Tensor, dims: Dims, rounding: Rounding) -> Tensor:
    """What lm_head reads, `[N, H]`: HEAD and the final norm."""
    hidden = rounding.bf16(head_mix(weights, streams, dims))
    return rounding.bf16(rms_norm(hidden, weights[3], dims.rms_norm_eps))


def head_mix(weights: tuple[Tensor, Tensor, Tensor, Tensor], streams: Tensor, dims: Dims) -> Tensor:
    """HEAD: the streams joined by sigmoid gates, `[N, H]`."""
    fn, scale, base, _ = weights
    mixes = projection(streams, fn, dims.rms_norm_eps)
    joined = torch.sigmoid(mixes * scale + base) + dims.hc_eps
    return (joined.unsqueeze(2) * streams).sum(1)


# Mixture of experts (section 3.8).


def moe(weights: Weights, x: Tensor, ids: Tensor, dims: Dims, rounding: Rounding) -> tuple[Tensor, Tensor]:
    """y `[N, H]` of the routed experts and the shared one, and each expert's share of the routes `[E]`.

    `weights` are the layer's own, by their names behind `layers.N.`. All experts run as two matrix products: unpicked
    ones get weight 0. At 4 or 8 experts that is cheaper than sorting tokens.
    """
    route = router(weights, "moe.", x, ids, dims)
    load = (route.detach() > 0).float().mean(0) / dims.experts_per_token
    w13 = torch.cat((weights["moe.w13"], weights["moe.shared_w13"].unsqueeze(0)))
    w2 = torch.cat((weights["moe.w2"], weights["moe.shared_w2"].unsqueeze(0)))
    gate, up = F.linear(x, w13.flatten(0, 1)).view(len(x), -1, 2, dims.expert_width).unbind(2)
    inner = F.silu(gate.clamp_max(dims.swiglu_limit)) * up.clamp(-dims.swiglu_limit, dims.swiglu_limit)
    inner = inner * F.pad(route, (0, 1), value=1.0).unsqueeze(-1)
    return rounding.bf16(inner.flatten(1) @ w2.transpose(1, 2).flatten(0, 1)), load


def router(weights: Weights, at: str, x: Tensor, ids: Tensor, dims: Dims) -> Tensor:
    """Weight of every expert for every token, `[N, E]`; zero where it is not picked."""
    affinity = F.softplus(F.linear(x, weights[f"{at}gate"])).sqrt()
    if f"{at}tid2eid" in weights:
        picked = weights[f"{at}tid2eid"][ids].long()
    else:
        picked = (affinity.detach() + weights[f"{at}bias"]).topk(dims.experts_per_token, dim=-1).indices
    chosen = affinity.gather(1, picked)
    share = dims.routed_scale * chosen / chosen.sum(-1, keepdim=True)
    return torch.zeros_like(affinity).scatter(1, picked, share)


PLAIN = Parts(seam_in, seam, attention, moe, seam_out, head)


COMPILED_LENGTH = 1024
"""Longest rows that are worth a compiler's time: micro's have this length but for a few, which bring new shapes."""


def worth_compiling(ids: Tensor) -> bool:
    return ids.shape[-1] <= COMPILED_LENGTH


@lru_cache(maxsize=1)
def compiled() -> Parts:
    return compile_parts(PLAIN)


def compile_parts(parts: Parts) -> Parts:
    """The parts as kernels made for each shape they meet; layers of a kind share them, as names do not differ."""
    torch._dynamo.config.recompile_limit = 64
    return Parts._make(torch.compile(part, dynamic=False, fullgraph=True) for part in parts)
