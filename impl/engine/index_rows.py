"""Rows of dense compressed indices: which entries each token of a step reads, built once a step for all layers.

Decode rows hold global slots, prefill rows local indices that each dense layer maps for itself, as vLLM does on its
packed path. Persistent buffers, allocated with the pages. Source: deepseek_v4_dspark.md sections 3.4 and 3.5.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from impl.dims import Dims
from impl.engine.recording import CaptureError, Recorder
from impl.engine.step import Step
from impl.handshake import Markers
from impl.ops import dispatch
from impl.ops.index_map import fill_local, to_global
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet

SHARED, IN_PLACE = "c128a_topk_shared", "c128_indices_in_place"
DOUBLE_MAP, ROW_CORRUPT = "c128_double_map", "c128_row_corrupt"


class GlobalRows(NamedTuple):
    """What a dense layer reads: global slots by token."""

    decode: Tensor
    """int32 [n_decode, W]: slots, -1 where there is none"""
    prefill: Tensor
    """int32 [N - n_decode, W]"""
    lens: Tensor
    """int32 [N]: how many slots of each row count"""
    columns: Tensor
    """int32 [W]: 0..W-1"""

    def slots(self, part: slice, hidden: Tensor, workspace: Workspace) -> Tensor:
        """Slots of tokens `part`, int64 [n * W] in the present scope; `hidden`, bool [n, W], marks those not there."""
        out = workspace.empty(hidden.shape, torch.int64)
        n_decode = self.decode.shape[0]
        first, last = min(part.start, n_decode), min(part.stop, n_decode)
        if last > first:
            out[: last - first].copy_(self.decode[first:last])
        if part.stop > last:
            out[last - first :].copy_(self.prefill[part.start + last - first - n_decode : part.stop - n_decode])
        torch.lt(out, 0, out=hidden)
        with workspace.scope():
            beyond = workspace.empty(hidden.shape, torch.bool)
            hidden.logical_or_(torch.ge(self.columns, self.lens[part][:, None], out=beyond))
        return out.clamp_min_(0).view(-1)


class IndexRows:
    """The buffers of one engine and their content for the step being computed: `build` it before the layers run."""

    def __init__(
        self,
        dims: Dims,
        toggles: ToggleSet,
        markers: Markers,
        device: torch.device | str,
        *,
        mixed_graphs: bool = False,
        local_readers: Sequence[int] = (),
    ) -> None:
        """`mixed_graphs`: whether a captured graph may hold decode and prefill rows. `local_readers`: dense layers that
        take a path which reads local indices."""
        self.shape, self.ratio, self.markers = dims.name, dims.large_ratio, markers
        self.per_page = dims.block_tokens // self.ratio
        shape = (dims.max_num_batched_tokens, dims.index_row_width)
        self.columns = torch.arange(shape[1], dtype=torch.int32, device=device)
        self.lens = torch.zeros(shape[0], dtype=torch.int32, device=device)
        """Rows beyond the step's hold what earlier steps left: a reader takes its own rows only."""
        self.shared = toggles.on(SHARED) and not mixed_graphs
        if toggles.on(SHARED) and mixed_graphs:
            markers.refuse(SHARED, "one captured graph mixes decode and prefill rows: it would freeze where they part")
        self.decode = torch.full(shape, -1, dtype=torch.int32, device=device)
        self.prefill = self.decode if self.shared else torch.full_like(self.decode, -1)
        self.in_place = toggles.on(IN_PLACE) and not local_readers
        if toggles.on(IN_PLACE) and local_readers:
            markers.refuse(IN_PLACE, f"layers {', '.join(map(str, local_readers))} read local indices")
        self.double_map = toggles.on(DOUBLE_MAP)
        self.corrupt_every = int(toggles.argument(ROW_CORRUPT)) if toggles.on(ROW_CORRUPT) else 0
        self.maps = 0
        """Maps of prefill rows that layers have launched in this step."""
        self._step: weakref.ref[Step] | None = None
        """The step that was built last; not held, or its tables would live until the next one."""
        self._mapped = False

    @property
    def nbytes(self) -> int:
        """Bytes of the buffers that there are, whatever the toggle says of them."""
        buffers = (self.decode, self.prefill, self.lens, self.columns)
        return sum({b.untyped_storage()._cdata: b.untyped_storage().nbytes() for b in buffers}.values())

    @torch.no_grad()
    def build(self, step: Step, workspace: Workspace) -> None:
        """Fill the rows of a step. What an earlier step left is gone: its layers must have run.

        Raises CaptureError where a graph would freeze the place at which decode and prefill rows part.
        """
        n, n_decode = step.n_tokens, step.n_decode
        self._step, self._mapped, self.maps = weakref.ref(step), False, 0
        decode, prefill = self._parts(step)
        visible, table = step.visible[self.ratio], step.block_tables["full"]
        whole = None if self.corrupt_every else dispatch.kernel("topk_metadata", visible.device, self.shape, n)
        if whole is not None:
            lens = self.lens[:n]
            whole(visible, table, step.request_rows, self.per_page, decode, prefill, lens, self.columns, workspace)
            return
        for rows, part in ((decode, slice(0, n_decode)), (prefill, slice(n_decode, n))):
            fill_local(self.columns, visible[part], rows, self.lens[part], workspace)
            if self.corrupt_every:
                self._corrupt(rows, step.positions[part], workspace)
        self._to_global(step, slice(0, n_decode), decode, decode, workspace)

    def _to_global(self, step: Step, part: slice, local: Tensor, out: Tensor, workspace: Workspace) -> None:
        """Slots of the local indices of tokens `part`; `out` may be `local`."""
        to_slots = dispatch.kernel("index_map", local.device, self.shape, local.shape[0]) or to_global
        table, of_token = step.block_tables["full"], step.request_rows[part]
        to_slots(local, table, of_token, self.per_page, out, self.lens[part], workspace)

    def _parts(self, step: Step) -> tuple[Tensor, Tensor]:
        """Where decode rows are and where prefill rows are: exact parts of one buffer, or the fronts of two."""
        n, n_decode = step.n_tokens, step.n_decode
        if not self.shared:
            return self.decode[:n_decode], self.prefill[: n - n_decode]
        if 0 < n_decode < n and _capturing():
            raise CaptureError(f"{SHARED}: a graph of {n_decode} decode and {n - n_decode} prefill rows freezes both")
        self.markers.take(SHARED)
        return self.decode[:n_decode], self.decode[n_decode:n]

    def for_layer(self, step: Step, workspace: Workspace) -> GlobalRows:
        """What one dense layer reads; its prefill rows are mapped into storage of their own, or once for all layers.

        Raises RuntimeError for a step that was not built last.
        """
        decode, local = self._parts_of(step)
        lens = self.lens[: step.n_tokens]
        if not local.shape[0]:
            return GlobalRows(decode, local, lens, self.columns)
        if not self.in_place:
            mapped = torch.empty(local.shape, dtype=torch.int32, device=local.device)
            self._map(step, local, mapped, workspace)
            return GlobalRows(decode, mapped, lens, self.columns)
        if not self._mapped:
            self._map(step, local, local, workspace)
            self._mapped = True
        self.markers.take(IN_PLACE)
        return GlobalRows(decode, local, lens, self.columns)

    def local(self, step: Step) -> Tensor:
        """Prefill rows for a reader of local indices, int32 [N - n_decode, W]. RuntimeError if they are global now."""
        _, prefill = self._parts_of(step)
        if self._mapped:
            raise RuntimeError("the prefill rows of this step are global already: name their local readers first")
        return prefill

    def _parts_of(self, step: Step) -> tuple[Tensor, Tensor]:
        if self._step is None or self._step() is not step:
            raise RuntimeError("the index rows hold another step: build them before its layers run")
        first = step.n_decode if self.shared else 0
        return self.decode[: step.n_decode], self.prefill[first : first + step.n_tokens - step.n_decode]

    def _map(self, step: Step, local: Tensor, out: Tensor, workspace: Workspace) -> None:
        part = slice(step.n_decode, step.n_tokens)
        self._to_global(step, part, local, out, workspace)
        self.maps += 1
        if self.double_map:
            self._to_global(step, part, out, out, workspace)
            self.markers.take(DOUBLE_MAP)

    def _corrupt(self, rows: Tensor, positions: Tensor, workspace: Workspace) -> None:
        """The planted defect: the row of every Nth position, where it has an entry, is zeroed to its end."""
        with workspace.scope():
            turn = torch.remainder(positions, self.corrupt_every, out=workspace.empty(positions.shape, torch.int64))
            hit = (turn == self.corrupt_every - 1)[:, None] & (rows[:, :1] >= 0)
            rows.masked_fill_(hit, 0)
        self.markers.take(ROW_CORRUPT)


def _capturing() -> bool:
    """Whether operations are being recorded, on the CPU or on CUDA."""
    if any(isinstance(mode, Recorder) for mode in _get_current_dispatch_mode_stack()):
        return True
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


__all__ = ["GlobalRows", "IndexRows"]
