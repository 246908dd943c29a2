"""States on their way into pages: rotated, packed and stored, by torch in one pass or by a kernel a page size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from impl.ops import dispatch, packed_kv
from impl.ops.packed_kv import Packing, StateLayout
from impl.ops.rope import rotate_
from impl.ops.workspace import Workspace


class Places(NamedTuple):
    """Where some states go."""

    positions: Tensor
    """int64 [M]: what they turn by"""
    slots: Tensor
    """int64 [M]"""
    pages: Tensor
    """uint8 [n_blocks, page_bytes]"""
    packing: Packing


def insert_states(
    states: Tensor, turn: Tensor, table: Tensor, places: Sequence[Places], layout: StateLayout, workspace: Workspace
) -> None:
    """RoPE, packing and storing of normed states fp32 [N, D], overwritten; they go to `places` in turn.

    turn: complex64 [N, pairs], the rows of `table` at their positions; kernels read the table themselves.
    """
    kernel = dispatch.kernel("kv_insert", states.device, dispatch.ANY, 1)
    if kernel is None:
        data, scales = packed_kv.pack_states(rotate_(states, turn), layout, workspace)
    first = 0
    for place in places:
        rows = slice(first, first + len(place.slots))
        first = rows.stop
        if kernel is not None:
            kernel(states[rows], place.positions, table, place.slots, place.pages, layout, place.packing, workspace)
        else:
            packed_kv.store(place.pages, place.slots, place.packing, data[rows], scales[rows], workspace)
