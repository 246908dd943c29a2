"""Cache entries in pages of bytes: packed fp8 states, indexer keys, fp32 compressor rows.

A page of n entries holds n data rows, then n rows of scales (deepseek_v4_dspark.md, section 3.6). A state's data row is
`nope_dim` e4m3 values and `rope_dim` bf16 values; its scale row is one exponent byte a group and one byte of padding.
Codes are stored as bytes. Slots count entries (`block * per_page + entry`); block 0 is the null block: rows that are
padding, or of a profiling step without blocks, go there as zeros, so it never holds garbage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from impl.dims import Dims
from impl.ops.workspace import Workspace

E4M3_MAX = 448.0
SMALLEST_ABSMAX = 1e-4
DECODE_SHIFT = 8
"""log2 of the factor by which `decode_e4m3` gives too small values."""
SCALE_BYTES = 4
"""An indexer key's one scale is an fp32 number."""


@dataclass(frozen=True)
class PageRows:
    """Equal rows of bytes inside a page: `per_page` rows of `width` bytes from byte `first` on."""

    per_page: int
    width: int
    first: int = 0

    def unit(self, page_bytes: int) -> int:
        return gcd(page_bytes, self.width)

    def table(self, pages: Tensor) -> Tensor:
        """All rows of uint8 [n_blocks, page_bytes] as one table [*, width] that `index` counts in.

        Where the width does not divide the page, consecutive table rows overlap; only whole rows are ever named.
        """
        unit = self.unit(pages.shape[1])
        count = (pages.numel() - self.first - self.width) // unit + 1
        return pages.as_strided((count, self.width), (unit, 1), pages.storage_offset() + self.first)

    def index(self, slots: Tensor, blocks: Tensor, page_bytes: int, workspace: Workspace) -> Tensor:
        """Table rows of `slots` whose blocks, `slots // per_page`, are known; in the workspace's present scope."""
        unit = self.unit(page_bytes)
        step = self.width // unit
        out = workspace.empty(slots.shape, torch.int64)
        if step > 1:
            slots = torch.mul(slots, step, out=out)
        return torch.add(slots, blocks, alpha=page_bytes // unit - self.per_page * step, out=out)


@dataclass(frozen=True)
class Packing:
    """How one kind of entry lies in its page: data rows, then scale rows."""

    data: PageRows
    scale: PageRows

    @property
    def per_page(self) -> int:
        return self.data.per_page


@dataclass(frozen=True)
class StateLayout:
    """Parts of one packed state."""

    nope: int
    rope: int
    group: int

    @classmethod
    def of(cls, dims: Dims) -> StateLayout:
        if dims.nope_dim < 1 or dims.nope_dim % 2:
            raise ValueError(f"head_dim - rope_dim must be even and at least 2, got {dims.nope_dim}")
        return cls(dims.nope_dim, dims.rope_dim, dims.quant_group)

    @property
    def data_bytes(self) -> int:
        return self.nope + 2 * self.rope

    @property
    def groups(self) -> int:
        return -(-self.nope // self.group)

    @property
    def scale_bytes(self) -> int:
        return self.groups + 1

    def packing(self, per_page: int) -> Packing:
        data = PageRows(per_page, self.data_bytes)
        return Packing(data, PageRows(per_page, self.scale_bytes, per_page * self.data_bytes))

    def parts(self) -> Iterator[tuple[slice, slice, int]]:
        """(columns, their groups, group width): the whole groups, then a last narrower one if there is one."""
        whole = self.nope // self.group
        if whole:
            yield slice(0, whole * self.group), slice(0, whole), self.group
        if whole < self.groups:
            yield slice(whole * self.group, self.nope), slice(whole, self.groups), self.nope - whole * self.group


def key_packing(dims: Dims, per_page: int) -> Packing:
    """Indexer keys: `index_dim` e4m3 values, then one fp32 scale each."""
    data = PageRows(per_page, dims.index_dim)
    return Packing(data, PageRows(per_page, SCALE_BYTES, per_page * dims.index_dim))


def round_bf16_(x: Tensor, workspace: Workspace) -> Tensor:
    """Round fp32 `x` to bf16 values in place."""
    with workspace.scope():
        rounded = workspace.empty(x.shape, torch.bfloat16)
        return x.copy_(rounded.copy_(x))


def quantize_(x: Tensor, scale: Tensor, codes: Tensor) -> None:
    """e4m3 codes of `x` under one power-of-two scale for each vector along its last dim.

    x: fp32 [..., g], overwritten. scale: fp32 [...], out: 2^e, e = ceil(log2(max(absmax, 1e-4) / 448)).
    codes: uint8 of x's shape, out (may be strided).
    """
    torch.linalg.vector_norm(x, float("inf"), dim=-1, out=scale)
    # 448 = 1.75 * 2^8. An absmax 1.m * 2^k needs 2^(k-8), or twice that where 1.m > 1.75: then the sum of the mantissas
    # carries into the exponent, and ceil(log2) is exact.
    bits = scale.clamp_min_(SMALLEST_ABSMAX).view(torch.int32)
    bits.add_(0x001FFFFF - (8 << 23)).bitwise_and_(0x7F800000)
    codes.view(torch.float8_e4m3fn).copy_(x.div_(scale.unsqueeze(-1)).clamp_(-E4M3_MAX, E4M3_MAX))


def pack_states(x: Tensor, layout: StateLayout, workspace: Workspace) -> tuple[Tensor, Tensor]:
    """Bytes of states fp32 [M, D], rotated, not yet rounded; overwritten.

    Returns data [M, data_bytes] and scales [M, scale_bytes], uint8 in the workspace's present scope.
    """
    m = x.shape[0]
    data = workspace.empty((m, layout.data_bytes), torch.uint8)
    scales = workspace.empty((m, layout.scale_bytes), torch.uint8)
    data[:, layout.nope :].view(torch.bfloat16).copy_(x[:, layout.nope :])
    scales[:, layout.groups :].zero_()
    nope = round_bf16_(x[:, : layout.nope], workspace)
    with workspace.scope():
        for columns, groups, width in layout.parts():
            values = nope[:, columns].unflatten(1, (-1, width))
            scale = workspace.empty(values.shape[:2], torch.float32)
            quantize_(values, scale, data[:, columns].unflatten(1, (-1, width)))
            # Not with out=: on CUDA a shift computes in the type of its out, here bytes.
            scales[:, groups].copy_(scale.view(torch.int32).bitwise_right_shift_(23))
    return data, scales


def store(pages: Tensor, slots: Tensor, packing: Packing, data: Tensor, scales: Tensor, workspace: Workspace) -> None:
    """Write entries (uint8 [M, *], overwritten) at int64 `slots` [M]; zeros for those of the null block."""
    with workspace.scope():
        blocks = blocks_of(slots, packing.per_page, workspace)
        null = in_null_block(blocks, workspace)
        for rows, source in ((packing.data, data), (packing.scale, scales)):
            index = rows.index(slots, blocks, pages.shape[1], workspace)
            rows.table(pages).index_copy_(0, index, source.masked_fill_(null, 0))


def blocks_of(slots: Tensor, per_page: int, workspace: Workspace) -> Tensor:
    return torch.floor_divide(slots, per_page, out=workspace.empty(slots.shape, torch.int64))


def in_null_block(blocks: Tensor, workspace: Workspace) -> Tensor:
    """bool [M, 1]: which rows have nowhere to go."""
    return torch.eq(blocks, 0, out=workspace.empty(blocks.shape, torch.bool)).unsqueeze(1)


def gather(pages: Tensor, slots: Tensor, blocks: Tensor, packing: Packing, data: Tensor, scales: Tensor,
           workspace: Workspace) -> None:  # fmt: skip
    """Read entries at flat int64 `slots` [M], of blocks `slots // per_page`, into uint8 `data` and `scales` [M, *]."""
    with workspace.scope():
        for rows, out in ((packing.data, data), (packing.scale, scales)):
            index = rows.index(slots, blocks, pages.shape[1], workspace)
            torch.index_select(rows.table(pages), 0, index, out=out)


def decode_e4m3(codes: Tensor, workspace: Workspace) -> Tensor:
    """fp16 values of e4m3 codes uint8 [M, K] (last dim contiguous), 2^8 times too small; in the present scope.

    A code's sign, exponent and mantissa moved to their places in an fp16 number: exact, subnormals too, and several
    times faster on a CPU than the cast. A NaN code reads as a finite number.
    """
    bits = workspace.empty(codes.shape, torch.int16)
    bits.copy_(codes.view(torch.int8)).bitwise_left_shift_(7).bitwise_and_(-0x4001)
    return bits.view(torch.float16)


def unpack_states(data: Tensor, scales: Tensor, layout: StateLayout, out: list[Tensor], workspace: Workspace) -> None:
    """fp32 states of packed rows.

    data, scales: uint8 [M, *]. out: fp32 [n, S_i, D] each (may be strided), that take the rows in turn.
    """
    with workspace.scope():
        nope = decode_e4m3(data[:, : layout.nope], workspace)
        rope = data[:, layout.nope :].view(torch.bfloat16)
        bits = workspace.empty((data.shape[0], layout.groups), torch.int32)
        torch.add(scales[:, : layout.groups], DECODE_SHIFT, out=bits)
        scale = bits.bitwise_left_shift_(23).view(torch.float32)
        first = 0
        for part in out:
            n, length, _ = part.shape
            rows = slice(first, first + n * length)
            first += n * length
            part[..., layout.nope :].copy_(rope[rows].unflatten(0, (n, length)))
            part[..., : layout.nope].copy_(nope[rows].unflatten(0, (n, length)))
            here = scale[rows].view(n, length, layout.groups, 1)
            for columns, groups, width in layout.parts():
                part[..., columns].unflatten(-1, (-1, width)).mul_(here[:, :, groups])


def store_rows(
    pages: Tensor, slots: Tensor, blocks: Tensor, per_page: int, values: Tensor, workspace: Workspace
) -> None:
    """Write fp32 rows [M, K] (may be strided) into byte pages at int64 `slots` [M], of blocks `slots // per_page`.

    Rows of the null block must be zeros.
    """
    source = values.view(torch.uint8)
    rows = PageRows(per_page, source.shape[1])
    with workspace.scope():
        rows.table(pages).index_copy_(0, rows.index(slots, blocks, pages.shape[1], workspace), source)


def gather_rows(pages: Tensor, slots: Tensor, per_page: int, out: Tensor, workspace: Workspace) -> Tensor:
    """Read fp32 rows at flat int64 `slots` [M] into contiguous `out` [M, K]."""
    target = out.view(torch.uint8)
    rows = PageRows(per_page, target.shape[1])
    with workspace.scope():
        index = rows.index(slots, blocks_of(slots, per_page, workspace), pages.shape[1], workspace)
        torch.index_select(rows.table(pages), 0, index, out=target)
    return out
