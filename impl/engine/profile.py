"""How many bytes a forward pass needs, measured: live storages on the CPU, the allocator on CUDA.

Components, as in vLLM's memory profiling (kv_profile.md section 5): weights; persistent buffers
allocated at load; the workspace; the peak of a step's activations above what lives before it; on
CUDA what the process holds outside the allocator. What remains of the budget is for KV pages.

vLLM up to 0.26 profiles a step without attention metadata, so it never sees what the query scratch and the index maps
allocate. Such operations run inside `serve_only()` here: they do not move the activation peak, and the most that they
allocate is a figure of its own, the run-time peak.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from impl.ops.workspace import Workspace

_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class PeakTensor:
    """One allocation alive at the peak of activations."""

    site: str
    """file:line function of the model's code that allocated it"""
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class MemoryProfile:
    """Bytes by component of one rank. None is unknown: this platform cannot answer."""

    source: str
    """`live-bytes` (storages seen by the dispatcher) or `cuda-allocator`"""
    weights_bytes: int
    persistent_bytes: int
    workspace_bytes: int
    peak_activation_bytes: int
    runtime_peak_bytes: int
    """Most bytes that serve-only operations allocated above what lived when their region began; not in the budget."""
    non_torch_bytes: int | None
    peak: tuple[PeakTensor, ...]
    runtime_peak: tuple[PeakTensor, ...]
    """What serve-only operations held at the run-time peak."""

    def available_bytes(self, requested_bytes: int) -> int:
        """What the budget leaves for KV pages; negative when it does not even hold the model."""
        used = self.weights_bytes + self.persistent_bytes + self.workspace_bytes + self.peak_activation_bytes
        return requested_bytes - used - (self.non_torch_bytes or 0)

    def to_json(self) -> dict[str, Any]:
        lists = {name: [asdict(tensor) for tensor in getattr(self, name)] for name in ("peak", "runtime_peak")}
        return {**asdict(self), **lists}


class Meter(Protocol):
    """What is told where serve-only operations begin and end."""

    def begin_serve_only(self) -> None: ...
    def end_serve_only(self) -> None: ...


_meters: list[Meter] = []
"""The meters at work; an engine that only serves has none."""


