"""mHC (manifold-constrained hyper-connections): the seams between sublayers, the head, the aux means.

Torch reference, in token tiles. Streams are bf16 [N, hc, H], layer inputs and sublayer outputs bf16
[N, H], gates fp32; all mixing is fp32 and every new stream is rounded to bf16 before anything reads
it, which is what makes reuse and fusion bitwise. Source: deepseek_v4_dspark.md sections 2.1 to 2.3.

Each row's result depends on that row alone, in either path and any tile, so a request computes the
same bits alone and in a batch. Two things on the CPU would break that: a product of 1 to 3 rows sums
in another order (`impl.ops.linear`), and a vectorized sigmoid differs from the scalar one of a ragged
tail; so projections and their gates run on rows padded to ROW_MULTIPLE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impl.ops.tiles import tiles

TILE = 256
"""Tokens the reference keeps in fp32 at a time."""
SMALL_TOKENS = 16
"""At most this many tokens take the single-kernel path, where nothing may alias."""
ROW_MULTIPLE = 8
"""Rows a projection is padded to: 8 rows of 4 gates fill whole vectors on AVX2 and AVX-512."""
SMALL_PROGRAMS = 2
"""Column programs of the small-token path, run in this order by the reference."""


@dataclass(frozen=True)
class SeamWeights:
    """Parameters of one seam's PRE, M = hc * (hc + 2)."""

    fn: Tensor
    """fp32 [M, hc * H]"""
    scale: Tensor
    """fp32 [3]: pre, post, mixing"""
    base: Tensor
    """fp32 [M]"""
    norm: Tensor
    """fp32 [H]: RMSNorm of the sublayer that follows"""
    hc_eps: float
    rms_eps: float
    sinkhorn_iters: int
    post_mult: float = 2.0


@dataclass(frozen=True)
class HeadWeights:
    """Parameters of the head's stream mix."""

    fn: Tensor
    """fp32 [hc, hc * H]"""
    scale: Tensor
    """fp32 [1]"""
    base: Tensor
    """fp32 [hc]"""
    hc_eps: float
    rms_eps: float


class Gates(NamedTuple):
    pre: Tensor
    """fp32 [n, hc]"""
    post: Tensor
    """fp32 [n, hc]"""
    comb: Tensor
    """fp32 [n, hc, hc], first index = source stream"""


class SeamOutput(NamedTuple):
    residual: Tensor
    post: Tensor
    comb: Tensor
    layer_input: Tensor


def seam(
    residual: Tensor,
    y: Tensor,
    post: Tensor,
    comb: Tensor,
    weights: SeamWeights,
    *,
    residual_out: Tensor | None = None,
    input_out: Tensor | None = None,
) -> SeamOutput:
    """POST of the last sublayer fused with PRE of the next.

    `residual_out` may be `residual`, and `input_out` may be `y`, when there are more than
    SMALL_TOKENS tokens: POST reads a token's old streams and `y` before it writes its new ones, and
    the layer input is written after the last read of `y`. In the small-token path programs re-read
    both while others write, so aliasing there gives wrong results (the control
    `residual_reuse_small_path` does it on purpose). Outputs are allocated before any work, as the
    kernels do.
    """
    n = residual.shape[0]
    new = torch.empty_like(residual) if residual_out is None else residual_out
    layer_input = torch.empty_like(y) if input_out is None else input_out
    new_post, new_comb = torch.empty_like(post), torch.empty_like(comb)
    if n <= SMALL_TOKENS:
        _small_seam(residual, y, post, comb, weights, new, new_post, new_comb, layer_input)
        return SeamOutput(new, new_post, new_comb, layer_input)
    for rows in tiles(n, TILE):
        new[rows] = post_rows(residual[rows], y[rows], post[rows], comb[rows])
    for rows in tiles(n, TILE):
        tile = new[rows].float()
        gates = gate_rows(tile, weights)
        new_post[rows], new_comb[rows] = gates.post, gates.comb
        layer_input[rows] = input_rows(tile, gates.pre, weights)
    return SeamOutput(new, new_post, new_comb, layer_input)


