"""What one vLLM process knows of its arm: toggles, markers, and how often captured branches were replayed.

Counts of a captured branch are tied to its graph: taken once while it is captured, and again at every replay of that
graph. An eager segment of a broken-up graph runs its Python again, so it counts by itself.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from impl.handshake import Markers
from impl.toggles import ToggleSet

markers = Markers()
toggles = ToggleSet()

_capturing: Counter[str] = Counter()
"""What the capture in progress has counted."""
_graphs: weakref.WeakKeyDictionary[Any, Counter[str]] = weakref.WeakKeyDictionary()


def take(toggle: str) -> None:
    """Call from inside the optimized branch."""
    markers.take(toggle)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        _capturing[toggle] += 1


def captured(graph: Any) -> None:
    """A capture into `graph` has ended: what it counted belongs to it."""
    if _capturing:
        _graphs[graph] = Counter(_capturing)
        _capturing.clear()


def replayed(graphs: Iterable[Any]) -> None:
    """Graphs were replayed: their branches ran again."""
    for graph in graphs:
        counts = _graphs.get(graph)
        if counts:
            markers.taken.update(counts)


def watch_torch(module: ModuleType) -> None:
    """Hook of `torch.cuda.graphs`: note the end of every capture."""
    end = module.CUDAGraph.capture_end

    def capture_end(self: Any) -> None:
        end(self)
        captured(self)

    module.CUDAGraph.capture_end = capture_end


def watch_full_graphs(module: ModuleType) -> None:
    """Hook of `vllm.v1.worker.gpu.cudagraph_utils`: one call a step that replays a full graph."""
    manager = getattr(module, "CudaGraphManager", None)
    run = getattr(manager, "run_fullgraph", None)
    if manager is None or run is None:
        return

    def run_fullgraph(self: Any, desc: Any) -> Any:
        done = run(self, desc)
        replayed((self.graphs[desc],))
        return done

    manager.run_fullgraph = run_fullgraph


def watch_broken_graphs(module: ModuleType) -> None:
    """Hook of `vllm.compilation.breakable_cudagraph`: one call a step that replays its segments."""
    capture = getattr(module, "BreakableCUDAGraphCapture", None)
    replay = getattr(capture, "replay", None)
    if capture is None or replay is None:
        return

    def replay_and_count(self: Any) -> None:
        replay(self)
        replayed(_segment_graphs(self))

    capture.replay = replay_and_count


def _segment_graphs(capture: Any) -> list[Any]:
    """The graphs of a capture that counted anything; kept on it, for this runs in every step."""
    graphs: list[Any] | None = getattr(capture, "_dsbench_graphs", None)
    if graphs is None:
        owners = (getattr(segment, "__self__", None) for segment in capture.segments)
        graphs = capture._dsbench_graphs = [owner for owner in owners if owner is not None and owner in _graphs]
    return graphs


__all__ = ["captured", "markers", "replayed", "take", "toggles"]
