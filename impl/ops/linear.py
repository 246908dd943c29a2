"""Matrix products whose rows do not depend on each other's number.

The CPU's fp32 GEMM sums a row in another order when there are 1, 2 or 3 rows, or a number of rows that is not a
multiple of four (measured, torch 2.13). So every product here runs on rows padded to a multiple of four: then a token
has the same bits alone and in any batch. What the padding rows hold never reaches a real row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.ops.workspace import Workspace

ROWS = 4


def padded_rows(n: int) -> int:
    """`n` rounded up to the next multiple of four."""
    return -(-n // ROWS) * ROWS


def fp32_rows(x: Tensor, workspace: Workspace) -> Tensor:
    """A copy of `x` [N, K] as fp32 [padded N, K] in the workspace; rows beyond N are not written."""
    n, width = x.shape
    rows = workspace.empty((padded_rows(n), width), torch.float32)
    (rows if rows.shape[0] == n else rows[:n]).copy_(x)
    return rows


def linear(x: Tensor, weight: Tensor, workspace: Workspace, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T` in fp32.

    x: [N, K], any float type; rows may be strided. weight: fp32 [O, K].
    Returns fp32 [N, O]: `out` if given, else a tensor of the workspace's present scope.
    """
    n = x.shape[0]
    result = out
    if result is None or result.shape[0] % ROWS:
        result = workspace.empty((padded_rows(n), weight.shape[0]), torch.float32)
    if x.dtype == torch.float32 and n % ROWS == 0:
        torch.mm(x, weight.t(), out=result)
    else:
        with workspace.scope():
            torch.mm(fp32_rows(x, workspace), weight.t(), out=result)
    if out is None:
        return result if result.shape[0] == n else result[:n]
    return out if result is out else out.copy_(result[:n])


def grouped_linear(x: Tensor, weight: Tensor, workspace: Workspace) -> Tensor:
    """Each group of columns times its own matrix, results side by side.

    x: fp32 [N, G * K], N a multiple of four. weight: fp32 [G, O, K].
    Returns fp32 [N, G * O] in the workspace's present scope.
    """
    n = x.shape[0]
    if n % ROWS:
        raise ValueError(f"grouped_linear needs rows padded to a multiple of {ROWS}, got {n}")
    groups, width, inner = weight.shape
    result = workspace.empty((n, groups, width), torch.float32)
    by_group = x.view(n, groups, inner).transpose(0, 1)
    torch.bmm(by_group, weight.transpose(1, 2), out=result.transpose(0, 1))
    return result.view(n, groups * width)
