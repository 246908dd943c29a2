"""What is timed: one form of one operation, its inputs, how a backend and vLLM compute it, and the bytes it moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from impl.dims import Dims
from impl.ops.workspace import Workspace

Inputs = dict[str, Any]
Outputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    op: str
    form: str
    """`fresh`, or what is written over: `in place`."""
    build: Callable[[Dims, int, torch.device, int], Inputs]
    """Inputs for a shape, a number of tokens, a device and a seed."""
    run: Callable[[Callable[..., Any], Inputs], Outputs]
    """Calls a function of the reference's signature; returns everything it computed."""
    nbytes: Callable[[Inputs], int]
    """Bytes in once and out once."""
    vllm: Callable[[Inputs], Outputs] | None = None
    """vLLM's own operations for the same outputs; imports vLLM when called."""
    changed: tuple[str, ...] = ()
    """Inputs that a call leaves as they may not be for the next one: they are restored in between."""
    most: int = 1 << 30
    """Tokens (rows, requests) beyond which nobody would call it."""
    bitwise: tuple[int, ...] = ()
    """Which outputs are vLLM's to the bit."""

    @property
    def name(self) -> str:
        return f"{self.op}, {self.form}"


def size(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def normal(device: torch.device, seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers, the same for a seed whatever the shape asked for before."""
    gen = torch.Generator(device).manual_seed(seed)
    return torch.randn(*shape, device=device, generator=gen, dtype=torch.float32).to(dtype)


def integers(device: torch.device, seed: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    gen = torch.Generator(device).manual_seed(seed)
    return torch.randint(0, high, shape, device=device, generator=gen, dtype=dtype)


def pristine(case: Case, inputs: Inputs) -> Mapping[str, Tensor]:
    """Copies of what a call changes."""
    return {name: inputs[name].clone() for name in case.changed}


def restore(inputs: Inputs, kept: Mapping[str, Tensor]) -> None:
    for name, tensor in kept.items():
        inputs[name].copy_(tensor)


def copied(inputs: Inputs) -> Inputs:
    """The same inputs, in memory of their own."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}


_workspaces: dict[str, Workspace] = {}


def workspace(tensor: Tensor) -> Workspace:
    """One workspace a device, as an engine has."""
    return _workspaces.setdefault(str(tensor.device), Workspace(tensor.device))


__all__ = ["Case", "Inputs", "Outputs", "copied", "integers", "normal", "pristine", "restore", "size", "workspace"]
