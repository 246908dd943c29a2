"""A tape: the tensor operations of a function, recorded once on the CPU and replayed without its Python.

The function runs five times in all. A warm-up lets caches fill; a watched run gives every temporary
its lifetime; a plain run gives the reference; a placed run, with each temporary already at its place
in the arena, writes the tape; a replay over poisoned memory must then give the reference bit for bit.
Storages that exist before the run are referenced where they are, and restored after each of the runs,
so that capture leaves no trace in them. Rules and traps: `impl.engine.graphs`.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from impl.engine.arena import Arena, Lifetime, Place, footprint
from impl.engine.out_variants import out_call

aten = torch.ops.aten
_TORCH = Path(torch.__file__).resolve().parent
_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
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
            raise _refused(_HOST_READS[func], "reads values on the host")
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

    def watch(self, fn: Callable[[], Any]) -> Any:
        """Run `fn` and return what it returns. Blocks that outlive the run live to its end."""
        with torch.inference_mode(False), torch.no_grad():
            if self._strict:
                with HostReads(), self:
                    outputs = fn()
            else:
                with self:
                    outputs = fn()
        gc.collect()
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
        leaves = tree_leaves((args, kwargs))
        inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self._strict:
            _refuse(func, args, kwargs)
        if self._written is not None and func._schema.is_mutable:
            for tensor in _written_by(func, args, kwargs):
                if self._block(tensor) is None:
                    self._written.save(tensor)
        described = tuple(self._describe(leaf) for leaf in leaves)
        sizes = [tensor.untyped_storage().nbytes() for tensor in inputs]
        out = func(*args, **kwargs)
        if self._strict and sizes != [tensor.untyped_storage().nbytes() for tensor in inputs]:
            raise _refused(str(func), "resizes its out= tensor: allocate it at its size")
        known = {_key(tensor) for tensor in inputs} | self._alive.keys()
        outputs = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        fresh = {_key(tensor) for tensor in outputs} - known
        skipped = bool(outputs) and not func._schema.is_mutable and not fresh
        if not skipped:
            for tensor in inputs:
                block = self._block(tensor)
                if block is not None:
                    self.blocks[block].last = len(self.calls)
        out = self._settle(func, args, kwargs, out, fresh, skipped)
        self.calls.append(Call(str(func), (*described, *kwargs), tuple(map(self._describe, tree_leaves(out)))))
        return out

    def _settle(self, func: Any, args: Any, kwargs: Any, out: Any, fresh: set[int], skipped: bool) -> Any:
        """Register the fresh storages among the results; returns the results the function gets."""
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and _key(tensor) in fresh and self._block(tensor) is None:
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
        known = self._alive.get(_key(tensor))
        return None if known is None else known[1]

    def _describe(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return repr(leaf)
        block = self._block(leaf)
        geometry = (str(leaf.dtype), tuple(leaf.shape), leaf.stride())
        return (block, *geometry) if block is None else (block, *geometry, leaf.storage_offset())


class Placer(Recorder):
    """Runs the function once more with every temporary at its place, and writes the tape.

    The function gets handles: tensors with storages of their own over arena memory. The tape refers to
    the same bytes through the arena, so that a handle dies when Python drops it.
    """

    def __init__(self, written: WrittenStorages, calls: Sequence[Call], arena: Arena, places: Sequence[Place]) -> None:
        super().__init__(written)
        self.steps: list[Step] = []
        self._expected = calls
        self._arena = arena
        self._places = places

    def watch(self, fn: Callable[[], Any]) -> Any:
        outputs = super().watch(fn)
        if len(self.calls) != len(self._expected):
            raise CaptureError(f"{len(self._expected)} operations in one run, {len(self.calls)} in the next: {_STATE}")
        return outputs

    def _settle(self, func: Any, args: Any, kwargs: Any, out: Any, fresh: set[int], skipped: bool) -> Any:
        if len(self.calls) >= len(self._expected) or self._expected[len(self.calls)].name != str(func):
            raise CaptureError(f"{func} at {_site()} was not what the run before did here: {_STATE}")
        if skipped:
            return out
        # Twins of the arguments first: a handle below may take over the bytes of none of them.
        operands, options = tree_map(self._twin, (args, kwargs))
        handles: dict[int, torch.UntypedStorage] = {}

        def handle(result: Any) -> Any:
            if not isinstance(result, Tensor) or _key(result) not in fresh:
                return result
            storage = handles.get(_key(result))
            if storage is not None:
                return _tensor_in(storage, result)
            moved = result
            if result.untyped_storage().nbytes():
                block = len(self.blocks)
                if block >= len(self._places):
                    raise CaptureError(f"{func} at {_site()} allocates what the run before did not: {_STATE}")
                moved = _tensor_in(self._arena.storage(self._places[block], result.untyped_storage().nbytes()), result)
            self._adopt(moved)
            handles[_key(result)] = moved.untyped_storage()
            return moved

        settled = tree_map(handle, out)
        if not fresh:
            self.steps.append(Step(func, operands, options))
        elif func.overloadpacket.__name__ not in _ALLOCATIONS:
            self._write_fresh(func, operands, options, out, settled, fresh)
        return settled

    def _write_fresh(
        self, func: Any, operands: Any, options: Any, out: Any, settled: Any, fresh: set[int]
    ) -> None:
        """Append the step that writes the fresh results in place: with out=, if its bits are the same."""
        results = tree_leaves(out)
        wanted = [i for i, leaf in enumerate(results) if isinstance(leaf, Tensor) and _key(leaf) in fresh]
        targets = [self._twin(leaf) for i, leaf in enumerate(tree_leaves(settled)) if i in wanted]
        values = [results[i] for i in wanted]
        if not func._schema.is_mutable and len(wanted) == len(results):
            found = out_call(func, operands, options, targets)
            if found is not None and _writes(Step(*found), targets, values):
                self.steps.append(Step(*found))
                return
        for target, value in zip(targets, values, strict=True):
            target.copy_(value)
        self.steps.append(Step(_copy_results, (func, operands, options, wanted, targets), {}))

    def _twin(self, leaf: Any) -> Any:
        """The same bytes without the handle's storage; other leaves, and tensors from before, as they are."""
        block = self._block(leaf) if isinstance(leaf, Tensor) else None
        if block is None:
            return leaf
        if not self.blocks[block].nbytes:
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype)
        place = self._places[block]
        offset = place.start // leaf.dtype.itemsize + leaf.storage_offset()
        twin = _tensor_in(self._arena.segments[place.segment].untyped_storage(), leaf, offset)
        twin = twin.conj() if leaf.is_conj() else twin
        return twin._neg_view() if leaf.is_neg() else twin


