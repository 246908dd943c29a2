"""One block of the draft in float64 numpy, row by row, from the formulas of the reference (sections 1.2, 3.1 and 4)."""

from __future__ import annotations

import math

import numpy as np

from impl.dims import Dims
from tests.impl.train.plain_model import Array, frequencies, head, moe, norm, post_mix, rope, seam_gates


def block(
    w: dict[str, Array], target: dict[str, Array], ids: list[int], aux: Array, anchor: int, dims: Dims
) -> tuple[Array, Array, Array]:
    """Logits `[K, V]`, confidence logits `[K]` and h `[K, H]` after the anchor at position `anchor` of `ids`."""
    k = dims.draft_tokens
    w = {name.removeprefix("draft."): t for name, t in w.items()}
    tokens = [ids[anchor]] + [dims.noise_token_id] * (k - 1)
    main = {p: norm(w["main_proj"] @ aux[p], w["main_norm"]) for p in range(max(0, anchor - dims.window), anchor)}
    streams = [np.repeat(target["embed"][i][None], dims.hc_mult, 0) for i in tokens]
    for layer in range(dims.n_draft_layers):
        at = f"layers.{layer}."
        for kind in ("attn", "ffn"):
            seam = f"{at}hc_{kind}."
            gates = [seam_gates(r, w[f"{seam}fn"], w[f"{seam}scale"], w[f"{seam}base"], dims) for r in streams]
            xs = [norm(g[0] @ r, w[f"{at}{kind}_norm"]) for g, r in zip(gates, streams, strict=True)]
            if kind == "attn":
                ys = attention(w, at, xs, main, anchor, dims)
            else:
                ys = [moe(w, f"{at}moe.", x, i, dims) for x, i in zip(xs, tokens, strict=True)]
            streams = [post_mix(r, y, g[1], g[2]) for r, y, g in zip(streams, ys, gates, strict=True)]
    hidden = [head(w, r, dims) for r in streams]
    logits, confidence = [], []
    for step, h in enumerate(hidden):
        before = w["markov.w1"][ids[anchor + step]]
        logits.append(target["lm_head"] @ norm(h, w["norm"]) + w["markov.w2"] @ before)
        confidence.append(float(w["confidence"][0] @ np.concatenate((h, before))))
    return np.array(logits), np.array(confidence), np.array(hidden)


def attention(
    w: dict[str, Array], at: str, xs: list[Array], main: dict[int, Array], anchor: int, dims: Dims
) -> list[Array]:
    freqs = frequencies(dims.rope_dim, 0, dims)

    def state(x: Array, position: int) -> Array:
        latent = (w[f"{at}attn.wqkv_a"] @ x)[dims.q_lora_rank :]
        return rope(norm(latent, w[f"{at}attn.kv_norm"]), position, freqs)

    rows = [state(x, p) for p, x in main.items()] + [state(x, anchor + i) for i, x in enumerate(xs)]
    out = []
    for i, x in enumerate(xs):
        low = norm((w[f"{at}attn.wqkv_a"] @ x)[: dims.q_lora_rank], w[f"{at}attn.q_norm"])
        o = []
        for h, q in enumerate((w[f"{at}attn.wq_b"] @ low).reshape(dims.n_heads, dims.head_dim)):
            turned = rope(norm(q), anchor + i, freqs)
            e = np.exp([row @ turned / math.sqrt(dims.head_dim) for row in rows])
            total = e.sum() + math.exp(w[f"{at}attn.sink"][h])
            mixed = sum(x * row for x, row in zip(e, rows, strict=True)) / total
            o.append(rope(mixed, anchor + i, freqs, sign=-1))
        per_group = dims.n_heads // dims.o_groups
        parts = [
            w[f"{at}attn.wo_a"][g] @ np.concatenate(o[g * per_group : (g + 1) * per_group])
            for g in range(dims.o_groups)
        ]
        out.append(w[f"{at}attn.wo_b"] @ np.concatenate(parts))
    return out
