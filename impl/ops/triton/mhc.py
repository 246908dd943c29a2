"""mHC in Triton: POST, PRE, the seam and the fused heads, by programs that own the columns they read and overwrite.

The seam is two kernels. In the first, a program makes the new streams of some tokens at some columns, writes them and
sums their share of fn z and of the squares; in the second, a program mixes one token's streams by its gates, and the
first few programs do POST gates and Sinkhorn for the rest. No program reads what another one writes within a kernel, so
outputs may alias inputs at any number of tokens, small ones too. Issued in chunks of tokens, the second kernel finds
its streams in the L2 cache. Streams are rounded to bf16 before anything reads them, in the rounding order of vLLM's own
POST: t = a0*b0; fma(c, d, t); fma(a1, b1, .); fma(a2, b2, .); fma(a3, b3, .).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from impl.ops.mhc import HeadWeights, SeamOutput, SeamWeights
from impl.ops.places import check_outputs, dense_rows
from impl.ops.triton.mhc_gates import input_kernel, project, split_sum

STREAMS = 4
INTERPRETED = triton.knobs.runtime.interpret
OPERAND = tl.float32 if INTERPRETED else tl.bfloat16
"""Of the products; both hold the streams and the two terms of fn exactly. The interpreter multiplies bf16's bits."""


@triton.jit
def _stream(gate, y, c0, r0, c1, r1, c2, r2, c3, r3):  # type: ignore[no-untyped-def]
    """One new stream of a tile, rounded to bf16 and back."""
    value = tl.fma(tl.broadcast_to(gate, y.shape), y, c0 * r0)
    value = tl.fma(tl.broadcast_to(c1, y.shape), r1, value)
    value = tl.fma(tl.broadcast_to(c2, y.shape), r2, value)
    value = tl.fma(tl.broadcast_to(c3, y.shape), r3, value)
    return value.to(tl.bfloat16).to(tl.float32)


@triton.jit
def _old(  # type: ignore[no-untyped-def]
    residual, token, columns, inside, stream: tl.constexpr, H: tl.constexpr, KEEP: tl.constexpr
):
    place = residual + (token * 4 + stream) * H + columns
    return tl.load(place, mask=inside, other=0.0, eviction_policy=KEEP).to(tl.float32)


@triton.jit
def streams(  # type: ignore[no-untyped-def]
    residual, y, post, comb, row, columns, here, inside, H: tl.constexpr, POST: tl.constexpr, KEEP: tl.constexpr
):
    """The four streams of a tile, fp32 [tokens, columns]: new ones by POST, or those that are there.

    row: int64 [tokens]; columns: [1, columns]; here: [tokens], which tokens exist; inside: [tokens, 1] the same, and
    where the last tile is not whole [tokens, columns]. KEEP: an eviction policy of what is read once.
    """
    token = row[:, None]
    r0, r1 = _old(residual, token, columns, inside, 0, H, KEEP), _old(residual, token, columns, inside, 1, H, KEEP)
    r2, r3 = _old(residual, token, columns, inside, 2, H, KEEP), _old(residual, token, columns, inside, 3, H, KEEP)
    if POST:
        d = tl.load(y + token * H + columns, mask=inside, other=0.0, eviction_policy=KEEP).to(tl.float32)
        # A gate is loaded once a token and spread after that: loaded where it is used, it would be once an element.
        g = post + row * 4
        c = comb + row * 16
        v0 = _stream(_gate(g, here), d, _gate(c, here), r0, _gate(c + 4, here), r1, _gate(c + 8, here), r2, _gate(c + 12, here), r3)  # fmt: skip  # noqa: E501
        v1 = _stream(_gate(g + 1, here), d, _gate(c + 1, here), r0, _gate(c + 5, here), r1, _gate(c + 9, here), r2, _gate(c + 13, here), r3)  # fmt: skip  # noqa: E501
        v2 = _stream(_gate(g + 2, here), d, _gate(c + 2, here), r0, _gate(c + 6, here), r1, _gate(c + 10, here), r2, _gate(c + 14, here), r3)  # fmt: skip  # noqa: E501
        v3 = _stream(_gate(g + 3, here), d, _gate(c + 3, here), r0, _gate(c + 7, here), r1, _gate(c + 11, here), r2, _gate(c + 15, here), r3)  # fmt: skip  # noqa: E501
        return v0, v1, v2, v3
    else:
        return r0, r1, r2, r3


