"""The attention sublayer in float64, a token at a time, from the formulas of section 3; nothing shared with `impl`.

Rounded is what the reference rounds: queries, states and outputs to bf16, cached and indexer values to e4m3.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from impl.dims import Dims


def bf16(x: Tensor) -> Tensor:
    return x.bfloat16().double()


def e4m3(x: Tensor) -> Tensor:
    """Nearest e4m3 value, ties to even, of |x| <= 448."""
    exponent = torch.floor(torch.log2(x.abs().clamp_min(1e-30))).clamp_min(-6)
    step = torch.exp2(exponent - 3)
    return torch.round(x / step) * step


def scaled_e4m3(x: Tensor) -> Tensor:
    """Each vector along the last dim under its own power of two."""
    largest = x.abs().amax(-1, keepdim=True).clamp_min(1e-4)
    scale = torch.exp2(torch.ceil(torch.log2(largest / 448)))
    return e4m3(x / scale) * scale


def cached_state(x: Tensor, dims: Dims) -> Tensor:
    x = bf16(x)
    nope, group = dims.head_dim - dims.rope_dim, min(64, dims.head_dim - dims.rope_dim)
    parts = [scaled_e4m3(x[i : min(i + group, nope)]) for i in range(0, nope, group)]
    return torch.cat([*parts, x[nope:]])


def norm(x: Tensor, weight: Tensor | None = None) -> Tensor:
    x = x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6)
    return x if weight is None else x * weight


@lru_cache
def turns(width: int, ratio: int) -> Tensor:
    """Angle a position of each pair."""
    if not ratio:
        return torch.tensor([10000.0 ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    low, high = (
        way(width * math.log(65536 / (2 * math.pi * times)) / (2 * math.log(160000)))
        for way, times in ((math.floor, 32), (math.ceil, 1))
    )
    angles = []
    for i in range(width // 2):
        f = 160000.0 ** (-2 * i / width)
        ramp = min(max((i - max(low, 0)) / (min(high, width - 1) - max(low, 0)), 0.0), 1.0)
        angles.append(f / 16 * ramp + f * (1 - ramp))
    return torch.tensor(angles, dtype=torch.float64)


def rotate(x: Tensor, position: int, width: int, ratio: int, sign: int = 1) -> Tensor:
    """Pairs of the last `width` values by the layer's table."""
    angles = position * turns(width, ratio)
    cos, sin = torch.cos(angles), sign * torch.sin(angles)
    keep, a, b = x[..., :-width], x[..., -width::2], x[..., x.shape[-1] - width + 1 :: 2]
    return torch.cat((keep, torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)), -1)


def entries(w: dict[str, Tensor], x: Tensor, ratio: int, width: int, dims: Dims) -> list[Tensor]:
    """Compressed rows before quantization, normed and rotated."""
    columns = (2 if ratio == 4 else 1) * width
    rows = x @ w["wkv_gate"].T
    kv, score = rows[:, :columns], rows[:, columns:].clone()
    for u in range(len(x)):
        score[u] += w["ape"][u % ratio]
    made = []
    for last in range(ratio - 1, len(x), ratio):
        values, scores = [], []
        for u in range(max(last + 1 - (2 if ratio == 4 else 1) * ratio, 0), last + 1):
            half = slice(width, 2 * width) if ratio == 4 and u > last - ratio else slice(0, width)
            values.append(kv[u, half])
            scores.append(score[u, half])
        pooled = (torch.softmax(torch.stack(scores), 0) * torch.stack(values)).sum(0)
        made.append(rotate(norm(pooled, w["norm"]), last // ratio * ratio, min(dims.rope_dim, width), ratio))
    return made


def attention(weights: dict[str, Tensor], dims: Dims, layer: int, x: Tensor) -> tuple[Tensor, list[list[int]]]:
    """y float64 [S, H] of a whole prompt x [S, H], and the compressed entries each token chose."""
    at, ratio, d = f"layers.{layer}.", dims.compress_ratios[layer], dims.head_dim
    w = {name.removeprefix(at): value.double() for name, value in weights.items() if name.startswith(at)}

    def part(prefix: str) -> dict[str, Tensor]:
        return {name: w[f"{prefix}{name}"] for name in ("wkv_gate", "ape", "norm")}

    x = x.double()
    rows = x @ w["attn.wqkv_a"].T
    window, compressed, keys, outputs, choices = [], [], [], [], []
    if ratio:
        compressed = [cached_state(e, dims) for e in entries(part("compressor."), x, ratio, d, dims)]
    if ratio == 4:
        made = entries(part("indexer.compressor."), x, ratio, dims.index_dim, dims)
        keys = [scaled_e4m3(bf16(key)) for key in made]
    for p in range(len(x)):
        low = norm(rows[p, : dims.q_lora_rank], w["attn.q_norm"])
        latent = norm(rows[p, dims.q_lora_rank :], w["attn.kv_norm"])
        window.append(cached_state(rotate(latent, p, dims.rope_dim, ratio), dims))
        n = (p + 1) // ratio if ratio else 0
        chosen = list(range(n))
        if ratio == 4 and n > dims.index_topk:
            query = (w["indexer.wq_b"] @ low).view(dims.index_heads, dims.index_dim)
            query = rotate(query, p, min(dims.rope_dim, dims.index_dim), ratio)
            query = scaled_e4m3(bf16(query))
            gate = w["indexer.w"] @ x[p]
            scores = [float((gate * torch.relu(query @ keys[s])).sum()) for s in range(n)]
            chosen = sorted(sorted(range(n), key=lambda s: (-scores[s], s))[: dims.index_topk])
        choices.append(chosen)
        seen = window[max(0, p + 1 - dims.window) :] + [compressed[s] for s in chosen]
        states = torch.stack(seen)
        q = bf16(rotate(norm((w["attn.wq_b"] @ low).view(dims.n_heads, d)), p, dims.rope_dim, ratio))
        logits = torch.cat([q @ states.T * d**-0.5, w["attn.sink"][:, None]], 1)
        mass = torch.softmax(logits, 1)[:, :-1]
        o = bf16(rotate(mass @ states, p, dims.rope_dim, ratio, sign=-1))
        grouped = o.view(dims.o_groups, -1)
        outputs.append(w["attn.wo_b"] @ torch.einsum("gk,gok->go", grouped, w["attn.wo_a"]).flatten())
    return torch.stack(outputs), choices
