"""The part of the Triton seam after the streams: products with fn, gates, Sinkhorn, mix and norm."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def project(  # type: ignore[no-untyped-def]
    products, v, fn, columns, stream: tl.constexpr, H: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    """products + v fn^T for one stream. v holds bf16 values; fn is split into two of them, 16 significant bits."""
    row = tl.arange(0, WIDTH)[None, :]
    inside = (row < ROWS) & (columns[:, None] < H)
    f = tl.load(fn + row * (4 * H) + stream * H + columns[:, None], mask=inside, other=0.0)
    high = f.to(tl.bfloat16)
    low = (f - high.to(tl.float32)).to(tl.bfloat16)
    v = v.to(tl.bfloat16).to(OPERAND)
    products = tl.dot(v, high.to(OPERAND), products)
    return tl.dot(v, low.to(OPERAND), products)


@triton.jit
def split_sum(sums, token, n_tokens, splits, SPLITS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """One token's sums over all columns: fp32 [WIDTH]."""
    split = tl.arange(0, SPLITS)[:, None]
    place = sums + (split * n_tokens + token) * WIDTH + tl.arange(0, WIDTH)[None, :]
    return tl.sum(tl.load(place, mask=split < splits, other=0.0), 0)


@triton.jit
def _column(sums, token, column, n_tokens, splits, SPLITS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Many tokens' sums of one column: fp32 [tokens]."""
    split = tl.arange(0, SPLITS)[None, :]
    place = sums + (split * n_tokens + token[:, None]) * WIDTH + column
    return tl.sum(tl.load(place, mask=(split < splits) & (token[:, None] < n_tokens), other=0.0), 1)


@triton.jit
def _scaled(a, b, c, d, eps):  # type: ignore[no-untyped-def]
    total = a + b + c + d + eps
    return a / total, b / total, c / total, d / total


@triton.jit
def _softmax(a, b, c, d, eps):  # type: ignore[no-untyped-def]
    top = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
    a, b, c, d = tl.exp(a - top), tl.exp(b - top), tl.exp(c - top), tl.exp(d - top)
    total = a + b + c + d
    return a / total + eps, b / total + eps, c / total + eps, d / total + eps


@triton.jit
def _logit(sums, token, norm, scale, base, column: tl.constexpr, n_tokens, splits, SPLITS: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    return _column(sums, token, column, n_tokens, splits, SPLITS, WIDTH) * norm * scale + tl.load(base + column)


@triton.jit
def _put_gates(  # type: ignore[no-untyped-def]
    first, sums, scale, base, post_out, comb_out, n_tokens, splits, rms_eps, hc_eps, post_mult,
    H: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, TOKENS: tl.constexpr,
    ITERS: tl.constexpr,
):  # fmt: skip
    """POST gates and mixing matrices, a token a lane: the 16 values of a matrix are 16 tensors."""
    token = first + tl.arange(0, TOKENS)
    live = token < n_tokens
    squares = _column(sums, token, ROWS, n_tokens, splits, SPLITS, WIDTH)
    norm = tl.rsqrt(squares / (4 * H) + rms_eps)
    scale1, scale2 = tl.load(scale + 1), tl.load(scale + 2)
    for j in tl.static_range(4):
        logit = _logit(sums, token, norm, scale1, base, 4 + j, n_tokens, splits, SPLITS, WIDTH)
        tl.store(post_out + token * 4 + j, post_mult * tl.sigmoid(logit), mask=live)
    c00 = _logit(sums, token, norm, scale2, base, 8, n_tokens, splits, SPLITS, WIDTH)
    c01 = _logit(sums, token, norm, scale2, base, 9, n_tokens, splits, SPLITS, WIDTH)
    c02 = _logit(sums, token, norm, scale2, base, 10, n_tokens, splits, SPLITS, WIDTH)
    c03 = _logit(sums, token, norm, scale2, base, 11, n_tokens, splits, SPLITS, WIDTH)
    c10 = _logit(sums, token, norm, scale2, base, 12, n_tokens, splits, SPLITS, WIDTH)
    c11 = _logit(sums, token, norm, scale2, base, 13, n_tokens, splits, SPLITS, WIDTH)
    c12 = _logit(sums, token, norm, scale2, base, 14, n_tokens, splits, SPLITS, WIDTH)
    c13 = _logit(sums, token, norm, scale2, base, 15, n_tokens, splits, SPLITS, WIDTH)
    c20 = _logit(sums, token, norm, scale2, base, 16, n_tokens, splits, SPLITS, WIDTH)
    c21 = _logit(sums, token, norm, scale2, base, 17, n_tokens, splits, SPLITS, WIDTH)
    c22 = _logit(sums, token, norm, scale2, base, 18, n_tokens, splits, SPLITS, WIDTH)
    c23 = _logit(sums, token, norm, scale2, base, 19, n_tokens, splits, SPLITS, WIDTH)
    c30 = _logit(sums, token, norm, scale2, base, 20, n_tokens, splits, SPLITS, WIDTH)
    c31 = _logit(sums, token, norm, scale2, base, 21, n_tokens, splits, SPLITS, WIDTH)
    c32 = _logit(sums, token, norm, scale2, base, 22, n_tokens, splits, SPLITS, WIDTH)
    c33 = _logit(sums, token, norm, scale2, base, 23, n_tokens, splits, SPLITS, WIDTH)
    c00, c01, c02, c03 = _softmax(c00, c01, c02, c03, hc_eps)
    c10, c11, c12, c13 = _softmax(c10, c11, c12, c13, hc_eps)
    c20, c21, c22, c23 = _softmax(c20, c21, c22, c23, hc_eps)
    c30, c31, c32, c33 = _softmax(c30, c31, c32, c33, hc_eps)
    c00, c10, c20, c30 = _scaled(c00, c10, c20, c30, hc_eps)
    c01, c11, c21, c31 = _scaled(c01, c11, c21, c31, hc_eps)
    c02, c12, c22, c32 = _scaled(c02, c12, c22, c32, hc_eps)
    c03, c13, c23, c33 = _scaled(c03, c13, c23, c33, hc_eps)
    for _ in range(ITERS - 1):
        c00, c01, c02, c03 = _scaled(c00, c01, c02, c03, hc_eps)
        c10, c11, c12, c13 = _scaled(c10, c11, c12, c13, hc_eps)
        c20, c21, c22, c23 = _scaled(c20, c21, c22, c23, hc_eps)
        c30, c31, c32, c33 = _scaled(c30, c31, c32, c33, hc_eps)
        c00, c10, c20, c30 = _scaled(c00, c10, c20, c30, hc_eps)
        c01, c11, c21, c31 = _scaled(c01, c11, c21, c31, hc_eps)
        c02, c12, c22, c32 = _scaled(c02, c12, c22, c32, hc_eps)
        c03, c13, c23, c33 = _scaled(c03, c13, c23, c33, hc_eps)
    out = comb_out + token * 16
    tl.store(out, c00, mask=live)
    tl.store(out + 1, c01, mask=live)
    tl.store(out + 2, c02, mask=live)
    tl.store(out + 3, c03, mask=live)
    tl.store(out + 4, c10, mask=live)
    tl.store(out + 5, c11, mask=live)
    tl.store(out + 6, c12, mask=live)
    tl.store(out + 7, c13, mask=live)
    tl.store(out + 8, c20, mask=live)
    tl.store(out + 9, c21, mask=live)
    tl.store(out + 10, c22, mask=live)
    tl.store(out + 11, c23, mask=live)
    tl.store(out + 12, c30, mask=live)
    tl.store(out + 13, c31, mask=live)
    tl.store(out + 14, c32, mask=live)
    tl.store(out + 15, c33, mask=live)


@triton.jit
def _put_input(  # type: ignore[no-untyped-def]
    token, streams, sums, scale, base, norm, out, n_tokens, splits, rms_eps, hc_eps,
    H: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One token's layer input: the gated sum rounded to bf16, then RMSNorm."""
    columns = tl.arange(0, COLUMNS)
    inside = columns < H
    place = streams + token * 4 * H + columns
    v0, v1 = tl.load(place, mask=inside, other=0.0), tl.load(place + H, mask=inside, other=0.0)
    v2, v3 = tl.load(place + 2 * H, mask=inside, other=0.0), tl.load(place + 3 * H, mask=inside, other=0.0)
    total = split_sum(sums, token, n_tokens, splits, SPLITS, WIDTH)
    column = tl.arange(0, WIDTH)
    squares = tl.sum(tl.where(column == ROWS, total, 0.0))
    shift = tl.load(base + column, mask=column < ROWS, other=0.0)
    gates = tl.sigmoid(total * tl.rsqrt(squares / (4 * H) + rms_eps) * tl.load(scale) + shift) + hc_eps
    mixed = tl.sum(tl.where(column == 0, gates, 0.0)) * v0.to(tl.float32)
    mixed += tl.sum(tl.where(column == 1, gates, 0.0)) * v1.to(tl.float32)
    mixed += tl.sum(tl.where(column == 2, gates, 0.0)) * v2.to(tl.float32)
    mixed += tl.sum(tl.where(column == 3, gates, 0.0)) * v3.to(tl.float32)
    x = mixed.to(tl.bfloat16).to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x) / H + rms_eps)
    weight = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + token * H + columns, (x * weight).to(tl.bfloat16), mask=inside)


@triton.jit(do_not_specialize=["n_tokens", "splits", "gate_programs"])
def input_kernel(  # type: ignore[no-untyped-def]
    streams, sums, scale, base, norm, post_out, comb_out, out,
    n_tokens, splits, gate_programs, rms_eps, hc_eps, post_mult,
    H: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    TOKENS: tl.constexpr, ITERS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Layer inputs, a program a token; before them the programs that finish the gates of TOKENS tokens each.

    EARLY: launched before the kernel that writes `streams` and `sums` has ended (programmatic dependent launch).
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
    program = tl.program_id(0).to(tl.int64)
    if program < gate_programs:
        _put_gates(
            program * TOKENS, sums, scale, base, post_out, comb_out, n_tokens, splits, rms_eps, hc_eps, post_mult,
            H, SPLITS, ROWS, WIDTH, TOKENS, ITERS,
        )  # fmt: skip
    else:
        _put_input(
            program - gate_programs, streams, sums, scale, base, norm, out, n_tokens, splits, rms_eps, hc_eps,
            H, COLUMNS, SPLITS, ROWS, WIDTH,
        )  # fmt: skip


__all__ = ["input_kernel", "project", "split_sum"]
