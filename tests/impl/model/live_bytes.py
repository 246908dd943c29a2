"""A count of live storages that owes nothing to the engine's own."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Peak of bytes in storages first seen while active."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.sizes = {t.untyped_storage()._cdata: 0 for t in known}
        self.keep = known
        self.live = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in self.sizes:
                storage = t.untyped_storage()
                self.sizes[storage._cdata] = storage.nbytes()
                self.live += storage.nbytes()
                weakref.finalize(storage, self.drop, storage._cdata)
        self.peak = max(self.peak, self.live)
        return out

    def drop(self, key: int) -> None:
        self.live -= self.sizes.pop(key)
