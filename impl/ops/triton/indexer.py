"""The indexer's candidates in Triton: scores as keys to sort by, in one launch for all entries of the context.

A program scores some entries of one token: it finds their pages by the block table, decodes their e4m3 keys and sums
weight * relu(q . key) over the heads. A score depends on its own query and entry only, whatever is scored beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from impl.ops.packed_kv import Packing


@triton.jit
def e4m3(codes):  # type: ignore[no-untyped-def]
    """fp32 values of uint8 e4m3 codes, 2^8 times too small: as `impl.ops.packed_kv.decode_e4m3`."""
    bits = (codes.to(tl.int8, bitcast=True).to(tl.int16) << 7) & -0x4001
    return bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _order_kernel(  # type: ignore[no-untyped-def]
    codes, folded, table, visible, pages, out, n_pages, page_bytes, scales_at, columns,
    HEADS: tl.constexpr, PADDED: tl.constexpr, D: tl.constexpr, PER_PAGE: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(1).to(tl.int64)
    entry = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    seen = (entry < tl.load(visible + token)) & (entry // PER_PAGE < n_pages)
    block = tl.load(table + token * n_pages + entry // PER_PAGE, mask=seen, other=0)
    page = pages + block * page_bytes
    within = entry % PER_PAGE
    channel = tl.arange(0, D)
    key = e4m3(tl.load((page + within * D)[:, None] + channel[None, :], mask=seen[:, None], other=0))
    score = tl.zeros((ENTRIES,), tl.float32)
    for head in tl.static_range(HEADS):
        query = e4m3(tl.load(codes + (token * PADDED + head) * D + channel)) * 256.0
        dot = tl.sum(key * query[None, :], 1)
        score += tl.maximum(dot, 0.0) * tl.load(folded + token * PADDED + head)
    scale = tl.load((page + scales_at + within * 4).to(tl.pointer_type(tl.float32)), mask=seen, other=0.0)
    # The float's bits as an ordered integer, above the index; adding 0 makes -0 equal to 0.
    score = tl.where(seen, score * scale + 0.0, float("-inf"))
    bits = score.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    tl.store(out + token * columns + entry, (bits.to(tl.int64) << 32) - entry, mask=entry < columns)


def entry_order(
    codes: Tensor, folded: Tensor, n_heads: int, table: Tensor, visible: Tensor, pages: Tensor, packing: Packing,
    out: Tensor, *, entries: int = 64, warps: int = 4,
) -> Tensor:  # fmt: skip
    """int64 `out` [n, C] that sorts a token's entries by score, then by lower index; hidden ones by -inf.

    codes: uint8 [n, heads, d] and folded: fp32 [n, heads] of `indexer.quantize_query`, dense, the first n_heads real.
    table: int64 [n, pages], blocks of each token's pages, dense. visible: int64 [n]. Raises ValueError where d is no
    power of two.
    """
    n, columns = out.shape
    heads, d = codes.shape[1:]
    if d & (d - 1):
        raise ValueError(f"indexer keys must be a power of two wide, got {d}")
    if n:
        _order_kernel[(triton.cdiv(columns, entries), n)](
            codes, folded, table, visible, pages, out, table.shape[1], pages.stride(0), packing.scale.first, columns,
            HEADS=n_heads, PADDED=heads, D=d, PER_PAGE=packing.per_page, ENTRIES=entries, num_warps=warps,
        )  # fmt: skip
    return out


OPERATIONS: Mapping[str, Callable[..., Any]] = {}
"""None by dispatch: `impl.model.attention` takes the kernel where `own_kernels` says so."""

__all__ = ["OPERATIONS", "e4m3", "entry_order"]
