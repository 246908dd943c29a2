"""Matrix products whose rows do not depend on each other's number or place.

The CPU's fp32 GEMM sums a row in another order when there are 1, 2 or 3 rows or a number of rows that is not a multiple
of four, and, for few columns, when rows start at different alignments (measured, torch 2.13). So every product here
runs on rows padded to a multiple of four, each starting on a 64-byte line: then a token has the same bits alone and in
any batch. What the padding rows hold never reaches a real row.

On CUDA, where the library takes another kernel for another number of rows, a kernel of our own (`triton.linear`) sums
every row in one order; it reads bf16 rows as they are. DSBENCH_OPS=torch leaves the products to the library.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from impl.ops.own_kernels import own_kernels
from impl.ops.workspace import Workspace

ROWS = 4
LINE = 16
"""fp32 values of a 64-byte line."""
SMALL_BMM = 100
"""With fewer products than this for a row and matrix, the CPU's bmm takes another kernel for few rows."""


def padded_rows(n: int) -> int:
    """`n` rounded up to the next multiple of four."""
    return -(-n // ROWS) * ROWS


def lines(width: int) -> int:
    """`width` fp32 values rounded up to whole lines."""
    return -(-width // LINE) * LINE


def kept_rows(x: Tensor, workspace: Workspace) -> Tensor:
    """A copy of `x` [N, K], in the workspace's present scope, that products read as it is: `x` may go.

    fp32 [padded N, K] as `fp32_rows`; where our kernel computes the products, [N, K] of x's own type.
    """
    if own_kernels(x.device):
        return workspace.empty(x.shape, x.dtype).copy_(x)
    return fp32_rows(x, workspace)


def fp32_rows(x: Tensor, workspace: Workspace) -> Tensor:
    """A copy of `x` [N, ..., K] as fp32 [padded N, ..., K], each K on its own line, in the workspace's present scope.

    Rows beyond N are not written.
    """
    *shape, width = x.shape
    rows = workspace.empty((padded_rows(shape[0]), *shape[1:], lines(width)), torch.float32)
    rows = rows[..., :width] if width % LINE else rows
    (rows[: shape[0]] if shape[0] % ROWS else rows).copy_(x)
    return rows


def linear(x: Tensor, weight: Tensor, workspace: Workspace, out: Tensor | None = None) -> Tensor:
    """`x @ weight.T` in fp32.

    x: [N, K], any float type; rows may be strided. weight: fp32 [O, K].
    Returns fp32 [N, O]: `out` if given, else a tensor of the workspace's present scope.
    """
    n = x.shape[0]
    if own_kernels(x.device):
        from impl.ops.triton.linear import linear as kernel

        found = workspace.empty((n, weight.shape[0]), torch.float32) if out is None else out
        kernel(x.unsqueeze(1), weight.unsqueeze(0), found.unsqueeze(1), whole=all_bf16(weight))
        return found
    result = out
    if result is None or n % ROWS:
        result = workspace.empty((padded_rows(n), weight.shape[0]), torch.float32)
    if x.dtype == torch.float32 and n % ROWS == 0 and x.stride(0) % LINE == 0:
        torch.mm(x, weight.t(), out=result)
    else:
        with workspace.scope():
            torch.mm(fp32_rows(x, workspace), weight.t(), out=result)
    if out is None:
        return result[:n] if n % ROWS else result
    return out if result is out else out.copy_(result[:n])


def grouped_linear(x: Tensor, weight: Tensor, workspace: Workspace) -> Tensor:
    """Each group of columns times its own matrix, results side by side; fp32.

    x: [N, G, K], any float type. weight: fp32 [G, O, K].
    Returns fp32 [N or padded N, G * O] in the workspace's present scope; rows beyond N hold anything.
    """
    if own_kernels(x.device):
        from impl.ops.triton.linear import linear as kernel

        out = workspace.empty((x.shape[0], *weight.shape[:2]), torch.float32)
        return kernel(x, weight, out, whole=all_bf16(weight)).flatten(1)
    groups, width, inner = weight.shape
    if width * inner < SMALL_BMM:
        raise ValueError(
            f"grouped_linear needs O * K of at least {SMALL_BMM}, got {width} * {inner}: raise o_lora_rank"
        )
    result = workspace.empty((padded_rows(x.shape[0]), groups, width), torch.float32)
    with workspace.scope():
        by_group = fp32_rows(x, workspace).transpose(0, 1)
        torch.bmm(by_group, weight.transpose(1, 2), out=result.transpose(0, 1))
    return result.view(-1, groups * width)


_all_bf16 = WeakTensorKeyDictionary()


def all_bf16(weight: Tensor) -> bool:
    """Whether every value is a bf16 value. Looked at once a tensor, which waits for the device: not in a capture."""
    found = _all_bf16.get(weight)
    if found is None:
        found = _all_bf16[weight] = torch.equal(weight.to(torch.bfloat16).to(weight.dtype), weight)
    return bool(found)