@triton.jit
def _gate(pointer, here):  # type: ignore[no-untyped-def]
    return tl.load(pointer, mask=here, other=0.0)[:, None]


@triton.jit
def _put_streams(target, token, columns, inside, v0, v1, v2, v3, H: tl.constexpr):  # type: ignore[no-untyped-def]
    place = target + token * 4 * H + columns
    tl.store(place, v0.to(tl.bfloat16), mask=inside)
    tl.store(place + H, v1.to(tl.bfloat16), mask=inside)
    tl.store(place + 2 * H, v2.to(tl.bfloat16), mask=inside)
    tl.store(place + 3 * H, v3.to(tl.bfloat16), mask=inside)


@triton.jit(do_not_specialize=["n_tokens"])
def _post_kernel(  # type: ignore[no-untyped-def]
    residual, y, post, comb, out, out_row, n_tokens,
    H: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, MEAN: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """POST of a tile into `out`: the streams, or their mean, whose rows are `out_row` apart. KEEP as in `streams`."""
    row = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    here = row < n_tokens
    token, live = row[:, None], here[:, None]
    if H % COLUMNS == 0:  # noqa: SIM108  a branch is taken while compiling
        inside = live
    else:
        inside = live & (columns < H)
    v0, v1, v2, v3 = streams(residual, y, post, comb, row, columns, here, inside, H, True, KEEP)
    if MEAN:
        tl.store(out + token * out_row + columns, ((v0 + v1 + v2 + v3) * 0.25).to(tl.bfloat16), mask=inside)
    else:
        _put_streams(out, token, columns, inside, v0, v1, v2, v3, H)


@triton.jit(do_not_specialize=["n_tokens"])
def _sums_kernel(  # type: ignore[no-untyped-def]
    residual, y, post, comb, fn, new, mean, mean_row, sums, n_tokens,
    H: tl.constexpr, TOKENS: tl.constexpr, COLUMNS: tl.constexpr, SPAN: tl.constexpr, ROWS: tl.constexpr,
    WIDTH: tl.constexpr, POST: tl.constexpr, STORE: tl.constexpr, MEAN: tl.constexpr, OPERAND: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One span of columns of a tile of tokens: streams written, their share of fn z summed; squares in column ROWS.

    EARLY: the next kernel may be launched now, and waits for the end of this one.
    """
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    first, split = tl.program_id(0), tl.program_id(1)
    row = first.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    here = row < n_tokens
    token, live = row[:, None], here[:, None]
    products = tl.zeros((TOKENS, WIDTH), tl.float32)
    squares = tl.zeros((TOKENS, COLUMNS), tl.float32)
    for start in range(0, SPAN, COLUMNS):
        columns = split * SPAN + start + tl.arange(0, COLUMNS)
        inside = live & (columns[None, :] < H)
        v0, v1, v2, v3 = streams(residual, y, post, comb, row, columns[None, :], here, inside, H, POST, "")
        if STORE:
            _put_streams(new, token, columns[None, :], inside, v0, v1, v2, v3, H)
        if MEAN:
            place = mean + token * mean_row + columns[None, :]
            tl.store(place, ((v0 + v1 + v2 + v3) * 0.25).to(tl.bfloat16), mask=inside)
        squares += v0 * v0 + v1 * v1 + v2 * v2 + v3 * v3
        products = project(products, v0, fn, columns, 0, H, ROWS, WIDTH, OPERAND)
        products = project(products, v1, fn, columns, 1, H, ROWS, WIDTH, OPERAND)
        products = project(products, v2, fn, columns, 2, H, ROWS, WIDTH, OPERAND)
        products = project(products, v3, fn, columns, 3, H, ROWS, WIDTH, OPERAND)
    column = tl.arange(0, WIDTH)[None, :]
    products = tl.where(column == ROWS, tl.sum(squares, 1)[:, None], products)
    tl.store(sums + (split * n_tokens + token) * WIDTH + column, products, mask=live)


@triton.jit(do_not_specialize=["n_tokens", "splits"])
def _head_kernel(  # type: ignore[no-untyped-def]
    residual, y, post, comb, sums, scale, base, out, out_row, n_tokens, splits, rms_eps, hc_eps,
    H: tl.constexpr, COLUMNS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The gated sum of one token at some columns; its streams are made again. EARLY as in `input_kernel`."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    total = split_sum(sums, token, n_tokens, splits, SPLITS, WIDTH)
    column = tl.arange(0, WIDTH)
    squares = tl.sum(tl.where(column == ROWS, total, 0.0))
    norm = tl.rsqrt(squares / (4 * H) + rms_eps) * tl.load(scale)
    shift = tl.load(base + column, mask=column < ROWS, other=0.0)
    gates = tl.sigmoid(total * norm + shift) + hc_eps
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row = token + tl.zeros((1,), tl.int64)
    here = row < n_tokens
    inside = here[:, None] & (columns < H)
    v0, v1, v2, v3 = streams(residual, y, post, comb, row, columns, here, inside, H, True, "")
    mixed = tl.sum(tl.where(column == 0, gates, 0.0)) * v0
    mixed += tl.sum(tl.where(column == 1, gates, 0.0)) * v1
    mixed += tl.sum(tl.where(column == 2, gates, 0.0)) * v2
    mixed += tl.sum(tl.where(column == 3, gates, 0.0)) * v3
    tl.store(out + row[:, None] * out_row + columns, mixed.to(tl.bfloat16), mask=inside)


def seam(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, weights: SeamWeights, *,
    residual_out: Tensor | None = None, input_out: Tensor | None = None, **tuning: Any,
) -> SeamOutput:  # fmt: skip
    """As `impl.ops.mhc.seam`; `residual_out` may be `residual` and `input_out` may be `y` at any number of tokens.

    tuning: `tokens`, `columns` (of a program's tile), `span` (columns it sums over), `warps`, `stages`, `mix_warps`,
    `chunk` (tokens from one kernel to the next; 0: all) and `early` (the second is launched before the first ends).
    """
    new = torch.empty_like(residual) if residual_out is None else residual_out
    layer_input = torch.empty_like(y) if input_out is None else input_out
    return _sums_and_inputs(residual, y, post, comb, weights, new, layer_input, **tuning)


def pre(residual: Tensor, weights: SeamWeights, **tuning: Any) -> SeamOutput:
    """As `impl.ops.mhc.pre`; tuning as of `seam`."""
    n, _, hidden = residual.shape
    return _sums_and_inputs(residual, None, None, None, weights, None, residual.new_empty(n, hidden), **tuning)


def _sums_and_inputs(
    residual: Tensor, y: Tensor | None, post: Tensor | None, comb: Tensor | None, weights: SeamWeights,
    new: Tensor | None, layer_input: Tensor, *,
    tokens: int = 0, columns: int = 0, span: int = 0, warps: int = 4, stages: int = 2, mix_warps: int = 4,
    chunk: int = 0, early: bool = False,
) -> SeamOutput:  # fmt: skip
    n, hc, hidden = residual.shape
    reads = {"y": y, "post": post, "comb": comb, "fn": weights.fn}
    _check(
        residual, reads, {"residual_out": new, "input_out": layer_input}, {"residual_out": "residual", "input_out": "y"}
    )
    new_post = residual.new_empty(n, hc, dtype=torch.float32)
    new_comb = residual.new_empty(n, hc, hc, dtype=torch.float32)
    tokens, columns, span = _tile(n, hidden, tokens, columns, span)
    chunk = chunk or max(n, 1)
    rows, splits = weights.fn.shape[0], triton.cdiv(hidden, span)
    width = triton.next_power_of_2(rows + 1)
    sums = residual.new_empty(splits, min(chunk, n), width, dtype=torch.float32)
    streams_now = residual if new is None else new
    gate_tokens = max(16, 256 // triton.next_power_of_2(splits))
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        m = part.stop - part.start
        old = (residual[part], *(residual if t is None else t[part] for t in (y, post, comb)))
        _sums_kernel[(triton.cdiv(m, tokens), splits)](
            *old, weights.fn, streams_now[part], residual, hidden, sums, m,
            H=hidden, TOKENS=tokens, COLUMNS=columns, SPAN=span, ROWS=rows, WIDTH=width,
            POST=y is not None, STORE=new is not None, MEAN=False, OPERAND=OPERAND, EARLY=early,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        gate_programs = triton.cdiv(m, gate_tokens)
        input_kernel[(gate_programs + m,)](
            streams_now[part], sums, weights.scale, weights.base, weights.norm,
            new_post[part], new_comb[part], layer_input[part],
            m, splits, gate_programs, weights.rms_eps, weights.hc_eps, weights.post_mult,
            H=hidden, COLUMNS=triton.next_power_of_2(hidden), SPLITS=triton.next_power_of_2(splits), ROWS=rows,
            WIDTH=width, TOKENS=gate_tokens, ITERS=weights.sinkhorn_iters, EARLY=early, num_warps=mix_warps,
            **_launch(early),
        )  # fmt: skip
    return SeamOutput(streams_now, new_post, new_comb, layer_input)


def post_streams(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, *,
    out: Tensor | None = None, tokens: int = 1, columns: int = 1024, warps: int = 4, keep: str = "",
) -> Tensor:  # fmt: skip
    """As `impl.ops.mhc.post_streams`; `out` may be `residual`. keep: an eviction policy of what is read."""
    new = torch.empty_like(residual) if out is None else out
    _post(residual, y, post, comb, new, False, tokens, columns, warps, keep)
    return new


def post_mean(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, out: Tensor, *,
    tokens: int = 1, columns: int = 1024, warps: int = 4, keep: str = "",
) -> None:  # fmt: skip
    """As `impl.ops.mhc.post_mean`; `out` may be `y`, and its rows may lie apart. keep: as of `post_streams`."""
    _post(residual, y, post, comb, out, True, tokens, columns, warps, keep)


def _post(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, out: Tensor, mean: bool,
    tokens: int, columns: int, warps: int, keep: str,
) -> None:  # fmt: skip
    n, _, hidden = residual.shape
    reads = {"y": y, "post": post, "comb": comb}
    _check(residual, reads, {"mean" if mean else "streams": out}, {"mean": "y", "streams": "residual"})
    columns = min(columns, triton.next_power_of_2(hidden))
    if n:
        _post_kernel[(triton.cdiv(n, tokens), triton.cdiv(hidden, columns))](
            residual, y, post, comb, out, out.stride(0), n,
            H=hidden, TOKENS=tokens, COLUMNS=columns, MEAN=mean, KEEP=keep, num_warps=warps,
        )  # fmt: skip


def post_head(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, weights: HeadWeights, out: Tensor,
    mean: Tensor | None = None, *,
    tokens: int = 0, columns: int = 0, span: int = 0, warps: int = 4, stages: int = 2, mix_columns: int = 1024,
    mix_warps: int = 4, chunk: int = 0, early: bool = False,
) -> None:  # fmt: skip
    """As `impl.ops.mhc.post_head`; `out` may be `y`. Reads the streams twice, the second time from L2 in small chunks.

    Rows of `out` and `mean` may lie apart. Raises ValueError where `mean` is `y`: the second kernel reads `y` again.
    """
    n, _, hidden = residual.shape
    reads = {"y": y, "post": post, "comb": comb, "fn": weights.fn}
    _check(residual, reads, {"out": out, "mean": mean}, {"out": "y"})
    tokens, columns, span = _tile(n, hidden, tokens, columns, span)
    chunk = chunk or max(n, 1)
    rows, splits = weights.fn.shape[0], triton.cdiv(hidden, span)
    width = max(16, triton.next_power_of_2(rows + 1))
    sums = residual.new_empty(splits, min(chunk, n), width, dtype=torch.float32)
    mix_columns = min(mix_columns, triton.next_power_of_2(hidden))
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        m = part.stop - part.start
        old = (residual[part], y[part], post[part], comb[part])
        into = (residual, hidden) if mean is None else (mean[part], mean.stride(0))
        _sums_kernel[(triton.cdiv(m, tokens), splits)](
            *old, weights.fn, residual, *into, sums, m,
            H=hidden, TOKENS=tokens, COLUMNS=columns, SPAN=span, ROWS=rows, WIDTH=width,
            POST=True, STORE=False, MEAN=mean is not None, OPERAND=OPERAND, EARLY=early,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        _head_kernel[(m, triton.cdiv(hidden, mix_columns))](
            *old, sums, weights.scale, weights.base, out[part], out.stride(0),
            m, splits, weights.rms_eps, weights.hc_eps,
            H=hidden, COLUMNS=mix_columns, SPLITS=triton.next_power_of_2(splits), ROWS=rows, WIDTH=width,
            EARLY=early, num_warps=mix_warps, **_launch(early),
        )  # fmt: skip


def _launch(early: bool) -> dict[str, bool]:
    return {"launch_pdl": True} if early else {}


def _tile(n: int, hidden: int, tokens: int, columns: int, span: int) -> tuple[int, int, int]:
    """Tokens and columns of a program's tile and the columns it goes over: many short spans where tokens are few."""
    few = n <= 64
    tokens = tokens or (16 if few else 32)
    span = min(span or (64 if few else 1024), triton.next_power_of_2(hidden))
    return tokens, min(columns or 32, span), span


def _check(
    residual: Tensor, reads: Mapping[str, Tensor | None], outputs: Mapping[str, Tensor | None], may: Mapping[str, str]
) -> None:
    """What a kernel takes for granted; `may`: the input that an output may be. Raises ValueError with one line."""
    n, streams, hidden = residual.shape
    if streams != STREAMS:
        raise ValueError(f"these kernels mix {STREAMS} streams, got {streams}")
    inputs = {"residual": residual, **reads}
    for name, tensor in inputs.items():
        if tensor is not None and not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()} for {tuple(tensor.shape)}")
    for name, out in outputs.items():
        if out is None:
            continue
        shape = residual.shape if name in ("streams", "residual_out") else (n, hidden)
        if out.shape != shape or out.dtype != residual.dtype or out.device != residual.device:
            raise ValueError(
                f"{name} must be {residual.dtype} {tuple(shape)} on {residual.device}, got {out.dtype} "
                f"{tuple(out.shape)} on {out.device}"
            )
        if not (dense_rows(out) if name in ROWS_APART else out.is_contiguous()):
            raise ValueError(
                f"{name} must be dense{' along its rows' if name in ROWS_APART else ''}, got strides {out.stride()}"
            )
    check_outputs(outputs, inputs, may)


ROWS_APART = ("mean", "out")
"""Outputs whose rows need not lie behind each other."""
OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "mhc_pre": pre,
    "mhc_post": post_streams,
    "mhc_seam": seam,
    "mhc_post_mean": post_mean,
    "mhc_post_head": post_head,
    "mhc_post_mean_head": post_head,
}
_TILES: list[dict[str, Any]] = [
    {"tokens": t, "columns": c, "warps": w}
    for t, c, w in (
        (1, 1024, 4), (2, 512, 4), (1, 512, 2), (2, 256, 2), (4, 256, 4), (2, 1024, 8), (4, 512, 8), (1, 256, 1),
    )
]  # fmt: skip
_TILES += [{**_TILES[i], "keep": "evict_first"} for i in (0, 1, 3)]
_LARGE: list[dict[str, Any]] = [
    {"tokens": t, "columns": c, "span": span, "warps": w, "stages": stages}
    for t, c, span, w, stages in (
        (32, 32, 1024, 4, 2), (32, 32, 1024, 8, 3), (64, 32, 1024, 8, 2), (16, 32, 1024, 4, 2), (32, 32, 512, 4, 1),
    )
]  # fmt: skip
_SMALL: list[dict[str, Any]] = [
    {"tokens": 16, "columns": c, "span": span, "warps": w, "stages": stages, "early": early}
    for c, span, w, stages, early in (
        (32, 64, 4, 2, True), (32, 32, 4, 1, True), (32, 32, 4, 1, False), (32, 128, 4, 2, True), (64, 64, 8, 1, True),
    )
]  # fmt: skip
_CHUNKS: list[dict[str, Any]] = [{**_LARGE[0], "chunk": chunk} for chunk in (1024, 2048)]
_HEAD = [*_LARGE[:2], *_CHUNKS[:1], {**_LARGE[0], "early": True}, *_SMALL[:2]]
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "mhc_post": _TILES,
    "mhc_seam": [
        *_LARGE, *_CHUNKS, {**_LARGE[0], "mix_warps": 8}, {**_LARGE[0], "early": True},
        {**_CHUNKS[0], "early": True}, *_SMALL,
    ],
    "mhc_post_mean": _TILES,
    "mhc_post_head": _HEAD,
    "mhc_post_mean_head": _HEAD,
    "mhc_pre": [*_LARGE[:2], *_SMALL[:2]],
}  # fmt: skip

__all__ = ["OPERATIONS", "VARIANTS", "post_head", "post_mean", "post_streams", "pre", "seam"]