class Step(NamedTuple):
    """One call of the tape."""

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Tape:
    """What replays."""

    steps: list[Step]
    outputs: Any
    """What the function returned, in the memory every replay writes."""
    arena: Arena
    places: list[Place]
    temporaries_bytes: int
    """Sum over all temporaries, outputs among them."""
    eager_peak_bytes: int

    @property
    def nbytes(self) -> int:
        """Arena bytes that this tape uses."""
        return footprint(self.places)

    def run(self) -> None:
        with torch.no_grad():
            for op, args, kwargs in self.steps:
                op(*args, **kwargs)

    def poison(self) -> None:
        """Fill this tape's arena bytes with NaN: a replay reads nothing it has not written."""
        self.arena.poison(self.places)


def record(fn: Callable[[], Any], arena: Arena) -> Tape:
    """Capture `fn` into `arena`; see the module's docstring for the runs this takes. Raises CaptureError."""
    written = WrittenStorages()
    try:
        Recorder(written, strict=False).watch(fn)
        written.restore()
        recorder = Recorder(written)
        recorder.watch(fn)
        written.restore()
        with torch.inference_mode(False), torch.no_grad():
            expected = [leaf.clone() for leaf in tree_leaves(fn()) if isinstance(leaf, Tensor)]
        expected += written.contents()
        written.restore()
        places = arena.place(recorder.lifetimes())
        placer = Placer(written, recorder.calls, arena, places)
        outputs = placer.watch(fn)
        _check_same(recorder, placer)
        written.restore()
        temporaries = sum(block.nbytes for block in recorder.blocks)
        tape = Tape(placer.steps, outputs, arena, places, temporaries, recorder.peak_bytes)
        tape.poison()
        tape.run()
        got = [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor)] + written.contents()
        _check_bits(got, expected)
    finally:
        written.restore()
    for block, storage in placer.survivors().items():
        arena.hold(places[block], storage)
    return tape


