"""A tape: the tensor operations of a function, recorded once on the CPU and replayed without its Python.

The function's Python runs four times. A warm-up lets caches fill; a watched run gives every temporary
its lifetime; a plain run gives the reference; a placed run, with each temporary already at its place
in the arena, writes the tape; a replay over poisoned memory must then give the reference bit for bit.
Storages that exist before the run are referenced where they are, and restored after each of the runs,
so that capture leaves no trace in them. Rules and traps: `impl.engine.graphs`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from impl.engine.arena import Arena, Place, footprint
from impl.engine.out_variants import out_call
from impl.engine.recording import Call, CaptureError, Recorder, WrittenStorages, op_leaves, site, storage_key

_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}


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
            raise CaptureError(f"{func} at {site()} was not what the run before did here: {_STATE}")
        if skipped:
            return out
        operands, options = tree_map(self._twin, (args, kwargs))
        handles: dict[int, torch.UntypedStorage] = {}

        def handle(result: Any) -> Any:
            if not isinstance(result, Tensor) or storage_key(result) not in fresh:
                return result
            storage = handles.get(storage_key(result))
            if storage is not None:
                return _tensor_in(storage, result)
            moved = result
            if result.untyped_storage().nbytes():
                block = len(self.blocks)
                if block >= len(self._places):
                    raise CaptureError(f"{func} at {site()} allocates what the run before did not: {_STATE}")
                moved = _tensor_in(self._arena.storage(self._places[block], result.untyped_storage().nbytes()), result)
            self._adopt(moved)
            handles[storage_key(result)] = moved.untyped_storage()
            return moved

        settled = tree_map(handle, out)
        if not fresh:
            self.steps.append(Step(func, operands, options))
        elif func.overloadpacket.__name__ not in _ALLOCATIONS:
            self._write_fresh(func, operands, options, out, settled, fresh)
        return settled

    def _write_fresh(self, func: Any, operands: Any, options: Any, out: Any, settled: Any, fresh: set[int]) -> None:
        """Append the step that writes the fresh results in place: with out=, if its bits are the same."""
        results = op_leaves(out)
        wanted = [i for i, leaf in enumerate(results) if isinstance(leaf, Tensor) and storage_key(leaf) in fresh]
        targets = [self._twin(leaf) for i, leaf in enumerate(op_leaves(settled)) if i in wanted]
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
    end = len(recorder.calls)
    if any(recorder.blocks[block].last < end for block in placer.survivors()):
        gc.collect()
    if any(recorder.blocks[block].last < end for block in placer.survivors()):
        raise CaptureError(f"a tensor outlives this run of the function and not the one before: {_STATE}")


def _check_bits(got: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for index, (ours, reference) in enumerate(zip(got, expected, strict=True)):
        if not same_bits(ours, reference):
            what = f"{str(reference.dtype).removeprefix('torch.')} {list(reference.shape)}"
            raise CaptureError(
                f"replay differs from eager in result {index} ({what}): "
                "does the function keep state in Python, or read memory it never wrote?"
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
    results = op_leaves(func(*args, **kwargs))
    for index, target in zip(wanted, targets, strict=True):
        target.copy_(results[index])


def _tensor_in(storage: torch.UntypedStorage, like: Tensor, offset: int | None = None) -> Tensor:
    """A tensor of the same type and geometry in another storage; `offset` in elements."""
    at = like.storage_offset() if offset is None else offset
    return torch.empty(0, dtype=like.dtype).set_(storage, at, like.shape, like.stride())
