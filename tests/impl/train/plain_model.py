"""The target in float64 numpy, one token at a time, from the formulas of the reference (sections 2.1, 3, 3.8).

Nothing is shared with `impl.train.forward`: no batching, no masks, no rounding.
"""

from __future__ import annotations

import math

import numpy as np

from impl.dims import Dims

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def norm(x: Array, weight: Array | float = 1.0) -> Array:
    return x / np.sqrt(np.mean(x**2) + 1e-6) * weight


def seam_gates(streams: Array, fn: Array, scale: Array, base: Array, dims: Dims) -> tuple[Array, Array, Array]:
    hc, eps = dims.hc_mult, dims.hc_eps
    z = streams.reshape(-1)
    m = fn @ z / math.sqrt(np.mean(z**2) + 1e-6)
    pre = sigmoid(m[:hc] * scale[0] + base[:hc]) + eps
    post = 2.0 * sigmoid(m[hc : 2 * hc] * scale[1] + base[hc : 2 * hc])
    logits = np.empty((hc, hc))
    for i in range(hc):
        for j in range(hc):
            at = 2 * hc + hc * i + j
            logits[i, j] = m[at] * scale[2] + base[at]
    comb = np.stack([np.exp(row) / np.exp(row).sum() for row in logits]) + eps
    comb = comb / (comb.sum(0)[None, :] + eps)
    for _ in range(dims.sinkhorn_iters - 1):
        comb = comb / (comb.sum(1)[:, None] + eps)
        comb = comb / (comb.sum(0)[None, :] + eps)
    return pre, post, comb


def post_mix(streams: Array, y: Array, post: Array, comb: Array) -> Array:
    out = np.empty_like(streams)
    for j in range(len(streams)):
        out[j] = sum(comb[i, j] * streams[i] for i in range(len(streams))) + post[j] * y
    return out


