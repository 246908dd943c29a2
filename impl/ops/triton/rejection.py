"""Rejection with residual resampling in Triton: four launches, no host in between.

1. Every logits row in blocks: the greatest entry, its id, and the sum of exponentials; the same of the draft's rows.
2. One program a request: which drafts stand, and how its last token is to be had.
3. The row behind the accepted drafts, scored in fp32 with its noise: the best of each block.
4. The blocks that may hold the row's best, scored again as the reference does (see `sampling`), and the output rows.

Sums are taken in another order than the reference's, so a draft whose acceptance hangs on the last bits of a
probability may be judged otherwise; nothing else differs. Judging a round's drafts jointly is left to the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from impl.ops.rejection import RejectionOutput
from impl.ops.triton.sampling import SLACK, better, gumbel_exact, gumbel_near, noise_words
from impl.ops.workspace import Workspace

TAG_ACCEPT = tl.constexpr(2)
TAG_VERIFY = tl.constexpr(0)
SETTLED, PLAIN, RESIDUAL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
"""How the last token is had: the row's greatest, drawn from p, drawn from max(p - q, 0)."""
VECTORS = ["temperature", "seeds", "positions", "n_drafted", "mapping"]
"""Read a number a request, wherever they begin: another batch must not ask for another compilation."""


