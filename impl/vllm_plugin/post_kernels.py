"""Triton kernels of `mhc_final_fused`: POST fused with the mean over streams, or with the head.

Imported only where one is about to run: this is the plugin's one module that needs Triton. Streams are rounded to bf16
before anything reads them, in the rounding order of vLLM's own POST (h200.md): t = a0*b0; fma(c, d, t); fma(a1, b1, .);
fma(a2, b2, .); fma(a3, b3, .); so the mean is bitwise. The head sums its projection in another order than vLLM's kernel
and is within rounding of it.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

STREAMS = 4
MEAN_COLUMNS = 1024
HEAD_COLUMNS = 1024


@triton.jit
def _stream(gate, y, c0, r0, c1, r1, c2, r2, c3, r3):  # type: ignore[no-untyped-def]
    """One new stream of a tile, rounded to bf16 and back."""
    value = tl.fma(tl.broadcast_to(gate, y.shape), y, c0 * r0)
    value = tl.fma(tl.broadcast_to(c1, y.shape), r1, value)
    value = tl.fma(tl.broadcast_to(c2, y.shape), r2, value)
    value = tl.fma(tl.broadcast_to(c3, y.shape), r3, value)
    return value.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _streams(x, residual, post, comb, token, columns, H: tl.constexpr):  # type: ignore[no-untyped-def]
    """The four new streams of one token at `columns`."""
    y = tl.load(x + token * H + columns).to(tl.float32)
    r0 = tl.load(residual + (token * 4 + 0) * H + columns).to(tl.float32)
    r1 = tl.load(residual + (token * 4 + 1) * H + columns).to(tl.float32)
    r2 = tl.load(residual + (token * 4 + 2) * H + columns).to(tl.float32)
    r3 = tl.load(residual + (token * 4 + 3) * H + columns).to(tl.float32)
    g = post + token * 4
    c = comb + token * 16
    v0 = _stream(tl.load(g), y, tl.load(c), r0, tl.load(c + 4), r1, tl.load(c + 8), r2, tl.load(c + 12), r3)
    v1 = _stream(tl.load(g + 1), y, tl.load(c + 1), r0, tl.load(c + 5), r1, tl.load(c + 9), r2, tl.load(c + 13), r3)
    v2 = _stream(tl.load(g + 2), y, tl.load(c + 2), r0, tl.load(c + 6), r1, tl.load(c + 10), r2, tl.load(c + 14), r3)
    v3 = _stream(tl.load(g + 3), y, tl.load(c + 3), r0, tl.load(c + 7), r1, tl.load(c + 11), r2, tl.load(c + 15), r3)
    return v0, v1, v2, v3


@triton.jit
def _mean_kernel(x, residual, post, comb, out, H: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    v0, v1, v2, v3 = _streams(x, residual, post, comb, token, columns, H)
    tl.store(out + token * H + columns, ((v0 + v1 + v2 + v3) * 0.25).to(tl.bfloat16))


@triton.jit
def _head_kernel(  # type: ignore[no-untyped-def]
    x, residual, post, comb, fn, scale, base, out, rms_eps, hc_eps, H: tl.constexpr, COLUMNS: tl.constexpr
):
    """One token: gates from all streams, then the gated sum. Reads its streams twice; writes them never."""
    token = tl.program_id(0).to(tl.int64)
    squares = tl.zeros((COLUMNS,), tl.float32)
    s0 = tl.zeros((COLUMNS,), tl.float32)
    s1 = tl.zeros((COLUMNS,), tl.float32)
    s2 = tl.zeros((COLUMNS,), tl.float32)
    s3 = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, H, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        v0, v1, v2, v3 = _streams(x, residual, post, comb, token, columns, H)
        squares += v0 * v0 + v1 * v1 + v2 * v2 + v3 * v3
        f = fn + columns
        s0 += _dot4(f, v0, v1, v2, v3, H)
        s1 += _dot4(f + 4 * H, v0, v1, v2, v3, H)
        s2 += _dot4(f + 8 * H, v0, v1, v2, v3, H)
        s3 += _dot4(f + 12 * H, v0, v1, v2, v3, H)
    norm = tl.load(scale) / tl.sqrt(tl.sum(squares) / (4 * H) + rms_eps)
    p0 = tl.sigmoid(tl.sum(s0) * norm + tl.load(base)) + hc_eps
    p1 = tl.sigmoid(tl.sum(s1) * norm + tl.load(base + 1)) + hc_eps
    p2 = tl.sigmoid(tl.sum(s2) * norm + tl.load(base + 2)) + hc_eps
    p3 = tl.sigmoid(tl.sum(s3) * norm + tl.load(base + 3)) + hc_eps
    for start in range(0, H, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        v0, v1, v2, v3 = _streams(x, residual, post, comb, token, columns, H)
        tl.store(out + token * H + columns, (p0 * v0 + p1 * v1 + p2 * v2 + p3 * v3).to(tl.bfloat16))


@triton.jit
def _dot4(f, v0, v1, v2, v3, H: tl.constexpr):  # type: ignore[no-untyped-def]
    return v0 * tl.load(f) + v1 * tl.load(f + H) + v2 * tl.load(f + 2 * H) + v3 * tl.load(f + 3 * H)


def post_mean(x: Any, residual: Any, post: Any, comb: Any) -> Any:
    """bf16 [N, H]: the mean over the new streams. x: bf16 [N, H]; residual: bf16 [N, 4, H]; post: fp32 [N, 4] or
    [N, 4, 1]; comb: fp32 [N, 4, 4], first index = source. All contiguous; H a multiple of MEAN_COLUMNS."""
    n_tokens, hidden = x.shape
    out = x.new_empty(n_tokens, hidden)
    if n_tokens:
        _mean_kernel[(n_tokens, hidden // MEAN_COLUMNS)](x, residual, post, comb, out, hidden, MEAN_COLUMNS)
    return out


def post_head(
    x: Any, residual: Any, post: Any, comb: Any, fn: Any, scale: Any, base: Any, rms_eps: float, hc_eps: float
) -> Any:
    """bf16 [N, H]: the head over the new streams. fn: fp32 [4, 4 * H]; scale: fp32 [1]; base: fp32 [4]."""
    n_tokens, hidden = x.shape
    out = x.new_empty(n_tokens, hidden)
    if n_tokens:
        _head_kernel[(n_tokens,)](x, residual, post, comb, fn, scale, base, out, rms_eps, hc_eps, hidden, HEAD_COLUMNS)
    return out


def fits(x: Any, residual: Any, post: Any, comb: Any) -> str:
    """Why the kernels cannot take these tensors; empty where they can."""
    if residual.shape[-2] != STREAMS or x.shape[-1] % HEAD_COLUMNS:
        return f"the kernels take {STREAMS} streams of a multiple of {HEAD_COLUMNS}, got {tuple(residual.shape)}"
    if not all(tensor.is_contiguous() for tensor in (x, residual, post, comb)):
        return "an input is not contiguous"
    return ""


__all__ = ["fits", "post_head", "post_mean"]
