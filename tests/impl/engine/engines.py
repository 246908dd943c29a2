"""Engines over the real target, small enough for tests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from impl.dims import PICO, Dims
from impl.engine.request import Request, SamplingParams
from impl.engine.runner import EngineConfig, Runner
from impl.handshake import Handshake
from impl.toggles import ToggleSet

_names = itertools.count()


def boot_runner(
    dims: Dims = PICO,
    *,
    budget: int = 16 << 20,
    seed: int = 0,
    toggles: str = "",
    handshake: Handshake | None = None,
    **settings: Any,
) -> Runner:
    config = EngineConfig(dims, ToggleSet.parse(toggles), budget, load_format="dummy", seed=seed, **settings)
    runner = Runner(config, handshake or Handshake(None))
    runner.allocate_pages()
    return runner


def make_request(prompt: Sequence[int], **params: object) -> Request:
    sampling = SamplingParams(**{"max_tokens": 12, "temperature": 0.0, **params})  # type: ignore[arg-type]
    return Request(f"r{next(_names)}", list(prompt), sampling)


def generate(runner: Runner, requests: Sequence[Request], every: int = 0) -> list[list[int]]:
    """Run requests to their end, one arriving every `every` steps (0: all at once); their outputs."""
    pending = list(requests)
    for step in itertools.count():
        while pending and step >= every * (len(requests) - len(pending)):
            runner.scheduler.add(pending.pop(0))
        if not runner.scheduler.has_work and not pending:
            break
        runner.step()
    assert runner.blocks.n_free == runner.blocks.n_usable
    return [request.outputs for request in requests]


def random_prompts(n: int, longest: int, seed: int = 0) -> list[list[int]]:
    gen = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=gen).tolist()
    return [torch.randint(0, PICO.vocab_size, (length,), generator=gen).tolist() for length in lengths]