@triton.jit
def _begin(EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    """Launched before the kernel in front has ended: the next one may be as well, and this one waits for that end."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def _divided(x, warmth):  # type: ignore[no-untyped-def]
    return tl.div_rn(x, tl.zeros_like(x) + warmth)


@triton.jit
def _exp_sum(x, top, warmth):  # type: ignore[no-untyped-def]
    """Sum of exp((x - top) / warmth); NaN where an entry is NaN or +inf, 0 where all are -inf. By a reciprocal: of an
    entry that counts, the exponent is off by a few units of its last place."""
    turn = 1.4426950408889634 / warmth
    return tl.sum(tl.exp2((x - tl.where(top == -float("inf"), 0.0, top)) * turn), 0)


@triton.jit
def _slot(mapping, request, n_mapped, n_slots, HAS_MAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The request's row of draft logits, read as a pointer is: nothing says whether the values are rows at all."""
    if HAS_MAP:
        row = tl.load(mapping + tl.minimum(request, n_mapped - 1)).to(tl.int64)
        return tl.minimum(tl.maximum(row, 0), n_slots - 1)
    return request


@triton.jit(do_not_specialize=["n_mapped", "n_slots"], do_not_specialize_on_alignment=VECTORS)
def _stats_kernel(  # type: ignore[no-untyped-def]
    target, draft, mapping, temperature, n_drafted, best, best_id, sums, draft_best, draft_sums, width,
    target_stride, target_row, draft_stride, draft_row, n_blocks, n_mapped, n_slots,
    K: tl.constexpr, BLOCK: tl.constexpr, HAS_DRAFT: tl.constexpr, HAS_MAP: tl.constexpr,
    EARLY: tl.constexpr = False,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    request, k, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if k > tl.load(n_drafted + request):
        return
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    warmth = tl.load(temperature + request)
    at = (request * (K + 1) + k) * n_blocks + part
    x = tl.load(target + request * target_stride + k * target_row + column, mask=inside, other=-float("inf"))
    comparable = tl.where(x == x, x, -float("inf"))
    top = tl.max(comparable, 0)
    tl.store(best + at, top)
    tl.store(best_id + at, part * BLOCK + tl.argmax(comparable, 0))
    tl.store(sums + at, _exp_sum(x, top, tl.where(warmth > 0, warmth, 1.0)))
    if HAS_DRAFT:  # noqa: SIM102  (known when compiled; the other is not)
        if (k < K) & (warmth > 0):
            row = _slot(mapping, request, n_mapped, n_slots, HAS_MAP)
            y = tl.load(draft + row * draft_stride + k * draft_row + column, mask=inside, other=-float("inf"))
            y = y.to(tl.float32)
            top = tl.max(tl.where(y == y, y, -float("inf")), 0)
            at = (request * K + k) * n_blocks + part
            tl.store(draft_best + at, tl.div_rn(top, warmth))
            tl.store(draft_sums + at, _exp_sum(y, top, warmth))


@triton.jit
def _log_sum(tops, sums):  # type: ignore[no-untyped-def]
    """log of the sum of exponentials of a row, from its blocks; NaN where the row is not readable."""
    top = tl.max(tops, 0)
    return top + tl.log(tl.sum(sums * tl.exp(tops - top), 0))


@triton.jit
def _log_sums(tops, sums):  # type: ignore[no-untyped-def]
    """`_log_sum` of several rows."""
    top = tl.max(tops, 1)
    return top + tl.log(tl.sum(sums * tl.exp(tops - top[:, None]), 1))


@triton.jit(do_not_specialize=["n_mapped", "n_slots"], do_not_specialize_on_alignment=VECTORS)
def _verdict_kernel(  # type: ignore[no-untyped-def]
    target, drafts, draft, mapping, temperature, seeds, positions, n_drafted, rates, best, best_id, sums, draft_best,
    draft_sums, n_accepted, how, greatest, log_sums, width, target_stride, target_row, drafts_stride, draft_stride,
    draft_row, n_blocks, n_mapped, n_slots, K: tl.constexpr, PADDED_K: tl.constexpr, BLOCKS: tl.constexpr,
    HAS_DRAFT: tl.constexpr, HAS_MAP: tl.constexpr, SYNTHETIC: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    _begin(EARLY)
    request = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCKS)
    inside = part < n_blocks
    temperature_here = tl.load(temperature + request)
    greedy = temperature_here <= 0
    warmth = tl.where(greedy, 1.0, temperature_here)
    limit = tl.load(n_drafted + request)
    slot = request
    if HAS_DRAFT:
        slot = _slot(mapping, request, n_mapped, n_slots, HAS_MAP)
    # All drafts at once: each load of the loop that this stands for would wait for the verdict before it.
    k = tl.arange(0, PADDED_K)
    drafted, judged = k < K, k < tl.minimum(limit, K)
    at = (request * (K + 1) + k)[:, None] * n_blocks + part[None, :]
    read = (k <= tl.minimum(limit, K))[:, None] & inside[None, :]
    tops = tl.load(best + at, mask=read, other=-float("inf"))
    log_sum = _log_sums(_divided(tops, warmth), tl.load(sums + at, mask=read, other=0.0))
    readable = (log_sum == log_sum) & (tl.max(tops, 1) < float("inf"))
    first = tl.load(best_id + (request * (K + 1) + k) * n_blocks + tl.argmax(tops, 1), mask=k <= K, other=0)
    raw = tl.load(drafts + request * drafts_stride + k, mask=drafted, other=0)
    x = tl.minimum(tl.maximum(raw, 0), width - 1)
    valid = judged & (raw == x) & readable
    log_sum_q = tl.zeros_like(log_sum)
    if SYNTHETIC:
        words = noise_words(tl.load(seeds + request), tl.load(positions + request), TAG_ACCEPT, 0, PADDED_K)
        passed = tl.exp(-tl.exp(-gumbel_exact(words).to(tl.float64))) < tl.load(rates + k, mask=drafted, other=0.0)
        if HAS_DRAFT:
            log_sum_q = _draft_sums(draft_best, draft_sums, request, k, part, judged & (greedy == 0), n_blocks, K)
    elif greedy:
        passed = x == first
    else:
        words = noise_words(tl.load(seeds + request), tl.load(positions + request), TAG_ACCEPT, 0, PADDED_K)
        log_u = -tl.exp(-gumbel_exact(words).to(tl.float64))
        log_q = tl.zeros_like(log_sum)
        if HAS_DRAFT:
            log_sum_q = _draft_sums(draft_best, draft_sums, request, k, part, judged, n_blocks, K)
            y = tl.load(draft + slot * draft_stride + k * draft_row + x, mask=judged, other=0.0).to(tl.float32)
            log_q = _divided(y, warmth) - log_sum_q
            valid = valid & (log_sum_q == log_sum_q)
        score = _divided(tl.load(target + request * target_stride + k * target_row + x, mask=judged, other=0.0), warmth)
        passed = (score - log_sum).to(tl.float64) > log_u + log_q
    n_valid = tl.min(tl.where(valid, PADDED_K, k), 0)
    accepted = tl.min(tl.where(valid & passed, PADDED_K, k), 0)

    tl.store(greatest + request, tl.sum(tl.where(k == accepted, first, 0), 0))
    tl.store(n_accepted + request, accepted.to(tl.int64))
    legible = tl.sum(((k == accepted) & readable).to(tl.int32), 0) > 0
    way = tl.where(accepted < n_valid, RESIDUAL, PLAIN)
    tl.store(how + request, tl.where(greedy | (legible == 0), SETTLED, way))
    tl.store(log_sums + 2 * request, tl.sum(tl.where(k == accepted, log_sum, 0.0), 0))
    tl.store(log_sums + 2 * request + 1, tl.sum(tl.where(k == accepted, log_sum_q, 0.0), 0))


@triton.jit
def _draft_sums(draft_best, draft_sums, request, k, part, judged, n_blocks, K: tl.constexpr):  # type: ignore[no-untyped-def]
    at = (request * K + k)[:, None] * n_blocks + part[None, :]
    read = judged[:, None] & (part < n_blocks)[None, :]
    tops = tl.load(draft_best + at, mask=read, other=-float("inf"))
    return _log_sums(tops, tl.load(draft_sums + at, mask=read, other=0.0))


@triton.jit
def _residual_near(log_p, log_q):  # type: ignore[no-untyped-def]
    """log(p - q) in fp32; -inf where q is no less than p, and where nothing says."""
    gap = log_q - log_p
    series = -gap * (1.0 + gap * (0.5 + gap * (0.16666667 + gap * (0.041666668 + gap * 0.008333334))))
    share = tl.where(gap > -0.25, series, 1.0 - tl.exp(gap))
    return tl.where(gap < 0, log_p + tl.log(share), -float("inf"))


@triton.jit
def _residual_exact(log_p, log_q):  # type: ignore[no-untyped-def]
    gap = log_q - log_p
    share = (1.0 - tl.exp(gap.to(tl.float64))).to(tl.float32)
    return tl.where(gap < 0, log_p + tl.log(share.to(tl.float64)).to(tl.float32), -float("inf"))


@triton.jit
def _log_draft(  # type: ignore[no-untyped-def]
    draft, drafts, slot, request, k, column, inside, warmth, log_sum_q, draft_stride, draft_row, drafts_stride,
    HAS_DRAFT: tl.constexpr,
):  # fmt: skip
    """log q of a row's entries; a draft that was not drawn is certain."""
    if HAS_DRAFT:
        y = tl.load(draft + slot * draft_stride + k * draft_row + column, mask=inside, other=-float("inf"))
        return _divided(y.to(tl.float32), warmth) - log_sum_q
    return tl.where(column == tl.load(drafts + request * drafts_stride + k), 0.0, -float("inf"))


@triton.jit(do_not_specialize=["n_mapped", "n_slots"], do_not_specialize_on_alignment=VECTORS)
def _near_kernel(  # type: ignore[no-untyped-def]
    target, drafts, draft, mapping, temperature, seeds, positions, n_accepted, how, log_sums, near, width,
    target_stride, target_row, drafts_stride, draft_stride, draft_row, n_blocks, n_mapped, n_slots,
    BLOCK: tl.constexpr, HAS_DRAFT: tl.constexpr, HAS_MAP: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    _begin(EARLY)
    request, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    way = tl.load(how + request)
    if way == SETTLED:
        return
    k, warmth = tl.load(n_accepted + request), tl.load(temperature + request)
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(target + request * target_stride + k * target_row + column, mask=inside, other=-float("inf"))
    scores = _divided(x, warmth)
    position = tl.load(positions + request) + k
    noise = gumbel_near(noise_words(tl.load(seeds + request), position, TAG_VERIFY, part * BLOCK, BLOCK))
    at = 2 * (request * n_blocks + part)
    tl.store(near + at, tl.max(tl.where(inside, scores + noise, -float("inf")), 0))
    if way == RESIDUAL:
        slot = request
        if HAS_DRAFT:
            slot = _slot(mapping, request, n_mapped, n_slots, HAS_MAP)
        log_q = _log_draft(
            draft, drafts, slot, request, k, column, inside, warmth, tl.load(log_sums + 2 * request + 1),
            draft_stride, draft_row, drafts_stride, HAS_DRAFT,
        )  # fmt: skip
        residual = _residual_near(scores - tl.load(log_sums + 2 * request), log_q)
        tl.store(near + at + 1, tl.max(tl.where(inside, residual + noise, -float("inf")), 0))


@triton.jit(do_not_specialize=["n_mapped", "n_slots"], do_not_specialize_on_alignment=VECTORS)
def _emit_kernel(  # type: ignore[no-untyped-def]
    target, drafts, draft, mapping, temperature, seeds, positions, n_accepted, how, greatest, log_sums, near, tokens,
    n_sampled, width, target_stride, target_row, drafts_stride, draft_stride, draft_row, n_blocks, n_mapped, n_slots,
    K: tl.constexpr, PADDED_K: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, HAS_DRAFT: tl.constexpr,
    HAS_MAP: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    _begin(EARLY)
    request = tl.program_id(0).to(tl.int64)
    way, k = tl.load(how + request), tl.load(n_accepted + request)
    extra = tl.load(greatest + request)
    if way != SETTLED:
        warmth, seed, position = tl.load(temperature + request), tl.load(seeds + request), tl.load(positions + request)
        slot = request
        if HAS_DRAFT:
            slot = _slot(mapping, request, n_mapped, n_slots, HAS_MAP)
        log_sum, log_sum_q = tl.load(log_sums + 2 * request), tl.load(log_sums + 2 * request + 1)
        part = tl.arange(0, BLOCKS)
        at = near + 2 * (request * n_blocks + part)
        bests = tl.load(at, mask=part < n_blocks, other=-float("inf"))
        if way == RESIDUAL:
            residuals = tl.load(at + 1, mask=part < n_blocks, other=-float("inf"))
            # Without any p > q, which only rounding or synthetic rates bring about, p itself is drawn from.
            possible = tl.max(residuals, 0) > -float("inf")
            bests = tl.where(possible, residuals, bests)
            way = tl.where(possible, RESIDUAL, PLAIN)
        top = tl.max(bests, 0)
        limit = top - SLACK - tl.abs(top) * 1e-6
        value, index, seen = -float("inf"), width, 0
        while (tl.max(bests, 0) >= limit) & (seen < n_blocks):
            block = tl.argmax(bests, 0)
            column = block * BLOCK + tl.arange(0, BLOCK)
            inside = column < width
            x = tl.load(target + request * target_stride + k * target_row + column, mask=inside, other=-float("inf"))
            scores = _divided(x, warmth)
            if way == RESIDUAL:
                log_q = _log_draft(
                    draft, drafts, slot, request, k, column, inside, warmth, log_sum_q,
                    draft_stride, draft_row, drafts_stride, HAS_DRAFT,
                )  # fmt: skip
                scores = _residual_exact(scores - log_sum, log_q)
            noise = gumbel_exact(noise_words(seed, position + k, TAG_VERIFY, block * BLOCK, BLOCK))
            scores = tl.where(inside, scores + noise, -float("inf"))
            here, where = tl.max(scores, 0), block * BLOCK + tl.argmax(scores, 0)
            first = better(here, where, value, index)
            value, index = tl.where(first, here, value), tl.where(first, where, index)
            bests = tl.where(part == block, -float("inf"), bests)
            seen += 1
        extra = index
    place = tl.arange(0, PADDED_K)
    draft_ids = tl.load(drafts + request * drafts_stride + place, mask=place < K, other=0)
    row = tl.where(place < k, draft_ids, tl.where(place == k, extra.to(tl.int64), -1))
    tl.store(tokens + request * (K + 1) + place, row, mask=place <= K)
    tl.store(n_sampled + request, k + 1)


def rejection_sample(
    target_logits: Tensor,
    draft_tokens: Tensor,
    draft_logits: Tensor | None,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    n_drafted: Tensor,
    draft_logits_index_mapping: Tensor | None = None,
    synthetic_conditional_rates: Tensor | None = None,
    *,
    workspace: Workspace | None = None,
    block_verification: bool = False,
    all_greedy: bool = False,
    block: int = 4096,
    resample_block: int = 1024,
    warps: int = 8,
    early: bool = False,
) -> RejectionOutput:
    """As `impl.ops.rejection.rejection_sample`; rows are dense along the vocabulary. early: each kernel is launched
    before the one in front has ended (compute capability 9.0 and later).

    Raises ValueError with block verification, which this kernel does not have, and for shapes that do not fit.
    """
    if block_verification:
        raise ValueError("this kernel judges each draft by itself: use the torch backend for block verification")
    n, n_rows, width = target_logits.shape
    k_max = n_rows - 1
    if tuple(draft_tokens.shape) != (n, k_max):
        raise ValueError(f"draft_tokens is {tuple(draft_tokens.shape)}; target_logits asks for {(n, k_max)}")
    dense = (("target_logits", target_logits), ("draft_tokens", draft_tokens), ("draft_logits", draft_logits))
    for name, tensor in dense:
        if tensor is not None and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name} must be dense along its rows, got strides {tensor.stride()}")
    temperature, seeds, positions, n_drafted = (v.contiguous() for v in (temperature, seeds, positions, n_drafted))
    device, mapping = target_logits.device, _dense(draft_logits_index_mapping)
    has_map = mapping is not None and mapping.shape[0] > 0
    has_draft = draft_logits is not None and k_max > 0
    blocks, resample_blocks = triton.cdiv(width, block), triton.cdiv(width, resample_block)
    rows, draft_rows = n * n_rows * blocks, n * k_max * blocks if has_draft else 0
    scratch = torch.empty(2 * (rows + draft_rows + n + n * resample_blocks), dtype=torch.float32, device=device)
    best, sums, draft_best, draft_sums, log_sums, near = scratch.split(
        [rows, rows, draft_rows, draft_rows, 2 * n, 2 * n * resample_blocks]
    )
    best_id = torch.empty(rows, dtype=torch.int32, device=device)
    way, greatest = torch.empty((2, n), dtype=torch.int32, device=device)
    tokens = torch.empty((n, n_rows), dtype=torch.int64, device=device)
    n_sampled, n_accepted = torch.empty((2, n), dtype=torch.int64, device=device)
    output = RejectionOutput(tokens, n_sampled, n_accepted)
    if not n:
        return output
    draft = draft_logits if has_draft and draft_logits is not None else target_logits
    read = mapping if mapping is not None and has_map else n_drafted
    slots = (read.shape[0], draft.shape[0])
    strides = (*target_logits.stride()[:2], draft_tokens.stride(0), *draft.stride()[:2])
    shape = {"HAS_DRAFT": has_draft, "HAS_MAP": has_map, "EARLY": early}
    after = {"launch_pdl": True} if early else {}
    _stats_kernel[(n, n_rows, blocks)](
        target_logits, draft, read, temperature, n_drafted, best, best_id, sums, draft_best, draft_sums, width,
        *strides[:2], *strides[3:], blocks, *slots, K=k_max, BLOCK=block, **shape, num_warps=warps,
    )  # fmt: skip
    rates = _dense(synthetic_conditional_rates)
    rates = temperature if rates is None else rates
    inputs = (target_logits, draft_tokens, draft, read, temperature, seeds, positions)
    padded = max(4, triton.next_power_of_2(n_rows))
    _verdict_kernel[(n,)](
        *inputs, n_drafted, rates, best, best_id, sums, draft_best, draft_sums, n_accepted, way, greatest, log_sums,
        width, *strides, blocks, *slots, K=k_max, PADDED_K=padded, BLOCKS=triton.next_power_of_2(blocks), **shape,
        SYNTHETIC=synthetic_conditional_rates is not None, num_warps=4, **after,
    )  # fmt: skip
    if not all_greedy:
        _near_kernel[(n, resample_blocks)](
            *inputs, n_accepted, way, log_sums, near, width, *strides, resample_blocks, *slots, BLOCK=resample_block,
            **shape, num_warps=4, **after,
        )  # fmt: skip
    _emit_kernel[(n,)](
        *inputs, n_accepted, way, greatest, log_sums, near, tokens, n_sampled, width, *strides, resample_blocks,
        *slots, K=k_max, PADDED_K=padded, BLOCK=resample_block, BLOCKS=triton.next_power_of_2(resample_blocks),
        **shape, num_warps=4, **after,
    )  # fmt: skip
    return output


def _dense(vector: Tensor | None) -> Tensor | None:
    """A kernel goes by a pointer: a column of a wider table is copied first."""
    return None if vector is None else vector.contiguous()


def _rejection(
    *, target_logits: Tensor, draft_tokens: Tensor, draft_logits: Tensor | None, temperature: Tensor, seeds: Tensor,
    positions: Tensor, n_drafted: Tensor, draft_logits_index_mapping: Tensor | None = None,
    synthetic_conditional_rates: Tensor | None = None, workspace: Workspace | None = None,
    block_verification: bool = False, all_greedy: bool = False, **tuning: Any,
) -> RejectionOutput:  # fmt: skip
    """As `rejection_sample`, by keyword alone: its optional arguments stand side by side."""
    return rejection_sample(
        target_logits=target_logits, draft_tokens=draft_tokens, draft_logits=draft_logits, temperature=temperature,
        seeds=seeds, positions=positions, n_drafted=n_drafted, draft_logits_index_mapping=draft_logits_index_mapping,
        synthetic_conditional_rates=synthetic_conditional_rates, workspace=workspace,
        block_verification=block_verification, all_greedy=all_greedy, **tuning,
    )  # fmt: skip


OPERATIONS: Mapping[str, Callable[..., Any]] = {"rejection": _rejection}
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "rejection": [
        {"block": b, "resample_block": r, "warps": w, "early": early}
        for b, r, w, early in (
            (4096, 1024, 8, False), (4096, 1024, 8, True), (4096, 256, 8, True), (4096, 512, 8, True),
            (2048, 256, 4, True), (8192, 256, 8, True), (8192, 512, 16, True),
        )
    ],
}  # fmt: skip

__all__ = ["OPERATIONS", "VARIANTS", "rejection_sample"]
