"""Rows of dense compressed indices in Triton: the map to global slots, and the rows of one step.

Where the map writes over its input, the tail of -1 of a dense row, half of it on average, is read only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from impl.ops.places import check_outputs, dense_rows, same
from impl.ops.workspace import Workspace

SECTOR = tl.constexpr(8)
"""Entries of 32 bytes, the least that memory is written in."""
STRAY = tl.constexpr(2**31 - 1)
"""Greater than any entry: what stands for one that is not where a dense row has it."""


@triton.jit(do_not_specialize_on_alignment=["lens", "requests", "valid"])
def _map_kernel(  # type: ignore[no-untyped-def]
    local, out, lens, table, requests, valid, width, local_stride, out_stride, table_stride, n_blocks,
    PER_PAGE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, IN_PLACE: tl.constexpr, HAS_VALID: tl.constexpr,
    DENSE: tl.constexpr,
):  # fmt: skip
    """DENSE: a part of a row whose entries are its own columns, then -1, takes each page of the table once, from
    neighbouring addresses, instead of once an entry; PER_PAGE is then a power of two that divides BLOCK."""
    row = tl.program_id(0).to(tl.int64)
    blocks = table + tl.load(requests + row).to(tl.int64) * table_stride
    counts = tl.zeros((BLOCK,), tl.int32)
    for part in range(PARTS):
        column = part * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        entry = tl.load(local + row * local_stride + column, mask=inside, other=-1)
        top = STRAY
        if DENSE:
            top = tl.max(tl.where((entry == column) | (entry == -1), entry, STRAY), 0)
        if top == STRAY:
            page = entry // PER_PAGE
            there = (entry >= 0) & (page < n_blocks)
            block = tl.load(blocks + page, mask=there, other=0).to(tl.int32)
            slot = tl.where(there, block * PER_PAGE + entry % PER_PAGE, -1)
            tl.store(out + row * out_stride + column, slot, mask=inside)
            counts += there.to(tl.int32)
        elif DENSE:
            pages = part * (BLOCK // PER_PAGE) + tl.arange(0, BLOCK // PER_PAGE)
            seen = (pages * PER_PAGE <= top) & (pages < n_blocks)
            firsts = tl.load(blocks + pages, mask=seen, other=0).to(tl.int32) * PER_PAGE
            slots = tl.reshape(firsts[:, None] + tl.arange(0, PER_PAGE)[None, :], (BLOCK,))
            there = (entry >= 0) & (column < n_blocks * PER_PAGE)
            written = inside
            if IN_PLACE:
                written = inside & (column <= (top | (SECTOR - 1)))
            tl.store(out + row * out_stride + column, tl.where(there, slots, -1), mask=written)
            counts += there.to(tl.int32)
    count = tl.sum(counts, 0)
    if HAS_VALID:
        count = tl.where(tl.load(valid + row), count, 0)
    tl.store(lens + row, count)


@triton.jit(do_not_specialize=["n_decode"], do_not_specialize_on_alignment=["visible", "requests", "lens"])
def _metadata_kernel(  # type: ignore[no-untyped-def]
    visible, table, requests, decode, prefill, lens, n_decode, width, decode_stride, prefill_stride, table_stride,
    n_blocks, PER_PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    seen = tl.minimum(tl.load(visible + row), width).to(tl.int32)
    if row < n_decode:
        seen = tl.minimum(seen, n_blocks * PER_PAGE)
        there = column < seen
        blocks = table + tl.load(requests + row).to(tl.int64) * table_stride
        block = tl.load(blocks + column // PER_PAGE, mask=there, other=0).to(tl.int32)
        slot = tl.where(there, block * PER_PAGE + column % PER_PAGE, -1)
        tl.store(decode + row * decode_stride + column, slot, mask=inside)
    else:
        entry = tl.where(column < seen, column, -1)
        tl.store(prefill + (row - n_decode) * prefill_stride + column, entry, mask=inside)
    if tl.program_id(1) == 0:
        tl.store(lens + row, seen)


def to_global(
    local: Tensor,
    table: Tensor,
    request_rows: Tensor,
    per_page: int,
    out: Tensor,
    lens: Tensor,
    workspace: Workspace | None = None,
    *,
    valid: Tensor | None = None,
    block: int = 2048,
    warps: int = 4,
    dense: bool = True,
) -> None:
    """As `impl.ops.index_map.to_global`. table and request_rows: int32 or int64. valid: bool [N]: rows whose length
    is 0 although they have entries (padding). dense: look for rows that hold their own columns, which cost less.

    Rows of `local`, `out` and `table` may lie apart. Raises ValueError for other shapes and types, and for an `out`
    that is neither `local` nor apart from it."""
    n, width = local.shape
    _check_rows({"local": local, "out": out}, lens, request_rows, table, (n, width))
    given = {"table": table, "request_rows": request_rows, "valid": valid}
    check_outputs({"out": out, "lens": lens}, {"local": local, **given}, {"out": "local"})
    if not n:
        return
    request_rows, valid = request_rows.contiguous(), valid if valid is None else valid.contiguous()
    block = min(block, max(8, triton.next_power_of_2(width)))
    _map_kernel[(n,)](
        local, out, lens, table, request_rows, lens if valid is None else valid, width, local.stride(0), out.stride(0),
        table.stride(0), table.shape[1], PER_PAGE=per_page, BLOCK=block, PARTS=triton.cdiv(width, block),
        IN_PLACE=same(out, local), HAS_VALID=valid is not None,
        DENSE=dense and not per_page & (per_page - 1) and per_page <= block, num_warps=warps,
    )  # fmt: skip


def topk_metadata(
    visible: Tensor,
    table: Tensor,
    request_rows: Tensor,
    per_page: int,
    decode: Tensor,
    prefill: Tensor,
    lens: Tensor,
    columns: Tensor | None = None,
    workspace: Workspace | None = None,
    *,
    block: int = 1024,
    warps: int = 4,
) -> None:
    """As `impl.ops.topk_metadata.topk_metadata`, in one launch. table and request_rows: int32 or int64.

    Rows of `decode`, `prefill` and `table` may lie apart. Raises ValueError for other shapes and types."""
    n, width = visible.shape[0], decode.shape[1]
    _check_rows({"decode": decode, "prefill": prefill}, lens, request_rows, table, (None, width))
    if decode.shape[0] + prefill.shape[0] != n or request_rows.shape[0] != n or lens.shape[0] != n:
        raise ValueError(
            f"{decode.shape[0]} decode and {prefill.shape[0]} prefill rows, {request_rows.shape[0]} requests and "
            f"{lens.shape[0]} lengths for {n} tokens: their numbers must agree"
        )
    given = {"visible": visible, "table": table, "request_rows": request_rows}
    check_outputs({"decode": decode, "prefill": prefill, "lens": lens}, given)
    if not n:
        return
    visible, request_rows = visible.contiguous(), request_rows.contiguous()
    block = min(block, triton.next_power_of_2(width))
    _metadata_kernel[(n, triton.cdiv(width, block))](
        visible, table, request_rows, decode, prefill, lens, decode.shape[0], width, decode.stride(0),
        prefill.stride(0), table.stride(0), table.shape[1], PER_PAGE=per_page, BLOCK=block, num_warps=warps,
    )  # fmt: skip


def _check_rows(
    rows: Mapping[str, Tensor], lens: Tensor, request_rows: Tensor, table: Tensor, shape: tuple[int | None, int]
) -> None:
    """Rows of entries, int32, and what belongs to them: a kernel goes by pointers and first strides alone."""
    n, width = shape
    for name, tensor in rows.items():
        fits = tensor.dim() == 2 and tensor.shape[1] == width and n in (None, tensor.shape[0])
        if not fits or tensor.dtype != torch.int32 or not dense_rows(tensor):
            raise ValueError(
                f"{name} must be int32 [{'N' if n is None else n}, {width}], each row dense, got {tensor.dtype} "
                f"{tuple(tensor.shape)}, strides {tensor.stride()}"
            )
    if lens.dtype != torch.int32 or not lens.is_contiguous() or lens.dim() != 1 or n not in (None, lens.shape[0]):
        raise ValueError(f"lens must be int32 [{'N' if n is None else n}], dense, got {lens.dtype} {tuple(lens.shape)}")
    if request_rows.dim() != 1 or n not in (None, request_rows.shape[0]):
        raise ValueError(f"request_rows must have one entry for each of {n} rows, got {tuple(request_rows.shape)}")
    if table.dim() != 2 or not dense_rows(table):
        raise ValueError(f"table must be [R, B], each row dense, got {tuple(table.shape)}, strides {table.stride()}")


OPERATIONS: Mapping[str, Callable[..., Any]] = {"index_map": to_global, "topk_metadata": topk_metadata}
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "index_map": [
        *({"block": b, "warps": w} for b, w in ((4096, 16), (4096, 8), (2048, 4), (2048, 8), (1024, 4))),
        {"block": 1024, "warps": 4, "dense": False},
    ],
    "topk_metadata": [{"block": b, "warps": w} for b, w in ((1024, 4), (2048, 4), (4096, 8))],
}

__all__ = ["OPERATIONS", "VARIANTS", "to_global", "topk_metadata"]
