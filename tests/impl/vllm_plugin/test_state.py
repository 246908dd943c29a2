"""Markers of captured branches are tied to their graph's replays; eager segments count by themselves."""

from collections import Counter
from types import ModuleType, SimpleNamespace

import pytest
import torch

from impl.vllm_plugin import state
from impl.vllm_plugin.patch import VERSIONS
from tests.impl.vllm_plugin.extract import module_of

TOGGLE = "mhc_residual_reuse"


class Key:
    """vLLM's descriptor of a full graph."""

    cg_mode = "full"


class Graph:
    def capture_end(self) -> None:
        pass

    def replay(self) -> None:
        pass


@pytest.fixture
def capturing(arm, monkeypatch):
    """A stream whose capture is turned on and off by hand, and a graph class that the plugin watches."""
    markers, on = arm(TOGGLE), SimpleNamespace(now=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: on.now)
    monkeypatch.setattr(state, "_capturing", Counter())
    module = ModuleType("torch.cuda.graphs")
    module.CUDAGraph = type("CUDAGraph", (Graph,), {"capture_end": Graph.capture_end})
    state.watch_torch(module)
    return markers, on, module.CUDAGraph


def capture(on, graph, takes):
    on.now = True
    for _ in range(takes):
        state.take(TOGGLE)
    on.now = False
    graph.capture_end()
    return graph


@pytest.mark.parametrize("version", VERSIONS)
def test_full_graphs(version, capturing, sources):
    markers, on, graph_class = capturing
    name = "vllm.v1.worker.gpu.cudagraph_utils"
    module = module_of(
        sources(version), name, ["CudaGraphManager.run_fullgraph"],
        get_offloader=lambda: SimpleNamespace(sync_prev_onload=lambda: None, join_after_forward=lambda: None),
        logger=SimpleNamespace(debug=print), CUDAGraphMode=SimpleNamespace(FULL="full"),
    )  # fmt: skip
    state.watch_full_graphs(module)
    manager = module.CudaGraphManager()
    small, large, plain = capture(on, graph_class(), 2), capture(on, graph_class(), 3), capture(on, graph_class(), 0)
    assert markers.taken[TOGGLE] == 5, "once at capture"
    keys = {name: Key() for name in "abc"}
    manager.graphs = {keys["a"]: small, keys["b"]: large, keys["c"]: plain}
    for name in "abca":
        manager.run_fullgraph(keys[name])
    assert markers.taken[TOGGLE] == 5 + 2 + 3 + 0 + 2


@pytest.mark.parametrize("version", VERSIONS)
def test_broken_graphs(version, capturing, sources):
    markers, on, graph_class = capturing
    name = "vllm.compilation.breakable_cudagraph"
    module = module_of(sources(version), name, ["BreakableCUDAGraphCapture.replay"])
    state.watch_broken_graphs(module)
    captured = module.BreakableCUDAGraphCapture()
    first, second = capture(on, graph_class(), 2), capture(on, graph_class(), 1)
    captured.segments = [first.replay, lambda: state.take(TOGGLE), second.replay]
    before = markers.taken[TOGGLE]
    captured.replay()
    captured.replay()
    assert markers.taken[TOGGLE] - before == 2 * (2 + 1 + 1)


def test_graphs_that_are_gone_are_forgotten(capturing):
    _, on, graph_class = capturing
    known = len(state._graphs)
    graph = capture(on, graph_class(), 1)
    assert len(state._graphs) == known + 1
    del graph
    assert len(state._graphs) == known


def test_unknown_modules_are_left_alone():
    for watch in (state.watch_full_graphs, state.watch_broken_graphs):
        watch(ModuleType("empty"))
