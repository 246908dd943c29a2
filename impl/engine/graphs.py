"""Captured replay: run a function's tensor operations again without running its Python.

On CUDA a CUDA graph, on the CPU a tape (`impl.engine.tape`); both keep CUDA graphs' rules:

- The function reads its input from tensors that exist before capture and stay where they are (input
  buffers, weights, page pools, a locked workspace). To replay, copy new values into those tensors.
- Its Python runs at capture only. Assigning an attribute, appending to a list or counting happens
  then and never at replay: `self.logits = logits` leaves the attribute at the tensor of the graph
  that was captured *last*. State that must follow a replay goes into a persistent buffer by `copy_`.
- Python numbers, shapes, and whatever branch they chose are constants of the graph: one graph a size.
- Outputs are the same tensors at every replay. A graph's replay may overwrite the outputs of other
  graphs of its pool, so read or copy them first.
- Memory that nothing wrote in this replay holds garbage of other graphs; allocate, then write.
- Nothing may wait for values: no `.item()`, `.tolist()`, `.numpy()`, `nonzero`, mask indexing,
  `unique`, no shape that depends on data. No random generator: noise is counter-based. A
  CaptureError names the operation and the line.
- Capture runs the function more than once. On the CPU every buffer is put back afterwards. On CUDA
  the warm-up runs really write (page pools are too large to save): warm up with rows that write to
  padding, as vLLM does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from impl.engine.arena import Arena
from impl.engine.recording import CaptureError, Recorder
from impl.engine.tape import record
from impl.handshake import Markers

__all__ = ["CaptureError", "GraphCache", "GraphMemory", "GraphPool", "Replay", "capture"]


@dataclass(frozen=True)
class GraphMemory:
    """Bytes of one graph, and what the same function needs when it runs eagerly."""

    pool_added_bytes: int
    """How much the pool grew for this graph; 0 if it fits over the memory of earlier ones."""
    replay_bytes: int | None
    """Pool bytes its temporaries and outputs use, shared with other graphs; None on CUDA, where they are private."""
    eager_peak_bytes: int
    """Most bytes of temporaries and outputs alive at one time in eager."""
    temporaries_bytes: int
    """Sum over all temporaries and outputs, alive at one time or not."""


class GraphPool:
    """Memory that several graphs of one device share. Capture the largest first."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.arena = Arena()
        on_cuda = self.device.type == "cuda"
        self.handle: Any = torch.cuda.graph_pool_handle() if on_cuda else None
        # One for all captures: each stream that multiplies matrices keeps a workspace of its own.
        self.side: Any = torch.cuda.Stream(self.device) if on_cuda else None

    @property
    def nbytes(self) -> int:
        if self.handle is None:
            return self.arena.nbytes
        segments = torch.cuda.memory_snapshot()
        return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == tuple(self.handle))


class Replay:
    """One captured function. `outputs` is what it returned, in the tensors that every replay writes."""

    def __init__(
        self, launch: Callable[[], None], outputs: Any, memory: GraphMemory, poison: Callable[[], None] | None
    ) -> None:
        self.outputs = outputs
        self.memory = memory
        self.replays = 0
        self.on_replay: list[Callable[[], None]] = []
        """Called after each replay."""
        self.poison = poison
        """Fills this graph's own memory with NaN (CPU only): replays must not notice."""
        self._launch = launch

    def run(self) -> Any:
        """Replay on the current stream and return `outputs`."""
        self._launch()
        self.replays += 1
        for hook in self.on_replay:
            hook()
        return self.outputs


def capture(
    fn: Callable[[], Any],
    device: torch.device | str,
    *,
    pool: GraphPool | None = None,
    markers: Markers | None = None,
    warmup: int = 1,
) -> Replay:
    """Capture `fn` (no arguments; returns any nest of tensors) and return its replay, not yet run.

    `markers` counts replays: what `fn` counts while it is captured is taken back, and added again at
    each replay. `warmup` is for CUDA: runs on a side stream before capture, at least one. Raises
    CaptureError when `fn` breaks a rule of the module's docstring.
    """
    pool = pool or GraphPool(device)
    if pool.device.type != torch.device(device).type:
        raise ValueError(f"a pool on {pool.device} cannot hold a graph on {device}: make one for that device")
    counted = _Counted(fn, markers)
    before = _counts(markers)
    try:
        replay = _capture_cuda(counted, pool, warmup) if pool.handle is not None else _capture_tape(counted, pool)
    finally:
        if markers is not None:
            _add(markers, _difference(before, _counts(markers)))
    if markers is not None and counted.last:
        replay.on_replay.append(lambda: _add(markers, counted.last))
    return replay


