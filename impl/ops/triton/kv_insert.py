"""RoPE, quantization and insertion of cache entries in Triton: codes, rope values and scales, in one launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from impl.ops.packed_kv import Packing, StateLayout
from impl.ops.triton.query import turned
from impl.ops.workspace import Workspace


@triton.jit
def _insert_kernel(  # type: ignore[no-untyped-def]
    kv, positions, table, slots, pages, n, kv_stride, page_bytes, scales_at, PER_PAGE: tl.constexpr,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, NOPE: tl.constexpr, GROUP: tl.constexpr,
    DATA_BYTES: tl.constexpr, SCALE_BYTES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < n
    slot = tl.load(slots + row, mask=inside, other=-1)
    # Not by the slot, so that no load waits for another; skipped rows are few.
    position = tl.load(positions + row, mask=inside, other=0)
    column = tl.arange(0, D)[None, :]
    x = tl.load(kv + row[:, None] * kv_stride + column, mask=inside[:, None], other=0.0).to(tl.float32)
    there = slot >= 0
    block = slot // PER_PAGE
    entry = slot - block * PER_PAGE
    position = tl.where(there, position, 0)
    # Block 0 is nobody's: it holds zeros.
    x = tl.where((block == 0)[:, None], 0.0, turned(x, table, position[:, None], PAIRS, ROWS, D))

    # 448 is 1.75 * 2^8: the sum of the mantissas carries into the exponent exactly where the scale must be one higher.
    groups = tl.reshape(x.to(tl.bfloat16).to(tl.float32), (ROWS, D // GROUP, GROUP))
    largest = tl.maximum(tl.max(tl.abs(groups), 2), 1e-4)
    exponent = ((largest.to(tl.int32, bitcast=True) + (0x001FFFFF - (8 << 23))) >> 23) & 0xFF
    # A power of two's reciprocal is exact, and so is the product.
    inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    scaled = tl.minimum(tl.maximum(groups * inverse[:, :, None], -448.0), 448.0)
    codes = tl.reshape(scaled, (ROWS, D)).to(tl.float8e4nv).to(tl.uint8, bitcast=True)

    page = pages + block * page_bytes
    data = (page + entry * DATA_BYTES)[:, None]
    tl.store(data + column, codes, mask=there[:, None] & (column < NOPE))
    rope = (data + NOPE).to(tl.pointer_type(tl.bfloat16))
    tl.store(rope + (column - NOPE), x.to(tl.bfloat16), mask=there[:, None] & (column >= NOPE))
    group = tl.arange(0, D // GROUP)[None, :]
    scale = tl.where((group < NOPE // GROUP) & (block != 0)[:, None], exponent, 0).to(tl.uint8)
    at = (page + scales_at + entry * SCALE_BYTES)[:, None] + group
    tl.store(at, scale, mask=there[:, None] & (group < SCALE_BYTES))


def kv_insert(
    kv: Tensor,
    positions: Tensor,
    table: Tensor,
    slots: Tensor,
    pages: Tensor,
    layout: StateLayout,
    packing: Packing,
    workspace: Workspace | None = None,
    *,
    rows: int = 4,
    warps: int = 4,
) -> None:
    """As `impl.ops.query.kv_insert`; a negative slot is skipped. Raises ValueError for widths the kernel does not take:
    D a power of two, its quantized part whole groups of a power of two, and at most one group's scale as padding."""
    n, width = slots.shape[0], kv.shape[1]
    fits = not (width & (width - 1) or layout.group & (layout.group - 1) or layout.nope % layout.group)
    if not fits or layout.scale_bytes > width // layout.group or packing.data.first or kv.stride(1) != 1:
        raise ValueError(f"entries of {layout.nope} + {layout.rope} in groups of {layout.group} do not fit the kernel")
    if not n:
        return
    positions, slots = positions.contiguous(), slots.contiguous()
    _insert_kernel[(triton.cdiv(n, rows),)](
        kv, positions, torch.view_as_real(table), slots, pages, n, kv.stride(0), pages.stride(0), packing.scale.first,
        PER_PAGE=packing.per_page, PAIRS=layout.rope // 2, ROWS=rows, D=width, NOPE=layout.nope, GROUP=layout.group,
        DATA_BYTES=layout.data_bytes, SCALE_BYTES=layout.scale_bytes, num_warps=warps,
    )  # fmt: skip


OPERATIONS: Mapping[str, Callable[..., Any]] = {"kv_insert": kv_insert}
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "kv_insert": [{"rows": r, "warps": w} for r, w in ((4, 4), (1, 1), (1, 2), (1, 4), (2, 2))],
}

__all__ = ["OPERATIONS", "VARIANTS", "kv_insert"]
