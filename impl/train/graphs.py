"""A step's work on a GPU as CUDA graphs, one for each shape: replaying one takes a single launch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

WARM_UPS = 2
"""Runs before a capture: libraries open their handles, compilers compile."""


Work = Callable[..., Any]
"""Differentiates something: takes tensors, and constants by name; adds to the parameters' gradients and returns
tensors, in tuples and dictionaries."""


class Timed(Protocol):
    """Work that says how long it has been setting itself up."""

    setup_seconds: float

    def __call__(self, *tensors: Tensor, **constants: Any) -> Any: ...


class Eager:
    """The work as it is."""

    setup_seconds = 0.0

    def __init__(self, work: Work) -> None:
        self.work = work

    def __call__(self, *tensors: Tensor, **constants: Any) -> Any:
        return self.work(*tensors, **constants)


@dataclass
class Capture:
    graph: torch.cuda.CUDAGraph
    inputs: Sequence[Tensor]
    outputs: Any


class Graphed:
    """The work as one graph for each set of shapes and constants; eager for good once a capture has failed.

    Parameters must keep their storage, and their gradients too: they are made here, and zeroed, never dropped.
    """

    def __init__(self, work: Work, parameters: Sequence[Tensor], plain: Work | None = None) -> None:
        """`plain`: the work without a compiler, for when that fails."""
        self.work, self.plain = work, plain
        self.parameters = parameters
        self.captures: dict[Any, Capture] = {}
        self.pool: Any = None
        self.side: Any = None
        self.broken = False
        self.setup_seconds = 0.0
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)

    def __call__(self, *tensors: Tensor, **constants: Any) -> Any:
        if self.broken:
            return self.work(*tensors, **constants)
        key = (*(tuple(t.shape) for t in tensors), *constants.items())
        if key not in self.captures:
            started = time.monotonic()
            self.set_up(key, tensors, constants)
            self.setup_seconds += time.monotonic() - started
            if self.broken:
                return self.work(*tensors, **constants)
        capture = self.captures[key]
        for own, given in zip(capture.inputs, tensors, strict=True):
            own.copy_(given)
        capture.graph.replay()
        # The next replay of any graph may overwrite what this one returned.
        return tree_map_only(Tensor, Tensor.clone, capture.outputs)

    def set_up(self, key: Any, tensors: Sequence[Tensor], constants: dict[str, Any]) -> None:
        """Capture the work, leaving the gradients as they were."""
        before = [p.grad.clone() for p in self.parameters if p.grad is not None]
        inputs = [t.clone() for t in tensors]
        try:
            self.warm_up(lambda: self.work(*inputs, **constants))
            self.captures[key] = self.capture(inputs, constants)
        except Exception as error:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            first_line = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            if self.plain is not None:
                print(f"compiled step failed, going on without a compiler: {first_line}", file=sys.stderr)
                self.work, self.plain = self.plain, None
                self.captures.clear()
                self.restore(before)
                self.set_up(key, tensors, constants)
            else:
                print(f"CUDA graph failed, going on without: {first_line}", file=sys.stderr)
                self.broken = True
        self.restore(before)

    def warm_up(self, run: Callable[[], Any]) -> None:
        if self.side is None:
            self.side = torch.cuda.Stream()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream().wait_stream(self.side)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the capture has a pool of its own

    def capture(self, inputs: Sequence[Tensor], constants: dict[str, Any]) -> Capture:
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            outputs = self.work(*inputs, **constants)
        return Capture(graph, inputs, outputs)

    def restore(self, before: Sequence[Tensor]) -> None:
        for parameter, gradient in zip(self.parameters, before, strict=True):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.copy_(gradient)
