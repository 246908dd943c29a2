"""One watched run of a function: its tensor operations, its temporaries, and what a capture must refuse."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from impl.engine.arena import Lifetime

_TORCH = Path(torch.__file__).parent
"""As frames name it: not resolved, since an environment may be reached by a link."""
_OWN = {Path(__file__), Path(__file__).with_name("tape.py")}
_MOVES_STORAGE = {"set_", "resize_", "resize_as_", "_resize_output_"}
_HOST_READS = {Tensor.tolist: "Tensor.tolist", Tensor.numpy: "Tensor.numpy", Tensor.__array__: "numpy.asarray"}


class CaptureError(RuntimeError):
    """The function cannot be captured, or its replay would not be what eager computes."""


class Call(NamedTuple):
    """One operation as its replay freezes it; two runs must agree on all of it."""

    name: str
    inputs: tuple[Any, ...]
    """Per argument: of a tensor its block (None = existed before), dtype and geometry; else its repr."""
    outputs: tuple[Any, ...]


@dataclass
class Block:
    """The storage of one temporary."""

    nbytes: int
    born: int
    last: int


class HostReads(TorchFunctionMode):
    """Refuses reads of tensor values that never reach the dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _HOST_READS:
            raise refused(_HOST_READS[func], "reads values on the host")
        return func(*args, **(kwargs or {}))


class WrittenStorages:
    """The storages from before capture that the function writes, as they were before its first write."""

    def __init__(self) -> None:
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}

    def save(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._saved:
            all_bytes = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._saved[storage._cdata] = all_bytes, all_bytes.clone()

    def restore(self) -> None:
        for now, before in self._saved.values():
            now.copy_(before)

    def contents(self) -> list[Tensor]:
        return [now.clone() for now, _ in self._saved.values()]


class Recorder(TorchDispatchMode):
    """Watches one run of a function: its operations, its temporaries and their lifetimes.

    Holds no tensor of the run, so that its code sees the reference counts it sees in eager.
    """

    def __init__(self, written: WrittenStorages | None, *, strict: bool = True) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.blocks: list[Block] = []
        self.peak_bytes = 0
        """Most bytes of temporaries that Python held at one time: what eager needs."""
        self._written = written
        self._strict = strict
        self._live_bytes = 0
        self._alive: dict[int, tuple[weakref.ref[Any], int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Otherwise torch wraps the dispatcher hook and imports its compiler, seconds at each boot."""
        return False

    def watch(self, fn: Callable[[], Any]) -> Any:
        """Run `fn` and return what it returns. Blocks that outlive the run live to its end."""
        with torch.inference_mode(False), torch.no_grad():
            if self._strict:
                with HostReads(), self:
                    outputs = fn()
            else:
                with self:
                    outputs = fn()
        gc.collect(0)
        for block in self.survivors():
            self.blocks[block].last = len(self.calls)
        return outputs

    def survivors(self) -> dict[int, weakref.ref[Any]]:
        """Blocks whose storages are still referenced: outputs, and what the function stored away."""
        return {block: ref for ref, block in self._alive.values()}

    def lifetimes(self) -> list[Lifetime]:
        return [Lifetime(block.nbytes, block.born, block.last) for block in self.blocks]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = op_leaves(*args, *kwargs.values())
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self._strict:
            refuse(func, args, kwargs)
        if self._written is not None and func._schema.is_mutable:
            for tensor in _written_by(func, args, kwargs):
                if self._block(tensor) is None:
                    self._written.save(tensor)
        described = tuple(self._describe(leaf) for leaf in leaves)
        sizes = [tensor.untyped_storage().nbytes() for tensor in inputs]
        out = func(*args, **kwargs)
        if self._strict and sizes != [tensor.untyped_storage().nbytes() for tensor in inputs]:
            raise refused(str(func), "resizes its out= tensor: allocate it at its size")
        known = {storage_key(tensor) for tensor in inputs} | self._alive.keys()
        outputs = [leaf for leaf in op_leaves(out) if isinstance(leaf, Tensor)]
        fresh = {storage_key(tensor) for tensor in outputs} - known
        skipped = bool(outputs) and not func._schema.is_mutable and not fresh
        if not skipped:
            for tensor in inputs:
                block = self._block(tensor)
                if block is not None:
                    self.blocks[block].last = len(self.calls)
        out = self._settle(func, args, kwargs, out, fresh, skipped)
        self.calls.append(Call(str(func), (*described, *kwargs), tuple(map(self._describe, op_leaves(out)))))
        return out

    def _settle(self, func: Any, args: Any, kwargs: Any, out: Any, fresh: set[int], skipped: bool) -> Any:
        """Register the fresh storages among the results; returns the results the function gets."""
        for tensor in op_leaves(out):
            if isinstance(tensor, Tensor) and storage_key(tensor) in fresh and self._block(tensor) is None:
                self._adopt(tensor)
        return out

    def _adopt(self, tensor: Tensor) -> int:
        """A new block for the storage of `tensor`, born now."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        block = len(self.blocks)
        self._alive[key] = weakref.ref(storage, lambda _: self._forget(key)), block
        self.blocks.append(Block(size, len(self.calls), len(self.calls)))
        self._live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self._live_bytes)
        return block

    def _forget(self, key: int) -> None:
        _, block = self._alive.pop(key)
        self._live_bytes -= self.blocks[block].nbytes

    def _block(self, tensor: Tensor) -> int | None:
        known = self._alive.get(storage_key(tensor))
        return None if known is None else known[1]

    def _describe(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return repr(leaf)
        block = self._block(leaf)
        geometry = (str(leaf.dtype), tuple(leaf.shape), leaf.stride())
        return (block, *geometry) if block is None else (block, *geometry, leaf.storage_offset())


def op_leaves(*values: Any) -> list[Any]:
    """Arguments or results of an operation, its lists taken apart; they nest no deeper."""
    return [leaf for value in values for leaf in (value if isinstance(value, list | tuple) else (value,))]


def storage_key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bound(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs


def _written_by(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    bound = _bound(func, args, kwargs)
    names = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [leaf for name in names for leaf in op_leaves(bound.get(name)) if isinstance(leaf, Tensor)]


def refuse(func: Any, args: Any, kwargs: Any) -> None:
    """Raise for operations whose replay would differ: host reads, shapes that depend on data, random numbers."""
    bound = _bound(func, args, kwargs)
    name = func.overloadpacket.__name__
    if name in _MOVES_STORAGE:
        raise refused(str(func), "moves or resizes a storage")
    no_dropout = any(a.name == "dropout_p" for a in func._schema.arguments) and not bound.get("dropout_p", 0.0)
    if torch.Tag.nondeterministic_seeded in func.tags and not no_dropout:
        raise refused(str(func), "draws random numbers: use impl.ops.sampling's counter-based noise")
    if torch.Tag.data_dependent_output in func.tags:
        raise refused(str(func), "reads values on the host")
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        masks = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in bound["indices"])
        if masks and not (name != "index" and bound["values"].numel() == 1):
            raise refused(str(func), "indexes by a mask, so its shape depends on data: use torch.where")
    elif torch.Tag.dynamic_output_shape in func.tags and bound.get("output_size") is None:
        raise refused(str(func), "has a shape that depends on data")


def refused(op: str, why: str) -> CaptureError:
    return CaptureError(f"{op} {why}; it cannot run inside a captured region (at {site()})")


def site() -> str:
    """The innermost frame that is neither torch's nor the capture's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path not in _OWN and not path.is_relative_to(_TORCH):
            return f"{path.name}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "unknown"
