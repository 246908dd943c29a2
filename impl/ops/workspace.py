"""One persistent scratch buffer for the temporaries of attention, MoE and sampling.

vLLM keeps such a buffer for the life of the engine (about 800 MiB at flash size); ours is counted
the same way, as `workspace`, so that what is left in the activation peak is what the toggles move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch

ALIGNMENT = 64
MOST_VIEWS = 4096
"""Views remembered at most."""


class WorkspaceError(RuntimeError):
    """A locked workspace was asked for more than it holds."""


class Workspace:
    """A stack of uninitialized tensors cut from one byte buffer.

    Take tensors inside `with workspace.scope():`; leaving the scope gives them back, and the next
    scope hands out the same bytes. It grows until `lock()`, after which asking for more raises.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.buffer = torch.empty(0, dtype=torch.uint8, device=self.device)
        self.high_water = 0
        self.locked = False
        self._used = 0
        self._depth = 0
        self._views: dict[tuple[int, tuple[int, ...], torch.dtype], torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        return self.buffer.numel()

    @contextmanager
    def scope(self) -> Iterator[Workspace]:
        mark = self._used
        self._depth += 1
        try:
            yield self
        finally:
            self._used = mark
            self._depth -= 1

    def empty(self, shape: tuple[int, ...] | list[int], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialized contiguous tensor, valid until the enclosing scope ends."""
        if not self._depth:
            raise WorkspaceError("take workspace tensors inside `with workspace.scope():`")
        size = prod(shape) * dtype.itemsize
        start, end = self._used, self._used + size
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        self.high_water = max(self.high_water, self._used)
        if end > self.nbytes:
            if self.locked:
                raise WorkspaceError(f"workspace of {self.nbytes:,} bytes is asked for {end:,}; profile a larger step")
            # Tensors handed out earlier keep the old buffer alive until their scope ends.
            self.buffer = torch.empty(max(end, 2 * self.nbytes), dtype=torch.uint8, device=self.device)
            self._views.clear()
        # A decode step asks for the same cuts again and again; three views cost more than a small operation.
        key = (start, tuple(shape), dtype)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            view = self._views[key] = self.buffer[start:end].view(dtype).view(shape)
        return view

    def lock(self) -> None:
        """Shrink or grow to exactly the high-water mark and refuse to grow from now on."""
        if self._depth:
            raise WorkspaceError("lock the workspace outside any scope")
        self._views.clear()
        self.buffer = torch.empty(self.high_water, dtype=torch.uint8, device=self.device)
        self.locked = True

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lives in this buffer (such a tensor must never be reused as a layer's own)."""
        return tensor.untyped_storage()._cdata == self.buffer.untyped_storage()._cdata and self.nbytes > 0