_STATE = "the function must do the same each time, with the same Python numbers (does it keep state, or count?)"


def _check_same(recorder: Recorder, placer: Placer) -> None:
    for index, (before, now) in enumerate(zip(recorder.calls, placer.calls, strict=True)):
        if before != now:
            raise CaptureError(f"operation {index} was {before} and is now {now}: {_STATE}")
    if recorder.lifetimes() != placer.lifetimes():
        raise CaptureError("a tensor outlives one run of the function and not the other")


def _check_bits(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for index, (ours, reference) in enumerate(zip(got, expected, strict=True)):
        if not same_bits(ours, reference):
            what = f"{str(reference.dtype).removeprefix('torch.')} {list(reference.shape)}"
            raise CaptureError(
                f"replay differs from eager in result {index} ({what}): does the function read memory it never wrote?"
            )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal shapes, types and bytes; NaNs compare by their bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(*(t.resolve_conj().resolve_neg().reshape(-1).contiguous().view(torch.uint8) for t in (a, b)))


def _writes(step: Step, targets: Sequence[Tensor], values: Sequence[Tensor]) -> bool:
    """Whether a step writes exactly these values into its targets, which it must not resize."""
    before = [(target.data_ptr(), target.shape, target.stride()) for target in targets]
    try:
        step.op(*step.args, **step.kwargs)
    except RuntimeError:
        return False
    if before != [(target.data_ptr(), target.shape, target.stride()) for target in targets]:
        return False
    return all(same_bits(target, value) for target, value in zip(targets, values, strict=True))


def _copy_results(func: Any, args: Any, kwargs: Any, wanted: Sequence[int], targets: Sequence[Tensor]) -> None:
    """The step of an operation without a usable out= overload."""
    results = tree_leaves(func(*args, **kwargs))
    for index, target in zip(wanted, targets, strict=True):
        target.copy_(results[index])


def _tensor_in(storage: torch.UntypedStorage, like: Tensor, offset: int | None = None) -> Tensor:
    """A tensor of the same type and geometry in another storage; `offset` in elements."""
    at = like.storage_offset() if offset is None else offset
    return torch.empty(0, dtype=like.dtype).set_(storage, at, like.shape, like.stride())


def _key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _bound(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    return dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs


def _written_by(func: Any, args: Any, kwargs: Any) -> list[Tensor]:
    bound = _bound(func, args, kwargs)
    names = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [leaf for name in names for leaf in tree_leaves(bound.get(name)) if isinstance(leaf, Tensor)]


def _refuse(func: Any, args: Any, kwargs: Any) -> None:
    """Raise for operations whose replay would differ: host reads, shapes that depend on data, random numbers."""
    bound = _bound(func, args, kwargs)
    name = func.overloadpacket.__name__
    if name in _MOVES_STORAGE:
        raise _refused(str(func), "moves or resizes a storage")
    no_dropout = any(a.name == "dropout_p" for a in func._schema.arguments) and not bound.get("dropout_p", 0.0)
    if torch.Tag.nondeterministic_seeded in func.tags and not no_dropout:
        raise _refused(str(func), "draws random numbers: use impl.ops.sampling's counter-based noise")
    if torch.Tag.data_dependent_output in func.tags:
        raise _refused(str(func), "reads values on the host")
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        masks = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in bound["indices"])
        if masks and not (name != "index" and bound["values"].numel() == 1):
            raise _refused(str(func), "indexes by a mask, so its shape depends on data: use torch.where")
    elif torch.Tag.dynamic_output_shape in func.tags and bound.get("output_size") is None:
        raise _refused(str(func), "has a shape that depends on data")


def _refused(op: str, why: str) -> CaptureError:
    return CaptureError(f"{op} {why}; it cannot run inside a captured region (at {_site()})")


def _site() -> str:
    """The innermost frame that is neither torch's nor this module's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path != Path(__file__) and not path.is_relative_to(_TORCH):
            return f"{path.name}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "unknown"
