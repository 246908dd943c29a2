"""Random small programs of tensor operations over persistent buffers, and how captures are compared with eager."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from impl.engine.tape import same_bits

N = 6
"""Every float tensor of a program is [N, N], every index tensor int64 [N] with values below N."""


class Buffers:
    """The persistent tensors of a program."""

    def __init__(self) -> None:
        self.floats = [torch.zeros(N, N) for _ in range(3)]
        self.halves = torch.zeros(N, N, dtype=torch.bfloat16)
        self.index = torch.zeros(N, dtype=torch.int64)
        self.mask = torch.zeros(N, N, dtype=torch.bool)

    def all(self) -> list[Tensor]:
        return [*self.floats, self.halves, self.index, self.mask]

    def refill(self, seed: int) -> None:
        gen = torch.Generator().manual_seed(seed)
        for tensor in [*self.floats, self.halves]:
            tensor.copy_(torch.randn(N, N, generator=gen))
        self.index.copy_(torch.randint(0, N, (N,), generator=gen))
        self.mask.copy_(torch.rand(N, N, generator=gen) < 0.5)


def _slice_add(a: Tensor, b: Tensor, i: Tensor, m: Tensor) -> Tensor:
    a[1:4] += b[2:5]
    return a


def _strided_scale(a: Tensor, b: Tensor, i: Tensor, m: Tensor) -> Tensor:
    a[:, ::2] *= 0.5
    return b


def _assign(a: Tensor, b: Tensor, i: Tensor, m: Tensor) -> Tensor:
    a[:, 1:3] = b[:, 3:5]
    return a


def _put(a: Tensor, b: Tensor, i: Tensor, m: Tensor) -> Tensor:
    a[i] = b
    return a


def _out(a: Tensor, b: Tensor, i: Tensor, m: Tensor) -> Tensor:
    result = torch.empty_like(a)
    torch.mul(a, b, out=result)
    return result


def _filled(a: Tensor, b: Tensor, i: Tensor, m: Tensor) -> Tensor:
    result = a.new_empty(N, N)
    result[:2] = a[:2]
    result[2:].copy_(b[2:])
    return result


def _rotated(a: Tensor, b: Tensor, i: Tensor, m: Tensor) -> Tensor:
    turn = torch.view_as_complex(b.float().contiguous().view(N, N // 2, 2))
    pairs = torch.view_as_complex(a.float().contiguous().view(N, N // 2, 2))
    return torch.view_as_real(pairs * turn.conj()).flatten(1)


def _topk(a: Tensor, b: Tensor, i: Tensor, m: Tensor) -> Tensor:
    values, where = torch.topk(a, 3, dim=1)
    return torch.zeros_like(a).scatter_(1, where, values)


OPERATIONS: list[Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = [
    lambda a, b, i, m: a + b,
    lambda a, b, i, m: a * 1.5 - b,
    lambda a, b, i, m: a.float() @ b.float(),
    lambda a, b, i, m: F.linear(a.float(), b.float(), a.float()[0]),
    lambda a, b, i, m: F.linear(a.bfloat16(), b.bfloat16()),
    lambda a, b, i, m: torch.bmm(a.float().expand(2, N, N), b.float().expand(2, N, N))[1],
    lambda a, b, i, m: a.t(),
    lambda a, b, i, m: a.t().contiguous(),
    lambda a, b, i, m: torch.cat([a[:2].float(), b[2:5].float(), a[5:].float()]),
    lambda a, b, i, m: torch.softmax(a, dim=-1),
    lambda a, b, i, m: torch.log_softmax(a.t().float(), dim=0),
    lambda a, b, i, m: torch.sort(a, dim=1, descending=True).values,
    lambda a, b, i, m: torch.sort(a, dim=0, stable=True).indices.float(),
    lambda a, b, i, m: a.index_select(0, i),
    lambda a, b, i, m: a[i],
    lambda a, b, i, m: a[:, i] + b[i][:, i],
    lambda a, b, i, m: torch.gather(a, 1, i.expand(N, N)),
    lambda a, b, i, m: a.index_put((i,), b.to(a.dtype), accumulate=True),
    lambda a, b, i, m: a.scatter_(0, i.expand(N, N), b.to(a.dtype)),
    lambda a, b, i, m: torch.where(m, a, b),
    lambda a, b, i, m: torch.where(a > b, a, 0.25),
    lambda a, b, i, m: a.masked_fill(m, -1.0),
    lambda a, b, i, m: a.add_(b),
    lambda a, b, i, m: a.copy_(b),
    lambda a, b, i, m: a.to(torch.bfloat16),
    lambda a, b, i, m: a.float(),
    lambda a, b, i, m: a.cumsum(1),
    lambda a, b, i, m: a / (a.square().mean(dim=-1, keepdim=True) + 1e-3).sqrt(),
    lambda a, b, i, m: a.sum(0).expand(N, N) * b,
    lambda a, b, i, m: a.clamp(-1, 1).exp(),
    lambda a, b, i, m: torch.stack([a.float(), b.float()]).mean(0),
    lambda a, b, i, m: torch.full_like(a, 2.0) + torch.arange(N, device=a.device),
    lambda a, b, i, m: a.argmax(1)[:, None].float() + b,
    lambda a, b, i, m: F.layer_norm(a.float(), (N,)),
    lambda a, b, i, m: F.pad(a[:, :3], (1, 2)),
    lambda a, b, i, m: a.reshape(-1).flip(0).view(N, N),
    lambda a, b, i, m: torch.stack(a.split(2, dim=1)).permute(1, 0, 2).reshape(N, N),
    lambda a, b, i, m: torch.outer(a.flatten()[:N].float(), b.max(dim=1).values.float()),
    _slice_add, _strided_scale, _assign, _put, _out, _filled, _rotated, _topk,
]  # fmt: skip

Program = list[tuple[int, int, int]]
"""(operation, first operand, second operand); operands count back from the newest tensor, buffers are oldest."""

PROGRAMS = st.lists(
    st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=14
)


def run_program(program: Program, buffers: Buffers) -> list[Tensor]:
    """The last three results and every fourth of the others; in-place operations may hit buffers and views."""
    tensors = [*buffers.floats, buffers.halves]
    results = []
    for op, first, second in program:
        a, b = tensors[-1 - first % len(tensors)], tensors[-1 - second % len(tensors)]
        if OPERATIONS[op] is _out:
            b = b.to(a.dtype)
        try:
            result = OPERATIONS[op](a, b, buffers.index, buffers.mask)
        except RuntimeError:  # torch refuses to write where it reads, or into an expanded tensor
            result = a
        tensors.append(result)
        results.append(result)
        buffers.index.add_(1).remainder_(N)
    return results[-3:] + results[:-3:4]


def chain(x: Tensor, length: int = 8) -> Tensor:
    """Temporaries of which two live at a time."""
    for i in range(length):
        x = x * (i + 1.5)
    return x


def assert_same(got: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    for index, (ours, reference) in enumerate(zip(got, expected, strict=True)):
        assert same_bits(ours, reference), f"result {index}"
