"""The target as one differentiable function of its weights: `[B, S]` token ids to `[B, S, V]` logits.

Every sequence starts at position 0. Cached states are dense here: sliding-window rows are read block by block,
compressed rows all at once under a mask. With `quantize` the values are rounded where the serving engine rounds
them (deepseek_v4_dspark.md 2.1, 3.1, 3.2, 3.3, 3.6) and gradients pass straight through:
bf16: embedding and R', x, the normed layer input, y, q as projected and as read, o, the head's output and its norm;
e4m3 with a power-of-two scale: the nope part of every cached state (its rope part bf16), indexer queries and keys.
Everything else is fp32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from impl.dims import Dims
from impl.train.rounding import Exact, Rounding, Served

Weights = Mapping[str, Tensor]


@dataclass
class Trace:
    """What the losses need beside the logits, gathered layer by layer."""

    index_kl: list[Tensor]
    """One scalar an indexed layer: KL of its scores to the attention mass, mean over the rows that see entries."""
    expert_load: dict[int, Tensor]
    """Layer -> `[E]` share of the picked routes each expert got."""


def forward(
    weights: Weights, ids: Tensor, dims: Dims, *, quantize: bool = True, dense: bool = False,
    trace: Trace | None = None, aux: list[Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Logits fp32 `[B, S, V]` of int64 `ids` `[B, S]`.

    `dense` shows every visible compressed entry to indexed layers (the indexer's warm-up).
    `trace`, when given, is filled; `aux` gets the stream means `[B, S, H]` after each of `dims.aux_layers`, in order.
    """
    batch, length = ids.shape
    padded = -(-length // dims.window) * dims.window
    ids = F.pad(ids, (0, padded - length))
    rounding: Rounding = Served() if quantize else Exact()
    streams = rounding.bf16(F.embedding(ids, weights["embed"]))
    streams = streams.reshape(batch * padded, 1, -1).expand(-1, dims.hc_mult, -1)
    for layer, ratio in enumerate(dims.compress_ratios):
        at = f"layers.{layer}."
        x, post, comb = seam_in(weights, f"{at}hc_attn", streams, f"{at}attn_norm", dims, rounding)
        y = attention(weights, at, x.view(batch, padded, -1), ratio, dims, rounding, dense, trace)
        streams = rounding.bf16(seam_out(streams, y.view(batch * padded, -1), post, comb))
        x, post, comb = seam_in(weights, f"{at}hc_ffn", streams, f"{at}ffn_norm", dims, rounding)
        y = moe(weights, layer, x, ids.flatten(), dims, rounding, trace)
        streams = rounding.bf16(seam_out(streams, y, post, comb))
        if aux is not None and layer in dims.aux_layers:
            aux.append(rounding.bf16(streams.mean(1)).view(batch, padded, -1)[:, :length])
    hidden = rounding.bf16(head_mix(weights, streams, dims))
    hidden = rounding.bf16(rms_norm(hidden, weights["norm"], dims.rms_norm_eps))
    return F.linear(hidden, weights["lm_head"]).view(batch, padded, -1)[:, :length]


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last dimension, fp32."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


# Manifold-constrained hyper-connections (section 2.1); streams R are [N, hc, H].


def seam_in(
    weights: Weights, seam: str, streams: Tensor, norm: str, dims: Dims, rounding: Rounding
) -> tuple[Tensor, Tensor, Tensor]:
    """PRE: layer input `[N, H]` (normed), post gates `[N, hc]` and mixing matrix `[N, hc, hc]` (source, target)."""
    pre, post, comb = gates(weights, seam, streams, dims)
    x = rounding.bf16((pre.unsqueeze(2) * streams).sum(1))
    return rounding.bf16(rms_norm(x, weights[norm], dims.rms_norm_eps)), post, comb


def gates(weights: Weights, seam: str, streams: Tensor, dims: Dims) -> tuple[Tensor, Tensor, Tensor]:
    hc, eps = dims.hc_mult, dims.hc_eps
    mixes = projection(streams, weights[f"{seam}.fn"], dims.rms_norm_eps)
    scale, base = weights[f"{seam}.scale"], weights[f"{seam}.base"]
    pre = torch.sigmoid(mixes[:, :hc] * scale[0] + base[:hc]) + eps
    post = dims.post_mult * torch.sigmoid(mixes[:, hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    comb = (mixes[:, 2 * hc :] * scale[2] + base[2 * hc :]).view(-1, hc, hc)
    return pre, post, sinkhorn(comb, dims.sinkhorn_iters, eps)


def projection(streams: Tensor, fn: Tensor, eps: float) -> Tensor:
    """Rows of `fn` `[M, hc*H]` applied to the flattened, root-mean-square-normed streams: `[N, M]`."""
    flat = streams.flatten(1)
    return F.linear(flat, fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """Alternate row and column scaling of softmax(`logits`) `[N, hc, hc]`, ending on the columns."""
    # The token dimension last: sums over four then vectorise across tokens.
    comb = torch.softmax(logits.permute(1, 2, 0).contiguous(), dim=1) + eps
    scaled: Tensor = Scaling.apply(comb, iters, eps)
    return scaled.permute(2, 0, 1).contiguous()


class Scaling(torch.autograd.Function):
    """The Sinkhorn iterations on `[source, target, N]`, columns first, with a gradient written out.

    For y = x / d, d = sum(x) + eps, the gradient is dx = (dy - sum(dy y)) / d.
    """

    @staticmethod
    def forward(ctx: Any, comb: Tensor, iters: int, eps: float) -> Tensor:
        steps: list[Tensor] = []
        for step in range(2 * iters - 1):
            denominator = comb.sum(step % 2, keepdim=True) + eps
            comb = comb / denominator
            steps += (comb, denominator)
        ctx.save_for_backward(*steps)
        return comb

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad, saved = grads[0], ctx.saved_tensors
        for step in range(len(saved) // 2 - 1, -1, -1):
            comb, denominator = saved[2 * step : 2 * step + 2]
            grad = (grad - (grad * comb).sum(step % 2, keepdim=True)) / denominator
        return grad, None, None


def seam_out(streams: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """POST: R'_j = sum_i C[i, j] R_i + post_j y, fp32 `[N, hc, H]`."""
    return torch.bmm(comb.transpose(1, 2), streams) + post.unsqueeze(2) * y.unsqueeze(1)


def head_mix(weights: Weights, streams: Tensor, dims: Dims) -> Tensor:
    """HEAD: the streams joined by sigmoid gates, `[N, H]`."""
    mixes = projection(streams, weights["hc_head.fn"], dims.rms_norm_eps)
    joined = torch.sigmoid(mixes * weights["hc_head.scale"] + weights["hc_head.base"]) + dims.hc_eps
    return (joined.unsqueeze(2) * streams).sum(1)


# Rotary positions (section 3.1).


def rope_table(
    length: int, stride: int, compressed: bool, rope_dim: int, dims: Dims, device: torch.device
) -> tuple[Tensor, Tensor]:
    """fp32 cos and sin `[length, rope_dim // 2]` of positions 0, stride, 2 stride, ..."""
    rounded = 1 << (length - 1).bit_length()
    cos, sin = stored_rope_table(rounded, stride, compressed, rope_dim, dims, device)
    return cos[:length], sin[:length]


@lru_cache(maxsize=64)
def stored_rope_table(
    length: int, stride: int, compressed: bool, rope_dim: int, dims: Dims, device: torch.device
) -> tuple[Tensor, Tensor]:
    """`rope_table`, kept on the device: a copy from the host at every call would make the host wait for it."""
    angles = torch.arange(length, dtype=torch.float64)[:, None] * stride * inverse_frequencies(
        rope_dim, compressed, dims
    )
    return angles.cos().float().to(device), angles.sin().float().to(device)


def inverse_frequencies(rope_dim: int, compressed: bool, dims: Dims) -> Tensor:
    """Angle a position, fp64: plain in window-only layers, YaRN with the compress theta throughout compressed ones."""
    theta = dims.compress_rope_theta if compressed else dims.rope_theta
    plain = theta ** (-2 * torch.arange(rope_dim // 2, dtype=torch.float64) / rope_dim)
    if not compressed:
        return plain
    low = max(math.floor(yarn_edge(dims.yarn_beta_fast, rope_dim, theta, dims)), 0)
    high = min(math.ceil(yarn_edge(dims.yarn_beta_slow, rope_dim, theta, dims)), rope_dim - 1)
    ramp = ((torch.arange(rope_dim // 2, dtype=torch.float64) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / dims.yarn_factor * ramp + plain * (1 - ramp)


def yarn_edge(rotations: float, rope_dim: int, theta: float, dims: Dims) -> float:
    """The frequency index that turns `rotations` times over the original context."""
    return rope_dim * math.log(dims.yarn_original_len / (2 * math.pi * rotations)) / (2 * math.log(theta))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the last `2 * cos.shape[-1]` values of `x` as interleaved pairs; `cos`, `sin` broadcast over pairs."""
    width = 2 * cos.shape[-1]
    keep, pairs = x[..., :-width], x[..., -width:].unflatten(-1, (-1, 2))
    a, b = pairs.unbind(-1)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((keep, turned), dim=-1)


# Attention (sections 3.1 to 3.3); one latent row is both key and value.


def attention(
    weights: Weights, at: str, x: Tensor, ratio: int, dims: Dims, rounding: Rounding, dense: bool, trace: Trace | None
) -> Tensor:
    """y `[B, S, H]` (bf16 values) of the layer input `x` `[B, S, H]`; S is a multiple of the window."""
    length = x.shape[1]
    d, eps = dims.head_dim, dims.rms_norm_eps
    cos, sin = rope_table(length, 1, ratio > 0, dims.rope_dim, dims, x.device)
    low, latent = F.linear(x, weights[f"{at}attn.wqkv_a"]).split((dims.q_lora_rank, d), dim=-1)
    low = rms_norm(low, weights[f"{at}attn.q_norm"], eps)
    q = query_heads(weights, at, low, cos, sin, dims, rounding)
    rows = window_rows(weights, at, latent, cos, sin, dims, rounding)

    entries = visible = None
    scores = None
    if ratio:
        entries = compress(weights, f"{at}compressor.", x, ratio, d, dims)
        entries = rounding.state(entries, dims.rope_dim, dims.quant_group)
        visible = visible_entries(length, ratio, x.device)
        if ratio == 4 and (trace is not None or entries.shape[1] > dims.index_topk):
            # The indexer learns only to rank as attention does: no gradient into the layers it reads.
            scores = index_scores(weights, at, x.detach(), low.detach(), dims, rounding)
    selected = visible
    if visible is not None and scores is not None and not dense:
        selected = select_entries(scores, visible, dims.index_topk)
    o, kl = attend(q, rows, entries, selected, visible, scores if trace is not None else None,
                   weights[f"{at}attn.sink"], dims)  # fmt: skip
    if trace is not None and kl is not None:
        trace.index_kl.append(kl)

    return project_heads(weights, at, o, cos, sin, dims, rounding)


def query_heads(
    weights: Weights, at: str, low: Tensor, cos: Tensor, sin: Tensor, dims: Dims, rounding: Rounding
) -> Tensor:
    """Rotated queries `[..., heads, D]` of the normed low-rank rows `[..., q_lora]`; cos, sin `[..., rope_dim / 2]`."""
    q = rounding.bf16(F.linear(low, weights[f"{at}attn.wq_b"])).unflatten(-1, (dims.n_heads, dims.head_dim))
    return rounding.bf16(rotate(rms_norm(q, None, dims.rms_norm_eps), cos.unsqueeze(-2), sin.unsqueeze(-2)))


def window_rows(
    weights: Weights, at: str, latent: Tensor, cos: Tensor, sin: Tensor, dims: Dims, rounding: Rounding
) -> Tensor:
    """Cached states `[..., D]` of latents `[..., D]`."""
    rows = rotate(rms_norm(latent, weights[f"{at}attn.kv_norm"], dims.rms_norm_eps), cos, sin)
    return rounding.state(rows, dims.rope_dim, dims.quant_group)


def project_heads(
    weights: Weights, at: str, o: Tensor, cos: Tensor, sin: Tensor, dims: Dims, rounding: Rounding
) -> Tensor:
    """y `[..., H]` of the heads' outputs `[..., heads, D]`, turned back by their query's position."""
    o = rounding.bf16(rotate(o, cos.unsqueeze(-2), -sin.unsqueeze(-2)))
    grouped = o.reshape(-1, dims.o_groups, dims.n_heads // dims.o_groups * dims.head_dim)
    low = torch.einsum("ngi,gri->ngr", grouped, weights[f"{at}attn.wo_a"]).flatten(1)
    return rounding.bf16(F.linear(low, weights[f"{at}attn.wo_b"]).view(*o.shape[:-2], -1))


def attend(
    q: Tensor, rows: Tensor, entries: Tensor | None, selected: Tensor | None, visible: Tensor | None,
    scores: Tensor | None, sink: Tensor, dims: Dims,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """o `[B, S, heads, D]` of one softmax over the window, the selected entries and the sink.

    q `[B, S, heads, D]`, rows `[B, S, D]`, entries `[B, C, D]`, selected `[B or 1, S, C]`, visible `[S, C]`,
    scores `[B, S, C]`. Also returns the KL of the scores, when given, to the attention mass on entries.
    """
    batch, length, heads, d = q.shape
    window = dims.window
    blocks = length // window
    queries = q.reshape(batch * blocks, window * heads, d)
    blocked = rows.view(batch, blocks, window, d)
    near = torch.cat((F.pad(blocked, (0, 0, 0, 0, 1, 0))[:, :-1], blocked), dim=2).view(batch * blocks, 2 * window, d)
    scale = d**-0.5
    near_logits = (queries @ near.transpose(1, 2) * scale).view(batch, blocks, window, heads, 2 * window)
    near_logits = near_logits.masked_fill(~window_mask(blocks, window, q.device), -torch.inf)
    logits = [near_logits.view(batch, length, heads, 2 * window), sink[:, None].expand(batch, length, heads, 1)]
    far_logits = None
    if entries is not None and selected is not None:
        far_logits = (q.reshape(batch, length * heads, d) @ entries.transpose(1, 2) * scale)
        far_logits = far_logits.view(batch, length, heads, -1)
        logits.append(far_logits.masked_fill(~selected.unsqueeze(-2), -torch.inf))
    joined = torch.cat(logits, dim=-1)
    mass = torch.softmax(joined, dim=-1)
    o = (mass[..., : 2 * window].reshape(batch * blocks, window * heads, -1) @ near).view(batch, length * heads, d)
    if entries is not None:
        o = o + mass[..., 2 * window + 1 :].reshape(batch, length * heads, -1) @ entries
    o = o.view(batch, length, heads, d)
    if scores is None or far_logits is None or visible is None:
        return o, None
    with torch.no_grad():
        # Entries outside the selection count with the mass they would get, so that a missed one can be found again.
        total = sink[:, None] - mass[..., 2 * window : 2 * window + 1].clamp_min(1e-30).log()
        wanted = (far_logits - total).clamp_max(30.0).exp().sum(2).masked_fill(~visible, 0.0)
        wanted = wanted / wanted.sum(-1, keepdim=True).clamp_min(1e-30)
    return o, ranking_loss(scores, wanted, visible)


@lru_cache(maxsize=32)
def window_mask(blocks: int, window: int, device: torch.device) -> Tensor:
    """True where a query of a block sees a row of the block before or its own: `[blocks, window, 1, 2 window]`."""
    query = torch.arange(window, device=device)[:, None]
    key = torch.arange(2 * window, device=device)[None, :] - window
    inside = (key <= query) & (key > query - window)
    first = inside & (key >= 0)
    return torch.stack([first] + [inside] * (blocks - 1)).unsqueeze(2)


@lru_cache(maxsize=32)
def visible_entries(length: int, ratio: int, device: torch.device) -> Tensor:
    """True where the query at p sees entry j, j < (p + 1) // ratio: `[S, S // ratio]`."""
    count = (torch.arange(length, device=device) + 1) // ratio
    return torch.arange(length // ratio, device=device)[None, :] < count[:, None]


def compress(weights: Weights, prefix: str, x: Tensor, ratio: int, width: int, dims: Dims) -> Tensor:
    """One row for every `ratio` tokens: `[B, S // ratio, width]`, normed and rotated, not yet rounded."""
    batch, length, _ = x.shape
    count = length // ratio
    kv, score = F.linear(x[:, : count * ratio], weights[f"{prefix}wkv_gate"]).chunk(2, dim=-1)
    kv = kv.view(batch, count, ratio, kv.shape[-1])
    score = score.view(kv.shape) + weights[f"{prefix}ape"]
    if ratio == 4:  # overlap: the older window's tokens use the first columns, the newer's the second
        old_kv = F.pad(kv[..., :width], (0, 0, 0, 0, 1, 0))[:, :-1]
        old_score = F.pad(score[..., :width], (0, 0, 0, 0, 1, 0), value=-torch.inf)[:, :-1]
        kv, score = torch.cat((old_kv, kv[..., width:]), dim=2), torch.cat((old_score, score[..., width:]), dim=2)
    pooled = (torch.softmax(score, dim=2) * kv).sum(2)
    rope_dim = min(dims.rope_dim, width)
    cos, sin = rope_table(count, ratio, True, rope_dim, dims, x.device)
    return rotate(rms_norm(pooled, weights[f"{prefix}norm"], dims.rms_norm_eps), cos, sin)


def index_scores(weights: Weights, at: str, x: Tensor, low: Tensor, dims: Dims, rounding: Rounding) -> Tensor:
    """Ranking scores `[B, S, C]` of the compressed entries (section 3.3)."""
    batch, length, _ = x.shape
    heads, d = dims.index_heads, dims.index_dim
    cos, sin = rope_table(length, 1, True, dims.index_rope_dim, dims, x.device)
    q = F.linear(low, weights[f"{at}indexer.wq_b"]).view(batch, length, heads, d)
    q = rounding.index(rotate(q, cos[:, None], sin[:, None]))
    keys = rounding.index(compress(weights, f"{at}indexer.compressor.", x, 4, d, dims))
    head_weights = F.linear(x, weights[f"{at}indexer.w"]) * (d**-0.5 * heads**-0.5)
    dots = torch.relu(q.reshape(batch, length * heads, d) @ keys.transpose(1, 2))
    return (dots.view(batch, length, heads, -1) * head_weights.unsqueeze(-1)).sum(2)


def select_entries(scores: Tensor, visible: Tensor, topk: int) -> Tensor:
    """True at the `topk` best visible entries of each row, the lowest index winning ties: `[B, S, C]`."""
    if scores.shape[-1] <= topk:
        return visible.unsqueeze(0)
    ranked = scores.detach().masked_fill(~visible, -torch.inf)
    order = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :topk]
    return torch.zeros_like(ranked, dtype=torch.bool).scatter_(-1, order, True) & visible


def ranking_loss(scores: Tensor, wanted: Tensor, visible: Tensor) -> Tensor:
    """KL(wanted || softmax of scores) over visible entries, mean over the rows that see at least two."""
    rows = visible.sum(-1) > 1
    if not rows.any():
        return scores.sum() * 0.0
    scores, wanted, seen = scores[:, rows], wanted[:, rows], visible[rows]
    log_p = torch.log_softmax(scores.masked_fill(~seen, -torch.inf), dim=-1).masked_fill(~seen, 0.0)
    return (torch.special.xlogy(wanted, wanted) - wanted * log_p).sum(-1).mean()


# Mixture of experts (section 3.8).


def moe(
    weights: Weights, layer: int, x: Tensor, ids: Tensor, dims: Dims, rounding: Rounding, trace: Trace | None
) -> Tensor:
    """y `[N, H]` of the routed experts and the shared one.

    All experts run as two matrix products: unpicked ones get weight 0. At pico's 4 experts that is
    cheaper than sorting tokens.
    """
    at = f"layers.{layer}.moe."
    route = router(weights, at, x, ids, dims)
    if trace is not None:
        trace.expert_load[layer] = (route.detach() > 0).float().mean(0) / dims.experts_per_token
    w13 = torch.cat((weights[f"{at}w13"], weights[f"{at}shared_w13"].unsqueeze(0)))
    w2 = torch.cat((weights[f"{at}w2"], weights[f"{at}shared_w2"].unsqueeze(0)))
    gate, up = F.linear(x, w13.flatten(0, 1)).view(len(x), -1, 2, dims.expert_width).unbind(2)
    inner = F.silu(gate.clamp_max(dims.swiglu_limit)) * up.clamp(-dims.swiglu_limit, dims.swiglu_limit)
    inner = inner * F.pad(route, (0, 1), value=1.0).unsqueeze(-1)
    return rounding.bf16(inner.flatten(1) @ w2.transpose(1, 2).flatten(0, 1))


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
