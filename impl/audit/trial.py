"""A small engine that runs one fixed workload, and what it computed, for comparison bit by bit.

Prompts long enough for every kind of layer to select, in two chunks; decodes beside prefill rows; drafts that are
verified, some of them rejected. Dummy weights: an audit asks what the code does, not what the model says.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from impl.audit.bits import same
from impl.dims import PICO
from impl.engine.config import EngineConfig
from impl.engine.request import Request, SamplingParams
from impl.engine.runner import Runner
from impl.engine.step import Step
from impl.handshake import Handshake
from impl.model.target import TargetOutput
from impl.toggles import ToggleSet

DIMS = PICO.with_changes(
    name="trial", compress_ratios=(4, 32, 4, 32), aux_layers=(1, 3), n_draft_layers=1,
    max_num_batched_tokens=160, max_num_seqs=2, max_model_len=384,
)  # fmt: skip
BUDGET = 8 << 20
BLOCKS = 320
"""Of the pool, whatever toggles leave of the budget."""
PROMPTS = (200, 21, 40)
"""Tokens of each request; the first is cut into two chunks."""
MAX_TOKENS = 8

Trace = list[tuple[str, Tensor]]
"""What a workload computed, in order: name and value."""


def boot(toggles: str = "", *, pages: bool = True, **settings: Any) -> Runner:
    """An engine over dummy weights, ready to run but for its pages if those are not wanted yet.

    `settings` are EngineConfig's; the method is dspark unless they say otherwise.
    """
    settings = {"speculative": "dspark", **settings}
    config = EngineConfig(DIMS, ToggleSet.parse(toggles), BUDGET, load_format="dummy", **settings)
    runner = Runner(config, Handshake(None))
    runner.n_blocks = BLOCKS
    if pages:
        runner.allocate_pages()
    return runner


@cache
def engine(toggles: str = "") -> Runner:
    """An eager engine of one arm, shared by the checks of a process: each run begins with an empty pool."""
    return boot(toggles)


@cache
def baseline() -> Trace:
    """What an engine without toggles computes."""
    return run(engine())


def run(runner: Runner) -> Trace:
    """Serve the workload; an engine that runs eagerly may do so again and again.

    The trace holds hidden states and aux means of every step, the tokens, and the cache as it is left.
    """
    trace: Trace = []
    forward = runner.target.forward

    def traced(step: Step, pages: Any) -> TargetOutput:
        output = forward(step, pages)
        at = f"step {sum(name.endswith('hidden states') for name, _ in trace)}"
        trace.append((f"{at} hidden states", output.hidden.clone()))
        trace.append((f"{at} aux means", output.aux.clone()))
        return output

    runner.target.forward = traced  # type: ignore[method-assign]
    try:
        requests = serve(runner)
    finally:
        del runner.target.forward  # the class's own again
    for i, request in enumerate(requests):
        trace.append((f"tokens of request {i}", torch.tensor(request.outputs)))
    trace += [(f"cache pages {name}", pages.clone()) for name, pages in _pages(runner).items()]
    return trace


def serve(runner: Runner) -> list[Request]:
    """The workload alone, from an empty pool to its end. Raises RuntimeError when a step fails."""
    if runner.config.graph_mode == "eager":
        runner.allocate_pages()
        for table in runner.tables.tables.values():
            table.zero_()
    gen = torch.Generator().manual_seed(1)
    requests = []
    for i, length in enumerate(PROMPTS):
        ids = torch.randint(0, DIMS.vocab_size, (length,), generator=gen).tolist()
        sampling = SamplingParams(max_tokens=MAX_TOKENS, temperature=float(i % 2), seed=i)
        requests.append(Request(f"trial{i}", ids, sampling))
        runner.scheduler.add(requests[-1])
    while runner.scheduler.has_work:
        for event in runner.step():
            if event.error:
                raise RuntimeError(f"a step of the trial failed: {event.error}")
    return requests


def difference(one: Trace, other: Trace) -> str:
    """The first place where two traces differ, in words; empty when they are the same bits."""
    if [name for name, _ in one] != [name for name, _ in other]:
        return f"the runs took {len(one)} and {len(other)} readings"
    for (name, a), (_, b) in zip(one, other, strict=True):
        if a.shape != b.shape:
            return f"{name}: shapes {list(a.shape)} and {list(b.shape)}"
        if not same(a, b):
            return f"{name}: {int((a != b).sum())} of {a.numel()} values"
    return ""


def _pages(runner: Runner) -> dict[str, Tensor]:
    """Every page of the pool but the null block, where padding rows write."""
    return {bucket: pages[:, 1:] for bucket, pages in runner.pool.items()}
