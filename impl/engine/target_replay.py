"""The target's forward over a decode round as captured graphs, one a batch size.

Only steps of decodes are replayed: each request has 1 + K rows, of which those without a draft are padding. A step with
a prompt's chunk runs eagerly.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine.graphs import GraphCache
from impl.engine.pages import LayerPages
from impl.engine.scheduler import Plan
from impl.engine.step import PageShape, Step, decode_step
from impl.handshake import Markers
from impl.model.target import Target, TargetOutput


class Replayed(NamedTuple):
    step: Step
    output: TargetOutput
    n_padded: int
    """Requests the graph has rows for."""


class TargetReplay:
    """Captures at construction, largest batch first; pages, block tables and the workspace must stay where they are."""

    mixes_rows = False
    """Whether a graph may hold decode and prefill rows: only decodes are captured."""

    def __init__(
        self,
        dims: Dims,
        width: int,
        target: Target,
        block_tables: dict[str, Tensor],
        shape: PageShape,
        pages: list[LayerPages],
        markers: Markers,
        device: torch.device,
    ) -> None:
        """`width`: rows a request, 1 + K."""
        self.width, self.device = width, device
        n = min(dims.max_num_seqs, dims.max_num_batched_tokens // width)
        # Column by column: first position, rows, line of the block tables, then the row's tokens. 0 rows is padding.
        self._inputs = torch.zeros((n, 3 + width), dtype=torch.int64, device=device)
        self.sizes = sorted({n, *(1 << i for i in range(0, n.bit_length(), 2) if 1 << i <= n)} - {0}, reverse=True)
        self.graphs = GraphCache(device, markers)
        self._results: dict[int, tuple[Step, TargetOutput]] = {}
        for size in self.sizes:
            self.graphs.get_or_capture(size, partial(self._forward, size, target, block_tables, shape, pages))

    def _forward(
        self, size: int, target: Target, block_tables: dict[str, Tensor], shape: PageShape, pages: list[LayerPages]
    ) -> Tensor:
        first, n_rows, rows = self._inputs[:size, :3].unbind(1)
        step = decode_step(self._inputs[:size, 3:], first, n_rows, rows, block_tables, shape)
        output = target.forward(step, pages)
        # Assigned when captured, for this size alone: these are the tensors every replay of it writes.
        self._results[size] = step, output
        return output.hidden

    def run(self, plan: Plan) -> Replayed | None:
        """The step of a plan of decodes; None for a plan that no graph is for."""
        n = len(plan.chunks)
        if not n or plan.n_decode < n or not self.sizes or n > self.sizes[0]:
            return None
        size = min(size for size in self.sizes if size >= n)
        lines = []
        for chunk in plan.chunks:
            request = chunk.request
            ids = request.tokens(chunk.start, chunk.end - chunk.n_drafted) + request.drafts[: chunk.n_drafted]
            lines.append([chunk.start, len(ids), request.row or 0, *ids, *[0] * (self.width - len(ids))])
        lines += [[0] * (3 + self.width)] * (size - n)
        self._inputs[:size] = torch.tensor(lines).to(self.device)
        self.graphs.get_or_capture(size, _captured_already).run()
        return Replayed(*self._results[size], size)

    @property
    def nbytes(self) -> int:
        """Bytes of the graphs' pool and their input buffer."""
        return self.graphs.pool.nbytes + self._inputs.nbytes


def _captured_already() -> None:
    raise AssertionError("every size is captured when the engine boots")
