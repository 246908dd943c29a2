"""Replayed rounds on a CUDA device: the tokens of the same engine run eagerly."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.impl.engine.engines import boot_runner, generate, make_request, random_prompts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("capture", ["draft", "rounds"])
def test_replay_gives_the_tokens_of_eager(capture: str) -> None:
    assert tokens(eager=False, capture=capture) == tokens(eager=True, capture=capture)


def tokens(*, eager: bool, capture: str) -> list[list[int]]:
    """What six requests get from an engine of their own, half of them sampled."""
    runner = boot_runner(budget=1 << 30, device="cuda", speculative="dspark", eager=eager, capture=capture)
    prompts = random_prompts(6, 150, seed=3)
    requests = [make_request(p, temperature=float(i % 2), seed=i, max_tokens=24) for i, p in enumerate(prompts)]
    found = generate(runner, requests)
    assert runner.rounds is not None
    assert (runner.rounds.proposer.graph_bytes > 0) == (not eager)
    # What this engine leaves allocated, the next one would count as its own.
    del runner, requests
    gc.collect()
    return found
