"""The DSpark draft's passes as captured graphs, one a batch size: query rows, layers, and the drawing of K drafts.

As in vLLM up to 0.26, the target and the context insertion stay eager around them. A smaller batch is padded with
copies of its last request, which write what that request writes.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine.graphs import GraphCache
from impl.engine.pages import LayerPages
from impl.engine.round import Round
from impl.handshake import Markers
from impl.model.draft import Draft
from impl.ops.sampling import SamplingRows

Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, SamplingRows]


class DraftReplay:
    """Captures at construction, largest batch first; pages, block tables and the workspace must stay where they are."""

    def __init__(
        self,
        dims: Dims,
        draft: Draft,
        block_tables: dict[str, Tensor],
        pages: list[LayerPages],
        markers: Markers,
        device: torch.device,
    ) -> None:
        n = dims.max_num_seqs
        ints = torch.zeros((6, n), dtype=torch.int64, device=device)
        self._ints = ints
        """Anchor, first position, limit, request row, slot, seed. Limits of 0 make the capture write padding only."""
        self._temperature = torch.zeros(n, dtype=torch.float32, device=device)
        # Powers of four: on a CPU each size costs most of a second of the boot.
        self.sizes = sorted({n, *(1 << i for i in range(0, n.bit_length(), 2) if 1 << i <= n)}, reverse=True)
        self.graphs = GraphCache(device, markers)
        for size in self.sizes:
            inputs = self._inputs(size)
            self.graphs.get_or_capture(size, partial(_passes, draft, inputs, block_tables, pages))

    def _inputs(self, size: int) -> Inputs:
        anchors, first, limits, rows, slots, seeds = self._ints[:, :size].unbind()
        none = self._temperature[:size]  # a draft is drawn without cuts, so these are not read
        how = SamplingRows(self._temperature[:size], rows, none, seeds, first, greedy=False, cut=False)
        return anchors, first, limits, rows, slots, how

    def propose(self, round_: Round) -> Tensor:
        """int64 [R, K], overwritten by the next replay."""
        n = round_.first.shape[0]
        size = min(size for size in self.sizes if size >= n)
        r = round_
        values = torch.stack((r.anchors, r.first, r.limits, r.request_rows, r.slots, r.how.seed))
        for place, source in ((slice(0, n), slice(0, n)), (slice(n, size), slice(n - 1, n))):
            self._ints[:, place] = values[:, source]
            self._temperature[place] = r.how.temperature[source]
        tokens: Tensor = self.graphs.get_or_capture(size, _captured_already).run()
        return tokens[:n]

    @property
    def nbytes(self) -> int:
        """Bytes of the graphs' pool and their input buffers."""
        return self.graphs.pool.nbytes + self._ints.nbytes + self._temperature.nbytes


def _passes(draft: Draft, inputs: Inputs, block_tables: dict[str, Tensor], pages: list[LayerPages]) -> Tensor:
    return draft.propose(*inputs, block_tables, pages).tokens


def _captured_already() -> None:
    raise AssertionError("every size is captured when the engine boots")