class GraphCache:
    """Replays by key (batch size), in one pool. Padding a batch up to a captured size is the caller's."""

    def __init__(self, device: torch.device | str, markers: Markers | None = None) -> None:
        self.pool = GraphPool(device)
        self.markers = markers
        self._replays: dict[Hashable, Replay] = {}

    def get_or_capture(self, key: Hashable, fn: Callable[[], Any]) -> Replay:
        """The replay of this key, capturing `fn` if there is none yet."""
        if key not in self._replays:
            self._replays[key] = capture(fn, self.pool.device, pool=self.pool, markers=self.markers)
        return self._replays[key]

    def __contains__(self, key: Hashable) -> bool:
        return key in self._replays

    def keys(self) -> list[Hashable]:
        """In order of capture."""
        return list(self._replays)

    def report(self) -> dict[str, Any]:
        """Bytes of the pool, and of each graph with its replays."""
        graphs = {str(key): {**asdict(r.memory), "replays": r.replays} for key, r in self._replays.items()}
        return {"pool_bytes": self.pool.nbytes, "graphs": graphs}


def _capture_tape(fn: Callable[[], Any], pool: GraphPool) -> Replay:
    before = pool.nbytes
    tape = record(fn, pool.arena)
    memory = GraphMemory(pool.nbytes - before, tape.nbytes, tape.eager_peak_bytes, tape.temporaries_bytes)
    return Replay(tape.run, tape.outputs, memory, tape.poison)


def _capture_cuda(fn: Callable[[], Any], pool: GraphPool, warmup: int) -> Replay:
    current = torch.cuda.current_stream(pool.device)
    side = pool.side
    side.wait_stream(current)
    recorder = Recorder(None)
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(warmup - 1):
            fn()
        # The last of them names the operation and the line of what CUDA would refuse without either.
        recorder.watch(fn)
    current.wait_stream(side)
    torch.cuda.synchronize(pool.device)
    before = pool.nbytes
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.no_grad(), torch.cuda.graph(graph, pool=pool.handle, stream=side, capture_error_mode="thread_local"):
            outputs = fn()
    except RuntimeError as error:
        raise CaptureError(f"CUDA refused the capture: {error}") from error
    temporaries = sum(block.nbytes for block in recorder.blocks)
    memory = GraphMemory(pool.nbytes - before, None, recorder.peak_bytes, temporaries)
    return Replay(graph.replay, outputs, memory, None)


Counts = Counter[tuple[str, str | None]]
"""(toggle, None) for taken, (toggle, reason) for refused."""


class _Counted:
    """A function that notes what its last run added to the markers: a capture's last run is the captured one."""

    def __init__(self, fn: Callable[[], Any], markers: Markers | None) -> None:
        self.fn = fn
        self.markers = markers
        self.last: Counts = Counter()

    def __call__(self) -> Any:
        before = _counts(self.markers)
        outputs = self.fn()
        self.last = _difference(_counts(self.markers), before)
        return outputs


def _counts(markers: Markers | None) -> Counts:
    if markers is None:
        return Counter()
    counts: Counts = Counter({(name, None): n for name, n in markers.taken.items()})
    for name, reasons in markers.refused.items():
        counts.update({(name, reason): n for reason, n in reasons.items()})
    return counts


def _difference(after: Counts, before: Counts) -> Counts:
    return Counter({key: n for key in after | before if (n := after[key] - before[key])})


def _add(markers: Markers, counts: Counts) -> None:
    """Add counts, negative ones too; what comes to zero is as if it had never been counted."""
    for (name, reason), n in counts.items():
        counter, key = (markers.taken, name) if reason is None else (markers.refused[name], reason)
        counter[key] += n
        if not counter[key]:
            del counter[key]
        if reason is not None and not counter:
            del markers.refused[name]
