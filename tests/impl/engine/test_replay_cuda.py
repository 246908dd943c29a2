"""Replayed rounds and steps on a CUDA device: the tokens of the same engine run eagerly, without waiting for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dsbench.parse.trace import decode_steps
from impl import tokenizer
from impl.dims import PICO
from impl.engine.config import Capture, EngineConfig
from impl.engine.graphs import GraphCache
from impl.engine.request import Request
from impl.engine.runner import Runner
from impl.handshake import Handshake
from impl.toggles import ToggleSet
from tests.impl.engine.engines import boot_runner, generate, make_request, random_prompts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def boot(**settings: Any) -> Runner:
    return boot_runner(budget=1 << 30, device="cuda", **settings)


def wanted() -> list[Request]:
    """Six requests, half of them sampled."""
    prompts = random_prompts(6, 150, seed=3)
    return [make_request(p, temperature=float(i % 2), seed=i, max_tokens=24) for i, p in enumerate(prompts)]


def tokens(**settings: Any) -> list[list[int]]:
    return generate(boot(**settings), wanted())


@pytest.mark.parametrize("capture", ["draft", "rounds"])
def test_replay_gives_the_tokens_of_eager(capture: Capture) -> None:
    settings: dict[str, Any] = {"speculative": "dspark", "capture": capture}
    assert tokens(eager=False, **settings) == tokens(eager=True, **settings)


@pytest.mark.parametrize("method", ["none", "dspark"])
def test_replayed_steps_give_the_tokens_of_the_same_steps_run_uncaptured(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Rows and shapes are the graph's, so that no product takes another way."""
    replayed = boot(eager=False, capture="steps", speculative=method)
    found = generate(replayed, wanted())
    assert sum(graph["replays"] for graph in replayed.step_replay.graphs.report()["graphs"].values()) > 20  # type: ignore[union-attr]
    monkeypatch.setattr(GraphCache, "get_or_capture", uncaptured)
    assert tokens(eager=False, capture="steps", speculative=method) == found


class Uncaptured:
    """A captured function that is run in place of its replay."""

    def __init__(self, fn: Any) -> None:
        self.run = fn


def uncaptured(self: GraphCache, key: Any, fn: Any) -> Any:
    return self._replays.setdefault(key, Uncaptured(fn))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["none", "dspark"])
def test_replayed_steps_give_the_tokens_of_eager(method: str) -> None:
    assert tokens(eager=False, capture="steps", speculative=method) == tokens(eager=True, speculative=method)


@pytest.mark.parametrize("method", ["none", "dspark"])
def test_no_operation_of_a_replayed_step_waits_for_the_device(method: str) -> None:
    runner = boot(eager=False, capture="steps", speculative=method)
    requests = wanted()[:3]
    for request in requests:
        runner.scheduler.add(request)
    while not all(request.outputs for request in requests):  # steps with a prompt's chunk are launched, and wait
        runner.step()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            events = runner.step()
            assert events
            assert all(event.finish_reason != "error" for event in events)
    finally:
        torch.cuda.set_sync_debug_mode(before)


def test_an_engine_counts_only_its_own_memory() -> None:
    """Another one's pages of the same process are alive beside it."""
    first = boot(eager=True)
    second = boot(eager=True)
    assert second.profile.persistent_bytes == first.profile.persistent_bytes
    assert second.resident_bytes == first.resident_bytes
    assert second.n_blocks >= first.n_blocks  # what a device's libraries take on first use is the first one's


def test_gpu_times_of_replayed_steps_are_read_by_the_harness(tmp_path: Path) -> None:
    runner = boot(eager=False, capture="steps", speculative="dspark")
    for request in wanted()[:2]:
        runner.scheduler.add(request)
    runner.step()
    runner.step_times.start()
    for _ in range(5):
        runner.step()
    path = runner.step_times.stop(tmp_path)
    assert path is not None
    steps = decode_steps(path, 2)
    assert steps.steps >= 3
    assert 0.05 < steps.busy_ms <= steps.span_ms < 1000
    assert runner.step_times.stop(tmp_path) is None


@pytest.mark.parametrize(("method", "capture"), [("none", "draft"), ("dspark", "draft"), ("dspark", "steps")])
def test_the_shipped_model_answers_as_on_the_cpu(method: str, capture: Capture) -> None:
    config = EngineConfig(
        PICO, ToggleSet(), 1 << 30, device="cuda", speculative=method, capture=capture, eager=capture == "draft"
    )
    runner = Runner(config, Handshake(None))
    runner.allocate_pages()
    texts = ["17+25=", "7*8=", "Q: 36+47\nA:"]
    requests = [make_request([tokenizer.BOS, *tokenizer.encode(text)], max_tokens=3) for text in texts]
    generate(runner, requests)
    assert [request.text.split() for request in requests] == [["42"], ["56"], ["83"]]
