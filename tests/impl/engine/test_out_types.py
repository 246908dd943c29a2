"""Operations write into tensors of the type that they compute in: on CUDA some compute in that of `out` instead."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from impl.ops.workspace import Workspace
from tests.impl.engine.engines import boot_runner, generate, make_request, random_prompts

BY_COMMON_TYPE = {"add", "sum"}
"""Computed by the type of their inputs, or of `dtype`, on CUDA too."""


class OutTypes(TorchDispatchMode):
    """Places that write numbers of one type into a tensor of another."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, out = func.overloadpacket.__name__, kwargs.get("out")
        inputs = [arg for arg in args if isinstance(arg, Tensor)]
        if isinstance(out, Tensor) and out.dtype != torch.bool and inputs and name not in BY_COMMON_TYPE:
            same = torch.result_type(*inputs[:2]) if len(inputs) > 1 and name != "where" else inputs[-1].dtype
            if out.dtype != same and name not in ("index_select", "gather"):
                self.found.add(f"{name} of {same} into {out.dtype} at {_site()}")
        return func(*args, **kwargs)


def _site() -> str:
    frame = sys._getframe(2)
    while "/impl/" not in frame.f_code.co_filename and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


@pytest.mark.parametrize("method", ["none", "dspark", "mtp"])
def test_no_step_of_the_engine_computes_in_another_type_than_it_writes(method: str) -> None:
    runner = boot_runner(speculative=method)
    prompts = random_prompts(3, 150, seed=5)
    requests = [
        make_request(p, temperature=float(i), top_k=4 * i, logprobs=2, max_tokens=9) for i, p in enumerate(prompts)
    ]
    with OutTypes() as seen:
        generate(runner, requests)
    assert not seen.found


def test_a_shift_into_bytes_is_found() -> None:
    workspace = Workspace("cpu")
    with OutTypes() as seen, workspace.scope():
        torch.bitwise_right_shift(torch.ones(4, dtype=torch.int32), 1, out=workspace.empty((4,), torch.uint8))
    assert len(seen.found) == 1
