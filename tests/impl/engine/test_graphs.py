"""What replays of Python (nothing), graphs of one pool and the stale handoff, and the same on CUDA."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from impl.engine.graphs import CaptureError, GraphCache, GraphPool, Replay, capture
from impl.handshake import Markers
from impl.ops import mhc
from tests.impl.engine.programs import assert_same, chain
from tests.impl.ops.test_mhc import pending, seam_weights

HIDDEN = 64


# --- the pool, and the stale handoff -----------------------------------------------------------


class Drafter:
    """Hands its logits over by an attribute: right in eager, stale under replay."""

    def __init__(self, rows: int) -> None:
        self.inputs = torch.zeros(rows, 32)
        self.persistent = torch.zeros(rows, 32)
        self.logits = torch.zeros(0)

    def draft(self, n: int) -> Tensor:
        hidden = torch.tanh(chain(self.inputs[:n]))
        self.logits = hidden * 3.0
        self.persistent[:n].copy_(self.logits)
        return self.logits.argmax(1)


@pytest.fixture
def drafter() -> tuple[Drafter, GraphCache]:
    drafter, cache = Drafter(16), GraphCache("cpu")
    drafter.inputs.normal_(generator=torch.Generator().manual_seed(1))
    for n in (16, 8, 4):
        cache.get_or_capture(n, lambda n=n: drafter.draft(n))
    return drafter, cache


def test_a_handoff_by_attribute_is_stale_under_replay(drafter):
    drafter, cache = drafter
    left = drafter.logits
    assert left.shape == (4, 32)
    drafter.inputs.normal_(generator=torch.Generator().manual_seed(2))
    cache.get_or_capture(16, lambda: pytest.fail("captured twice")).run()
    assert drafter.logits is left
    fresh = torch.tanh(chain(drafter.inputs)) * 3.0
    assert not torch.equal(drafter.logits, fresh[:4])
    assert_same([drafter.persistent], [fresh])


def test_the_stale_pointer_reads_memory_that_other_graphs_recycle(drafter):
    drafter, cache = drafter
    cache.get_or_capture(4, drafter.draft).run()
    before = drafter.logits.clone()
    drafter.inputs.normal_(generator=torch.Generator().manual_seed(2))
    cache.get_or_capture(16, drafter.draft).run()
    assert not torch.equal(drafter.logits, before)


def test_at_the_last_captured_size_the_defect_hides(drafter):
    drafter, cache = drafter
    drafter.inputs.normal_(generator=torch.Generator().manual_seed(2))
    cache.get_or_capture(4, drafter.draft).run()
    assert_same([drafter.logits], [torch.tanh(chain(drafter.inputs[:4])) * 3.0])


def test_smaller_graphs_fit_into_the_pool_of_the_largest(drafter):
    _, cache = drafter
    report = cache.report()
    assert cache.keys() == [16, 8, 4]
    first, *later = report["graphs"].values()
    assert first["pool_added_bytes"] == first["replay_bytes"]
    assert [graph["pool_added_bytes"] for graph in later] == [0, 0]
    assert report["pool_bytes"] == first["replay_bytes"]
    assert all(graph["replay_bytes"] < graph["temporaries_bytes"] for graph in report["graphs"].values())


def test_a_later_graph_leaves_the_outputs_of_an_earlier_one(drafter):
    drafter, cache = drafter
    tokens = cache.get_or_capture(16, drafter.draft).run()
    before = tokens.clone()
    drafter.inputs.neg_()
    for n in (8, 4):
        replay = cache.get_or_capture(n, drafter.draft)
        replay.poison()
        replay.run()
    assert torch.equal(tokens, before)


def test_graphs_of_one_pool_do_not_disturb_each_others_results(drafter):
    drafter, cache = drafter
    for seed, n in enumerate((4, 16, 8, 16, 4)):
        drafter.inputs.normal_(generator=torch.Generator().manual_seed(seed))
        tokens = cache.get_or_capture(n, drafter.draft).run()
        assert torch.equal(tokens, torch.tanh(chain(drafter.inputs[:n])).argmax(1))


def test_a_pool_of_another_device_is_refused():
    with pytest.raises(ValueError, match="a pool on cpu cannot hold a graph on cuda"):
        capture(lambda: None, "cuda", pool=GraphPool("cpu"))


# --- Python runs at capture only ---------------------------------------------------------------


def test_replay_runs_no_python_of_the_function():
    x, ran = torch.randn(4), []

    def fn() -> Tensor:
        ran.append(1)
        return x + 1

    replay = capture(fn, "cpu")
    at_capture = len(ran)
    replay.run()
    assert len(ran) == at_capture
    assert replay.replays == 1


def test_markers_count_replays():
    x, markers = torch.randn(4), Markers()

    def fn() -> Tensor:
        markers.take("mhc_final_fused")
        markers.take("mhc_final_fused")
        markers.refuse("mhc_input_reuse", "small")
        return x + 1

    seen: list[int] = []
    replay = capture(fn, "cpu", markers=markers)
    replay.on_replay.append(lambda: seen.append(replay.replays))
    assert markers.to_json() == {}
    for _ in range(3):
        replay.run()
    assert markers.taken == {"mhc_final_fused": 6}
    assert markers.refused["mhc_input_reuse"] == {"small": 3}
    assert seen == [1, 2, 3]


def test_capture_leaves_buffers_as_they_were():
    buffer, state = torch.randn(4), torch.arange(4)

    def fn() -> Tensor:
        buffer.mul_(2)
        state[torch.tensor([0, 2])] = 9
        return buffer + 1

    before = buffer.clone(), state.clone()
    replay = capture(fn, "cpu")
    assert_same([buffer, state], before)
    replay.run()
    assert_same([buffer, state], [before[0] * 2, torch.tensor([9, 1, 9, 3])])


def test_a_cache_that_fills_at_the_first_run_is_warmed_up():
    x, cache = torch.randn(4), {}

    def fn() -> Tensor:
        if "scale" not in cache:
            cache["scale"] = torch.tensor(2.0) * torch.ones(4).sum().item()
        return x * cache["scale"]

    replay = capture(fn, "cpu")
    assert_same([replay.run()], [x * 8.0])


# --- CUDA --------------------------------------------------------------------------------------

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def on_cuda(n: int, seed: int) -> tuple[Tensor, ...]:
    return tuple(tensor.cuda() for tensor in pending(n, HIDDEN, seed))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("n", [4, 17, 300])
def test_cuda_graphs_replay_the_seam_bit_for_bit(n):
    weights = seam_weights(HIDDEN)
    weights = replace(weights, **{name: getattr(weights, name).cuda() for name in ("fn", "scale", "base", "norm")})
    inputs, markers = on_cuda(n, 0), Markers()

    def fn() -> mhc.SeamOutput:
        markers.take("mhc_final_fused")
        return mhc.seam(*inputs, weights)

    pool = GraphPool("cuda")
    replay = capture(fn, "cuda", pool=pool, markers=markers)
    assert markers.taken["mhc_final_fused"] == 0
    for seed in (1, 2):
        for tensor, value in zip(inputs, on_cuda(n, seed), strict=True):
            tensor.copy_(value)
        got = [tensor.clone() for tensor in replay.run()]
        assert_same(got, mhc.seam(*inputs, weights))
    assert markers.taken["mhc_final_fused"] == 2
    assert pool.nbytes >= replay.memory.pool_added_bytes > 0
    assert replay.memory.eager_peak_bytes > 0


@pytest.mark.gpu
@needs_cuda
def test_cuda_refusals_name_the_operation_and_the_line():
    x = torch.arange(6.0, device="cuda")
    with pytest.raises(CaptureError, match=r"aten.nonzero.default has a shape .* \(at test_graphs.py:\d+ <lambda>\)"):
        capture(lambda: x.nonzero(), "cuda")
    with pytest.raises(CaptureError, match="draws random numbers"):
        capture(lambda: x + torch.rand(6, device="cuda"), "cuda")


@pytest.mark.gpu
@needs_cuda
def test_the_handoff_is_stale_on_cuda_too():
    inputs, holder, cache = torch.randn(16, 32, device="cuda"), {}, GraphCache("cuda")

    def draft(n: int) -> Tensor:
        holder["logits"] = torch.tanh(chain(inputs[:n])) * 3.0
        return holder["logits"].argmax(1)

    replays: dict[int, Replay] = {n: cache.get_or_capture(n, lambda n=n: draft(n)) for n in (16, 4)}
    left = holder["logits"]
    inputs.normal_()
    replays[16].run()
    assert holder["logits"] is left
    assert not torch.equal(left, torch.tanh(chain(inputs))[:4] * 3.0)
    replays[4].run()
    assert torch.equal(left, torch.tanh(chain(inputs[:4])) * 3.0)
    assert cache.report()["pool_bytes"] > 0