def frequencies(rope_dim: int, ratio: int, dims: Dims) -> Array:
    out = []
    for i in range(rope_dim // 2):
        if not ratio:
            out.append(10000.0 ** (-2 * i / rope_dim))
            continue
        theta = 160000.0
        turns = {r: rope_dim * math.log(65536 / (2 * math.pi * r)) / (2 * math.log(theta)) for r in (32, 1)}
        low, high = math.floor(turns[32]), math.ceil(turns[1])
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        f = theta ** (-2 * i / rope_dim)
        out.append(f / 16 * ramp + f * (1 - ramp))
    return np.array(out)


def rope(x: Array, position: int, freqs: Array, sign: int = 1) -> Array:
    out = x.copy()
    start = len(x) - 2 * len(freqs)
    for i, f in enumerate(freqs):
        a, b = x[start + 2 * i], x[start + 2 * i + 1]
        c, s = math.cos(position * f), sign * math.sin(position * f)
        out[start + 2 * i], out[start + 2 * i + 1] = a * c - b * s, a * s + b * c
    return out


def compressed_rows(w: dict[str, Array], at: str, xs: list[Array], ratio: int, width: int, freqs: Array) -> list[Array]:
    """One row at every position p with (p + 1) % ratio == 0."""
    overlap = ratio == 4
    rows = []
    for p in range(len(xs)):
        if (p + 1) % ratio:
            continue
        kvs, scores = [], []
        for u in range(p + 1 - (2 if overlap else 1) * ratio, p + 1):
            if u < 0:
                kvs.append(np.zeros(width))
                scores.append(np.full(width, -np.inf))
                continue
            kv, score = np.split(w[f"{at}wkv_gate"] @ xs[u], 2)
            score = score + w[f"{at}ape"][u % ratio]
            half = slice(width, 2 * width) if overlap and u > p - ratio else slice(0, width)
            kvs.append(kv[half])
            scores.append(score[half])
        s = np.array(scores)
        weight = np.exp(s - s.max(0))
        pooled = (weight / weight.sum(0) * np.array(kvs)).sum(0)
        rows.append(rope(norm(pooled, w[f"{at}norm"]), (p // ratio) * ratio, freqs))
    return rows


def attention(w: dict[str, Array], at: str, xs: list[Array], ratio: int, dims: Dims) -> list[Array]:
    heads, d, length = dims.n_heads, dims.head_dim, len(xs)
    freqs = frequencies(dims.rope_dim, ratio, dims)
    lows, qs, kvs = [], [], []
    for p, x in enumerate(xs):
        a = w[f"{at}attn.wqkv_a"] @ x
        lows.append(norm(a[: dims.q_lora_rank], w[f"{at}attn.q_norm"]))
        kvs.append(rope(norm(a[dims.q_lora_rank :], w[f"{at}attn.kv_norm"]), p, freqs))
        q = (w[f"{at}attn.wq_b"] @ lows[-1]).reshape(heads, d)
        qs.append([rope(norm(h), p, freqs) for h in q])
    entries = compressed_rows(w, f"{at}compressor.", xs, ratio, d, freqs) if ratio else []
    out = []
    for p in range(length):
        seen = entries[: (p + 1) // ratio] if ratio else []
        if ratio == 4 and len(seen) > dims.index_topk:
            seen = [seen[i] for i in indexed(w, at, xs, lows, p, dims)]
        rows = kvs[max(0, p - dims.window + 1) : p + 1] + seen
        o = []
        for h in range(heads):
            logit = np.array([row @ qs[p][h] for row in rows]) / math.sqrt(d)
            e = np.exp(logit)
            total = e.sum() + math.exp(w[f"{at}attn.sink"][h])
            o.append(rope(sum(x * row for x, row in zip(e, rows, strict=True)) / total, p, freqs, sign=-1))
        per_group = heads // dims.o_groups
        parts = [
            w[f"{at}attn.wo_a"][g] @ np.concatenate(o[g * per_group : (g + 1) * per_group])
            for g in range(dims.o_groups)
        ]
        out.append(w[f"{at}attn.wo_b"] @ np.concatenate(parts))
    return out


def indexed(w: dict[str, Array], at: str, xs: list[Array], lows: list[Array], p: int, dims: Dims) -> list[int]:
    freqs = frequencies(dims.index_rope_dim, 4, dims)
    keys = compressed_rows(w, f"{at}indexer.compressor.", xs[: p + 1], 4, dims.index_dim, freqs)
    q = (w[f"{at}indexer.wq_b"] @ lows[p]).reshape(dims.index_heads, dims.index_dim)
    weight = w[f"{at}indexer.w"] @ xs[p]
    scores = []
    for key in keys:
        each = [max(rope(q[h], p, freqs) @ key, 0.0) * weight[h] for h in range(dims.index_heads)]
        scores.append(sum(each) / math.sqrt(dims.index_dim * dims.index_heads))
    return sorted(range(len(scores)), key=lambda s: (-scores[s], s))[: dims.index_topk]


def expert(w13: Array, w2: Array, x: Array, limit: float) -> Array:
    gate, up = np.split(w13 @ x, 2)
    gate = np.minimum(gate, limit)
    return w2 @ (gate * sigmoid(gate) * np.clip(up, -limit, limit))


def moe(w: dict[str, Array], at: str, x: Array, token: int, dims: Dims) -> Array:
    s = np.sqrt(np.log1p(np.exp(w[f"{at}gate"] @ x)))
    if f"{at}tid2eid" in w:
        picked = [int(e) for e in w[f"{at}tid2eid"][token]]
    else:
        picked = list(np.argsort(-(s + w[f"{at}bias"]), kind="stable")[: dims.experts_per_token])
    y = expert(w[f"{at}shared_w13"], w[f"{at}shared_w2"], x, dims.swiglu_limit)
    for e in picked:
        share = 1.5 * s[e] / sum(s[i] for i in picked)
        y = y + share * expert(w[f"{at}w13"][e], w[f"{at}w2"][e], x, dims.swiglu_limit)
    return y


def logits(w: dict[str, Array], ids: list[int], dims: Dims, aux: list[Array] | None = None) -> Array:
    """`[S, V]` of one sequence; `aux` gets the stream means `[S, H]` after each of the captured layers."""
    streams = [np.repeat(w["embed"][i][None], dims.hc_mult, 0) for i in ids]
    for layer, ratio in enumerate(dims.compress_ratios):
        at = f"layers.{layer}."
        for kind in ("attn", "ffn"):
            seam = f"{at}hc_{kind}."
            gates = [seam_gates(r, w[f"{seam}fn"], w[f"{seam}scale"], w[f"{seam}base"], dims) for r in streams]
            xs = [norm(g[0] @ r, w[f"{at}{kind}_norm"]) for g, r in zip(gates, streams, strict=True)]
            if kind == "attn":
                ys = attention(w, at, xs, ratio, dims)
            else:
                ys = [moe(w, f"{at}moe.", x, i, dims) for x, i in zip(xs, ids, strict=True)]
            streams = [post_mix(r, y, g[1], g[2]) for r, y, g in zip(streams, ys, gates, strict=True)]
        if aux is not None and layer in dims.aux_layers:
            aux.append(np.array([r.mean(0) for r in streams]))
    return np.array([w["lm_head"] @ norm(head(w, r, dims), w["norm"]) for r in streams])


def head(w: dict[str, Array], streams: Array, dims: Dims) -> Array:
    z = streams.reshape(-1)
    m = w["hc_head.fn"] @ z / math.sqrt(np.mean(z**2) + 1e-6)
    return (sigmoid(m * w["hc_head.scale"] + w["hc_head.base"]) + dims.hc_eps) @ streams