@contextmanager
def serve_only() -> Iterator[None]:
    """Around operations that vLLM up to 0.26 does not run in its profile. Regions do not nest."""
    meters = tuple(_meters)
    for meter in meters:
        meter.begin_serve_only()
    try:
        yield
    finally:
        for meter in meters:
            meter.end_serve_only()


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensor storages alive, kept op by op.

    Sizes of an op's arguments are read again after it, because `resize_` and `out=` grow storages in
    place. Scratch memory inside one C++ operator is not visible here. Inside `serve_only()` bytes count for
    `runtime_peak`, not for `peak`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.peak_tensors: tuple[PeakTensor, ...] = ()
        self.runtime_peak = 0
        self.runtime_tensors: tuple[PeakTensor, ...] = ()
        self._lived: int | None = None
        """Bytes alive when the serve-only region began; None outside one."""
        self._lived_keys: frozenset[int] = frozenset()
        self._storages: dict[int, tuple[weakref.ref[Any], PeakTensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch asks this of a mode; answering spares the import of its compiler, 2 s of every boot."""
        return False

    def __enter__(self) -> LiveBytes:
        super().__enter__()
        _meters.append(self)
        return self

    def __exit__(self, *exc: Any) -> None:
        _meters.remove(self)
        super().__exit__(*exc)

    def begin_serve_only(self) -> None:
        self._lived, self._lived_keys = self.live, frozenset(self._storages)

    def end_serve_only(self) -> None:
        self._lived = None

    def reset_peak(self) -> None:
        self.peak, self.runtime_peak = self.live, 0
        self.peak_tensors = self.runtime_tensors = ()

    def track(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that were made outside this mode."""
        for tensor in tensors:
            self._see(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors((out, args, kwargs)):
            self._see(tensor)
        if self._lived is not None:
            if self.live - self._lived > self.runtime_peak:
                self.runtime_peak = self.live - self._lived
                fresh = self._storages.keys() - self._lived_keys
                self.runtime_tensors = tuple(self._storages[key][1] for key in fresh)
        elif self.live > self.peak:
            self.peak = self.live
            self.peak_tensors = tuple(tensor for _, tensor in self._storages.values())
        return out

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        key = storage._cdata
        known = self._storages.get(key)
        if known is None:
            dead: weakref.ref[Any] = weakref.ref(storage, partial(self._forget, key))
            self._storages[key] = (dead, _describe(tensor, size))
            self.live += size
        elif known[1].bytes != size:
            self.live += size - known[1].bytes
            self._storages[key] = (known[0], _describe(tensor, size))

    def _forget(self, key: int, _: object) -> None:
        self.live -= self._storages.pop(key)[1].bytes


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors among an operation's arguments or results; torch's pytrees take as long as the operation."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _describe(tensor: Tensor, size: int) -> PeakTensor:
    return PeakTensor(_site(sys._getframe(3)), tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), size)


def _site(frame: FrameType | None) -> str:
    """The innermost frame of this package's own code, without this module's frames."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE) and path != Path(__file__):
            return f"{path.relative_to(_PACKAGE.parent)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "outside impl"


class AllocatorPeaks:
    """The CUDA allocator's peaks of one step: outside serve-only regions, and inside them above what lived there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak = self.runtime_peak = self._lived = 0

    def __enter__(self) -> AllocatorPeaks:
        _meters.append(self)
        torch.cuda.reset_peak_memory_stats(self.device)
        return self

    def __exit__(self, *exc: object) -> None:
        _meters.remove(self)
        self.peak = max(self.peak, torch.cuda.max_memory_allocated(self.device))

    def begin_serve_only(self) -> None:
        self.peak = max(self.peak, torch.cuda.max_memory_allocated(self.device))
        self._lived = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)

    def end_serve_only(self) -> None:
        self.runtime_peak = max(self.runtime_peak, torch.cuda.max_memory_allocated(self.device) - self._lived)
        torch.cuda.reset_peak_memory_stats(self.device)


class MemoryMeter:
    """Watches one engine's memory from before its weights load until its profile is taken.

    Enter it before anything is allocated; `profile` runs the step.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._live = LiveBytes()
        """Counts the bytes on the CPU; on CUDA the allocator does, and this only names the tensors at the peak."""
        self._other_before = self._allocated_before = 0

    def __enter__(self) -> MemoryMeter:
        if self.device.type == "cuda":
            torch.cuda.init()
            # Another engine of this process is not this one's memory: what is dropped goes now, what lives is known.
            gc.collect()
            torch.cuda.synchronize(self.device)
            torch.cuda.empty_cache()
            self._other_before = _outside_allocator(self.device)
            self._allocated_before = torch.cuda.memory_allocated(self.device)
        self._live.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.__exit__(*exc)

    def profile(
        self,
        weights: Iterable[Tensor],
        workspace: Workspace,
        step: Callable[[], None],
        borrowed_bytes: int = 0,
    ) -> MemoryProfile:
        """Run `step` twice: once to size the workspace, which is then locked, and once measured.

        `step` is a full step of T tokens, sampling included, over pages that hold nothing yet. `borrowed_bytes`: of
        buffers that the step needs and that are made anew after the profile; they are in no figure.
        """
        step()
        workspace.lock()
        weight_bytes = sum({w.untyped_storage().data_ptr(): w.untyped_storage().nbytes() for w in weights}.values())
        self._live.track([*weights, workspace.buffer])
        before_step = self._alive()  # held, so that no later tensor's record has the id of one of these
        resident = {id(tensor) for tensor in before_step}
        self._live.reset_peak()
        on_cpu = self.device.type != "cuda"
        other: int | None = None
        if on_cpu:
            before = self._live.live
            step()
            peak, runtime_peak = self._live.peak - before, self._live.runtime_peak
        else:
            torch.cuda.synchronize(self.device)
            before = torch.cuda.memory_allocated(self.device)
            with AllocatorPeaks(self.device) as seen:
                step()
                torch.cuda.synchronize(self.device)
            peak, runtime_peak = seen.peak - before, seen.runtime_peak
            other = max(0, _outside_allocator(self.device) - self._other_before)
        alive = (t for t in self._live.peak_tensors if id(t) not in resident)
        return MemoryProfile(
            source="live-bytes" if on_cpu else "cuda-allocator",
            weights_bytes=weight_bytes,
            persistent_bytes=before - self._allocated_before - weight_bytes - workspace.nbytes - borrowed_bytes,
            workspace_bytes=workspace.nbytes,
            peak_activation_bytes=peak,
            runtime_peak_bytes=runtime_peak,
            non_torch_bytes=other,
            peak=tuple(sorted(alive, key=lambda t: -t.bytes)),
            runtime_peak=tuple(sorted(self._live.runtime_tensors, key=lambda t: -t.bytes)),
        )

    def allocated_bytes(self) -> int:
        """Bytes of all tensors alive now: on the CPU of those this meter saw, on CUDA the allocator's from then on."""
        if self.device.type != "cuda":
            return self._live.live
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_allocated(self.device) - self._allocated_before

    def _alive(self) -> list[PeakTensor]:
        return [tensor for _, tensor in self._live._storages.values()]


def _outside_allocator(device: torch.device) -> int:
    """Device bytes in use that torch's allocator does not hold."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)