def _small_seam(
    residual: Tensor,
    y: Tensor,
    post: Tensor,
    comb: Tensor,
    weights: SeamWeights,
    new: Tensor,
    new_post: Tensor,
    new_comb: Tensor,
    layer_input: Tensor,
) -> None:
    """One kernel: each program re-reads every column of the old streams and writes its own columns."""
    width = -(-residual.shape[-1] // SMALL_PROGRAMS)
    for program in range(SMALL_PROGRAMS):
        columns = slice(program * width, (program + 1) * width)
        streams = post_rows(residual, y, post, comb)
        tile = streams.float()
        gates = gate_rows(tile, weights)
        new[..., columns] = streams[..., columns]
        new_post.copy_(gates.post)
        new_comb.copy_(gates.comb)
        layer_input[:, columns] = input_rows(tile, gates.pre, weights)[:, columns]


def pre(residual: Tensor, weights: SeamWeights) -> SeamOutput:
    """PRE alone: the first seam of the model, which has no sublayer output to add."""
    n, hc, hidden = residual.shape
    layer_input = residual.new_empty(n, hidden)
    post = residual.new_empty(n, hc, dtype=torch.float32)
    comb = residual.new_empty(n, hc, hc, dtype=torch.float32)
    for rows in tiles(n, TILE):
        tile = residual[rows].float()
        gates = gate_rows(tile, weights)
        post[rows], comb[rows] = gates.post, gates.comb
        layer_input[rows] = input_rows(tile, gates.pre, weights)
    return SeamOutput(residual, post, comb, layer_input)


def post_streams(residual: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """POST alone: the new streams, bf16 [N, hc, H]."""
    new = torch.empty_like(residual)
    for rows in tiles(residual.shape[0], TILE):
        new[rows] = post_rows(residual[rows], y[rows], post[rows], comb[rows])
    return new


def stream_mean(streams: Tensor, out: Tensor) -> None:
    """Mean over streams into `out`, bf16 [N, H], summed in fp32 in stream order and rounded once."""
    for rows in tiles(streams.shape[0], TILE):
        out[rows] = _mean_rows(streams[rows].float())


def head(streams: Tensor, weights: HeadWeights) -> Tensor:
    """HEAD: the gated sum over streams, bf16 [N, H], before the final norm."""
    n, _, hidden = streams.shape
    out = streams.new_empty(n, hidden)
    for rows in tiles(n, TILE):
        out[rows] = _head_rows(streams[rows].float(), weights)
    return out


def post_mean(residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, out: Tensor) -> None:
    """POST fused with the stream mean into `out`: no [N, hc, H] intermediate. Bitwise equal to the two steps."""
    for rows in tiles(residual.shape[0], TILE):
        out[rows] = _mean_rows(post_rows(residual[rows], y[rows], post[rows], comb[rows]).float())


def post_head(
    residual: Tensor,
    y: Tensor,
    post: Tensor,
    comb: Tensor,
    weights: HeadWeights,
    out: Tensor,
    mean: Tensor | None = None,
) -> None:
    """POST fused with HEAD into `out` and, where given, the stream mean into `mean`: bf16 [N, H] both.

    A tile is read whole before it is written, so `out` may be `y` at any number of tokens.
    """
    for rows in tiles(residual.shape[0], TILE):
        tile = post_rows(residual[rows], y[rows], post[rows], comb[rows]).float()
        out[rows] = _head_rows(tile, weights)
        if mean is not None:
            mean[rows] = _mean_rows(tile)
        del tile  # or it would be alive while the next one is made


def post_rows(residual: Tensor, y: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """R'_j = post_j y + sum_i C[i, j] R_i for one tile, rounded to bf16."""
    sources = residual.float()[:, :, None].unbind(1)
    new = post[:, :, None] * y.float()[:, None]
    term = torch.empty_like(new)
    for weight, source in zip(comb[..., None].unbind(1), sources, strict=True):
        torch.mul(weight, source, out=term)
        new += term
    return new.to(residual.dtype)


def gate_rows(tile: Tensor, weights: SeamWeights) -> Gates:
    """Gates of one tile of fp32 streams [n, hc, H], the mixing matrix by Sinkhorn."""
    n, hc, _ = tile.shape
    mix = _project(tile, weights.fn, weights.rms_eps)
    padded = mix.shape[0]
    pre_gate = torch.sigmoid(mix[:, :hc] * weights.scale[0] + weights.base[:hc]) + weights.hc_eps
    post_gate = weights.post_mult * torch.sigmoid(mix[:, hc : 2 * hc] * weights.scale[1] + weights.base[hc : 2 * hc])
    logits = mix[:, 2 * hc :] * weights.scale[2] + weights.base[2 * hc :]
    comb = sinkhorn(logits.view(padded, hc, hc), weights.sinkhorn_iters, weights.hc_eps)
    return Gates(pre_gate[:n], post_gate[:n], comb[:n])


def sinkhorn(logits: Tensor, iters: int, eps: float) -> Tensor:
    """Towards doubly stochastic: a row softmax, then alternate column and row scaling, ending on columns."""
    comb = torch.softmax(logits, dim=-1) + eps
    comb /= comb.sum(dim=1, keepdim=True) + eps
    for _ in range(iters - 1):
        comb /= comb.sum(dim=2, keepdim=True) + eps
        comb /= comb.sum(dim=1, keepdim=True) + eps
    return comb


def input_rows(tile: Tensor, pre_gate: Tensor, weights: SeamWeights) -> Tensor:
    """x = sum_i pre_i R_i rounded to bf16, then the sublayer's RMSNorm: bf16 [n, H]."""
    mixed = _weighted_sum(tile, pre_gate).to(torch.bfloat16).float()
    mixed *= torch.rsqrt(mixed.square().mean(dim=-1, keepdim=True) + weights.rms_eps)
    mixed *= weights.norm
    return mixed.to(torch.bfloat16)


def _head_rows(tile: Tensor, weights: HeadWeights) -> Tensor:
    gates = torch.sigmoid(_project(tile, weights.fn, weights.rms_eps) * weights.scale + weights.base) + weights.hc_eps
    return _weighted_sum(tile, gates[: tile.shape[0]]).to(torch.bfloat16)


def _mean_rows(tile: Tensor) -> Tensor:
    first, second, *rest = tile.unbind(1)
    total = first + second
    for stream in rest:
        total += stream
    return (total / tile.shape[1]).to(torch.bfloat16)


def _weighted_sum(tile: Tensor, gates: Tensor) -> Tensor:
    streams, weights = tile.unbind(1), gates[..., None].unbind(1)
    total = streams[0] * weights[0]
    for stream, weight in zip(streams[1:], weights[1:], strict=True):
        total += stream * weight
    return total


def _project(tile: Tensor, fn: Tensor, rms_eps: float) -> Tensor:
    """(fn z) * rsqrt(mean z^2 + eps), z the flattened streams: fp32 [n padded to ROW_MULTIPLE, rows of fn]."""
    z = tile.flatten(1)
    missing = -z.shape[0] % ROW_MULTIPLE
    if missing:
        z = F.pad(z, (0, 0, 0, missing))
    return F.linear(z, fn) * torch.rsqrt(z.square().mean(dim=-1, keepdim=True) + rms_eps)
