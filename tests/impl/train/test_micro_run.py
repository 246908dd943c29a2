"""The micro shape trains on its own text: the loss falls, a stopped run ends in the same bits, its file is bf16."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from impl.dims import MICRO
from impl.model.weights import load_weights
from impl.train import loop, prefetch
from impl.train.loop import RECIPES, Settings
from impl.train.prefetch import Rows
from impl.train.runs import Call


@pytest.fixture
def _short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of 128 tokens a batch: micro's own steps take seconds here."""

    def cut(
        name: str, seed: int, first_step: int, scale: int, workers: int, progress: Callable[[int], float]
    ) -> Generator[dict[str, Rows], None, None]:
        for made in prefetch.stream(name, seed, first_step, scale, workers, progress):
            ids, weights = next(iter(made.values()))
            yield {"text": (ids[:1, :129], weights[:1, :129])}

    monkeypatch.setattr(loop, "stream", cut)


@pytest.mark.usefixtures("_short_rows")
def test_twenty_steps_learn(tmp_path: Path) -> None:
    settings = Settings(**RECIPES["micro"] | {"steps": 100, "warmup_steps": 5})
    shape = MICRO.with_changes(sinkhorn_iters=4)  # most of a CPU step, and the least of what it learns
    state = loop.new_state(shape, settings, "cpu")
    seen: list[loop.Report] = []
    loop.train(state, shape, settings, tmp_path, seen.append, call=Call(steps=20), report_every=5)
    assert [report.step for report in seen] == [5, 10, 15, 20]
    assert seen[-1].loss < seen[0].loss - 0.5
    with safe_open(tmp_path / "micro.safetensors", framework="pt") as file:
        assert file.get_tensor("lm_head").dtype == torch.bfloat16
        assert file.get_tensor("layers.3.moe.bias").dtype == torch.float32
    weights, dims = load_weights(tmp_path / "micro.safetensors")
    assert dims == shape
    assert (tmp_path / "micro.safetensors").stat().st_size < 11_000_000
    for name, tensor in state.weights.items():
        assert weights[name].dtype == tensor.dtype
        torch.testing.assert_close(weights[name], tensor.detach(), rtol=2**-8, atol=1e-30)


@pytest.mark.usefixtures("_short_rows")
def test_a_stopped_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    settings = Settings(**RECIPES["micro"] | {"steps": 4})
    ends = []
    for gates in ((4,), (3, 1)):
        out = tmp_path / str(len(gates))
        state = loop.new_state(MICRO, settings, "cpu")
        for steps in gates:
            if state.step or steps < 4:
                done = loop.train(state, MICRO, settings, out, lambda report: None, call=Call(steps=steps))
                state = loop.load_checkpoint(out / "checkpoint.pt", MICRO, settings, "cpu")
                assert done == (state.step == 4)
            else:
                loop.train(state, MICRO, settings, out, lambda report: None)
        ends.append(state)
    for name, tensor in ends[0].weights.items():
        assert torch.equal(tensor, ends[1].weights[name]), name
