"""How each backend computes a case here, and why one cannot: the columns of the comparison."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from impl.bench.case import Case, Inputs, Outputs
from impl.dims import Dims
from impl.ops import dispatch

VLLM = "vllm"
NAMES = (*dispatch.BACKENDS, VLLM)


@dataclass(frozen=True)
class Way:
    """One backend at one point of its tuning."""

    backend: str
    compute: Callable[[Inputs], Outputs]
    parameters: Mapping[str, Any] = field(default_factory=dict)


def ways(
    case: Case, names: Sequence[str], device: torch.device, dims: Dims, tokens: int, every_point: bool
) -> Iterator[Way]:
    """Each backend of `names` that has the case's operation, as the table tunes it, or at every point of its tuning."""
    for name in names:
        if absent(name, case, device):
            continue
        if name == VLLM:
            assert case.vllm is not None
            yield Way(VLLM, case.vllm)
            continue
        points = dispatch.variants(name).get(case.op, ()) if every_point else ()
        for parameters in points or (_tuned(name, case.op, device, dims, tokens),):
            yield bound(name, case, parameters)


def absent(name: str, case: Case, device: torch.device) -> str:
    """Why a backend is no column of a case here; empty where it is one."""
    if name == dispatch.TORCH:
        return ""
    if device.type != "cuda":
        return "needs a GPU"
    if name == VLLM:
        if case.vllm is None:
            return "vLLM has no such operation"
        return "" if importlib.util.find_spec("vllm") else "vLLM is not installed here"
    if case.op not in dispatch.operations(name):
        return dispatch.missing(name) or "not written"
    return ""


def _tuned(name: str, op: str, device: torch.device, dims: Dims, tokens: int) -> Mapping[str, Any]:
    card = dispatch.card_of(device)
    fitting = [r for r in dispatch.table() if r.fits(op, card, dims.name, tokens) and r.backend == name]
    return fitting[0].parameters if fitting else {}


def bound(name: str, case: Case, parameters: Mapping[str, Any]) -> Way:
    """A backend of ours at a point of its tuning."""
    function = dispatch.operations(name)[case.op]

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, **parameters)

    return Way(name, lambda inputs: case.run(call, inputs), parameters)


__all__ = ["NAMES", "VLLM", "Way", "absent", "bound", "ways"]
