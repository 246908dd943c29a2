"""Rows of dense compressed indices of one step: decode rows as global slots, prefill rows as local indices.

Torch reference of what a step needs before its layers run (deepseek_v4_dspark.md section 3.5): `fill_local` over all
rows, and the map to global slots over the decode rows.
"""

from __future__ import annotations

from torch import Tensor

from impl.ops.index_map import fill_local, to_global
from impl.ops.workspace import Workspace


def topk_metadata(
    visible: Tensor,
    table: Tensor,
    request_rows: Tensor,
    per_page: int,
    decode: Tensor,
    prefill: Tensor,
    lens: Tensor,
    columns: Tensor,
    workspace: Workspace,
) -> None:
    """Fill the rows and lengths of N = D + P tokens, decode tokens first; all of the three is written.

    visible: int64 [N], compressed entries that each token sees. table: int64 [R, B], the blocks of each request.
    request_rows: int64 [N]. per_page: entries a block holds. decode: int32 [D, W], out: global slots, then -1. prefill:
    int32 [P, W], out: 0..n-1, then -1; both may be parts of one buffer. lens: int32 [N]. columns: int32 [W] = 0..W-1.
    """
    n = decode.shape[0]
    fill_local(columns, visible[:n], decode, lens[:n], workspace)
    fill_local(columns, visible[n:], prefill, lens[n:], workspace)
    to_global(decode, table, request_rows[:n], per_page, decode, lens[:n], workspace)


__all__ = ["topk_metadata"]
