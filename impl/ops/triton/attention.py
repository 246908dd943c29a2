"""Attention over packed states in Triton: gathered, decoded, weighed and turned back in one launch.

A program takes one token and up to 16 of its heads, and all entries the token reads at once: softmax needs no second
pass. States are bf16 values, so their products with bf16 queries are exact on tensor cores; the fp32 weights are taken
apart as in `linear`. A token's result depends on its own row and entries only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from impl.ops.packed_kv import Packing, StateLayout
from impl.ops.triton.indexer import e4m3
from impl.ops.triton.linear import OPERAND, parts_of


@triton.jit
def _states(  # type: ignore[no-untyped-def]
    slots, at, inside, pages, page_bytes, scales_at, PER_PAGE: tl.constexpr, D: tl.constexpr, NOPE: tl.constexpr,
    GROUP: tl.constexpr, DATA_BYTES: tl.constexpr, SCALE_BYTES: tl.constexpr,
):  # fmt: skip
    """fp32 [entries, D] of the states at slots[at]; zeros where not inside."""
    slot = tl.load(slots + at, mask=inside, other=0)
    block = slot // PER_PAGE
    entry = slot - block * PER_PAGE
    page = pages + block * page_bytes
    data = (page + entry * DATA_BYTES)[:, None]
    column = tl.arange(0, D)[None, :]
    packed = inside[:, None] & (column < NOPE)
    codes = tl.load(data + column, mask=packed, other=0)
    exponent = tl.load((page + scales_at + entry * SCALE_BYTES)[:, None] + column // GROUP, mask=packed, other=0)
    scale = ((exponent.to(tl.int32) + 8) << 23).to(tl.float32, bitcast=True)
    rope = (data + NOPE).to(tl.pointer_type(tl.bfloat16)) + (column - NOPE)
    whole = tl.load(rope, mask=inside[:, None] & (column >= NOPE), other=0.0).to(tl.float32)
    return tl.where(packed, e4m3(codes) * scale, whole)


@triton.jit
def _attend_kernel(  # type: ignore[no-untyped-def]
    q, window_slots, entry_slots, hidden, sink, positions, table, window_pages, entry_pages, out,
    heads, q_stride, hidden_stride, window_bytes, entry_bytes, window_scales, entry_scales, scaling,
    WINDOW: tl.constexpr, SELECTED: tl.constexpr, ENTRIES: tl.constexpr, WINDOW_PAGE: tl.constexpr,
    ENTRY_PAGE: tl.constexpr, D: tl.constexpr, NOPE: tl.constexpr, GROUP: tl.constexpr, DATA_BYTES: tl.constexpr,
    SCALE_BYTES: tl.constexpr, PAIRS: tl.constexpr, OPERAND: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * 16 + tl.arange(0, 16)
    here = (head < heads)[:, None]
    channel = tl.arange(0, D)
    entry = tl.arange(0, ENTRIES)
    seen = tl.load(hidden + token * hidden_stride + entry, mask=entry < WINDOW + SELECTED, other=1) == 0
    states = _states(
        window_slots, token * WINDOW + entry, seen & (entry < WINDOW), window_pages, window_bytes, window_scales,
        WINDOW_PAGE, D, NOPE, GROUP, DATA_BYTES, SCALE_BYTES,
    )  # fmt: skip
    if SELECTED:
        states += _states(
            entry_slots, token * SELECTED + entry - WINDOW, seen & (entry >= WINDOW), entry_pages, entry_bytes,
            entry_scales, ENTRY_PAGE, D, NOPE, GROUP, DATA_BYTES, SCALE_BYTES,
        )  # fmt: skip
    value = states.to(tl.bfloat16).to(OPERAND)
    query = tl.load(q + token * q_stride + head[:, None] * D + channel[None, :], mask=here, other=0.0)
    logits = tl.dot(query.to(OPERAND), tl.trans(value)) * scaling
    logits = tl.where(seen[None, :], logits, float("-inf"))
    bottom = tl.load(sink + head, mask=head < heads, other=0.0)
    top = tl.maximum(tl.max(logits, 1), bottom)
    weight = tl.exp(logits - top[:, None])
    weight = weight / (tl.sum(weight, 1) + tl.exp(bottom - top))[:, None]
    w0, w1, w2 = parts_of(weight, OPERAND)
    o = tl.dot(w2, value) + tl.dot(w1, value) + tl.dot(w0, value)

    # The inverse rotation of the last 2 * PAIRS values.
    pair = tl.arange(0, D // 2)[None, :] - (D // 2 - PAIRS)
    turns = pair >= 0
    row = table + tl.load(positions + token) * (2 * PAIRS) + 2 * pair
    cos, sin = tl.load(row, mask=turns, other=1.0), tl.load(row + 1, mask=turns, other=0.0)
    even, odd = tl.split(tl.reshape(o, (16, D // 2, 2)))
    back = tl.reshape(tl.join(even * cos + odd * sin, odd * cos - even * sin), (16, D))
    place = out + (token * heads + head[:, None]) * D + channel[None, :]
    tl.store(place, back.to(tl.bfloat16), mask=here)


def attend(
    q: Tensor, window: tuple[Tensor, Tensor, Packing], selected: tuple[Tensor, Tensor, Packing] | None, hidden: Tensor,
    sink: Tensor, positions: Tensor, table: Tensor, layout: StateLayout, out: Tensor, *, warps: int = 8,
) -> Tensor:  # fmt: skip
    """softmax over a token's own entries and the sink, times the entries, turned back; in `out`, bf16 [n, heads, D].

    q: bf16 [n, heads or more, D], a token's heads side by side. window, selected: int64 slots [n, W] or [n * W], dense,
    with their pages and packing. hidden: bool [n, W + selected or more]. sink: fp32 [heads or more]. positions: int64
    [n]. table: complex64 [P, pairs].
    """
    n, heads, d = out.shape
    slots, pages, packing = window
    entry_slots, entry_pages, entry_packing = selected or window
    n_window, n_selected = slots.numel() // max(n, 1), entry_slots.numel() // max(n, 1) if selected else 0
    if n:
        _attend_kernel[(n, triton.cdiv(heads, 16))](
            q, slots, entry_slots, hidden, sink, positions, torch.view_as_real(table), pages, entry_pages, out,
            heads, q.stride(0), hidden.stride(0), pages.stride(0), entry_pages.stride(0), packing.scale.first,
            entry_packing.scale.first, d**-0.5, WINDOW=n_window, SELECTED=n_selected,
            ENTRIES=max(16, triton.next_power_of_2(n_window + n_selected)), WINDOW_PAGE=packing.per_page,
            ENTRY_PAGE=entry_packing.per_page, D=d, NOPE=layout.nope, GROUP=layout.group, DATA_BYTES=layout.data_bytes,
            SCALE_BYTES=layout.scale_bytes, PAIRS=layout.rope // 2, OPERAND=OPERAND, num_warps=warps,
        )  # fmt: skip
    return out


OPERATIONS: Mapping[str, Callable[..., Any]] = {}
"""None by dispatch: `impl.model.attention` takes the kernel where `own_kernels` says so."""

__all__ = ["OPERATIONS", "attend"]
