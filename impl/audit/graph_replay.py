"""Captured functions: what capture costs, whether replay covers them, and what runs beside a replay.

A replay runs no Python: state that only Python keeps goes stale, and work left outside a graph is launched one by one.
So a replaying engine, its graphs' memory poisoned before each replay, must leave the tokens and the cache of an eager
one; around a replay only inputs may move. The seams must trace without a graph break. Source: source_pr.md section 8.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from impl.audit import trial
from impl.audit.dead_readers import patched
from impl.audit.report import Finding, NotRun, Outcome
from impl.audit.source import place
from impl.engine.config import Capture
from impl.engine.draft_replay import DraftReplay
from impl.engine.graphs import GraphCache, Replay
from impl.engine.propose import DsparkProposer
from impl.engine.runner import Runner
from impl.engine.step_replay import StepReplay
from impl.engine.tape import Tape
from impl.engine.target_replay import TargetReplay
from impl.ops import mhc

MOVES = {
    "alias", "as_strided", "cat", "copy_", "detach", "expand", "lift_fresh", "lift_fresh_copy", "select", "slice",
    "split", "stack", "t", "unbind", "unsqueeze", "view", "_to_copy", "_unsafe_view",
}  # fmt: skip
"""What may run beside a replay: views, and copies of its inputs."""

TOKENS = (mhc.SMALL_TOKENS // 2, 2 * mhc.SMALL_TOKENS)
"""How many tokens the seams are traced with: a branch not taken is not traced."""

Traced = Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]]
"""Functions to trace, with arguments."""


class Operations(TorchDispatchMode):
    """Counts operations by where they run: in a replay, in the call around it, or elsewhere in a step."""

    def __init__(self) -> None:
        super().__init__()
        self.where = "step"
        self.counts: dict[str, Counter[str]] = {"step": Counter(), "call": Counter(), "replay": Counter()}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[self.where][func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def at(self, where: str) -> Iterator[None]:
        before, self.where = self.where, where
        try:
            yield
        finally:
            self.where = before

    def around(self, where: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.at(where):
                return fn(*args, **kwargs)

        return counted


def check(toggles: str = "", traced: Traced | None = None, capture: Capture = "rounds") -> Outcome:
    """`toggles`, `capture`: of the engine. `traced`: what must trace without a break, in place of the seams."""
    expected = _outcome(trial.run(trial.engine(toggles)) if toggles else trial.baseline())
    replaying = trial.boot(toggles, pages=False, eager=False, capture=capture)
    start = time.monotonic()
    replaying.allocate_pages()
    seconds = time.monotonic() - start
    caches = _captured(replaying)
    tapes = [owner for _, _, r in caches if isinstance(owner := getattr(r._launch, "__self__", None), Tape)]
    operations = Operations()
    with ExitStack() as stack:
        for owner, name in ((DraftReplay, "propose"), (TargetReplay, "run"), (StepReplay, "run")):
            stack.enter_context(patched(owner, name, operations.around("call", getattr(owner, name))))
        for _, _, replay in caches:
            replay._launch = operations.around("replay", _poisoned_first(replay))
        stack.enter_context(operations)
        got = _outcome(trial.run(replaying))
    replays = sum(replay.replays for _, _, replay in caches)
    if not replays:
        raise NotRun("the trial has replayed nothing")
    beside = operations.counts["call"]
    work = {name: count for name, count in beside.items() if name not in MOVES}
    broken, breaks = _graph_breaks(seams() if traced is None else traced)
    return Outcome(
        (*_replay_findings(trial.difference(expected, got), work, replays), *broken),
        {
            "graphs captured": ", ".join(f"{name} {size}" for name, size, _ in caches),
            "capture seconds": round(seconds, 2),
            "operations in tapes": sum(len(tape.steps) for tape in tapes),
            "replays": replays,
            "operations replayed": operations.counts["replay"].total(),
            "copies and views beside replays": beside.total() - sum(work.values()),
            "other operations beside replays": sum(work.values()),
            "operations of the rest of the steps": operations.counts["step"].total(),
            "graph breaks": breaks,
        },
    )


def _replay_findings(differs: str, work: Mapping[str, int], replays: int) -> Iterator[Finding]:
    if differs:
        yield Finding(
            "replay-differs",
            f"replayed, its memory poisoned before: {differs} differ from eager",
            place(GraphCache.get_or_capture),
            "state that a replay must follow goes into a persistent buffer by copy_, never into an attribute",
        )
    if work:
        what = ", ".join(f"{name} x{count}" for name, count in sorted(work.items()))
        yield Finding(
            "work-outside-graph",
            f"beside {replays} replays run {what}",
            f"{place(DraftReplay.propose)}, {place(TargetReplay.run)}, {place(StepReplay.run)}",
            "move it into the captured function, or out of the round",
        )


def seams() -> Traced:
    """The seams and the finals on both of their paths, small-token and large-token."""
    return {f"{name}, {n} tokens": traced for n in TOKENS for name, traced in _seams(n).items()}


def _seams(n: int) -> Traced:
    hc, hidden = 4, 64
    gen = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=gen).to(dtype)

    residual, y = random(n, hc, hidden, dtype=torch.bfloat16), random(n, hidden, dtype=torch.bfloat16)
    post, comb, out = random(n, hc), random(n, hc, hc), torch.zeros_like(y)
    rows = hc * (hc + 2)
    weights = mhc.SeamWeights(random(rows, hc * hidden), random(3), random(rows), random(hidden), 1e-6, 1e-6, 6)
    head = mhc.HeadWeights(random(hc, hc * hidden), random(1), random(hc), 1e-6, 1e-6)

    def reusing(residual: Tensor, y: Tensor) -> mhc.SeamOutput:
        return mhc.seam(residual, y, post, comb, weights, residual_out=residual, input_out=y)

    return {
        "mhc.pre": (mhc.pre, (residual, weights)),
        "mhc.seam": (mhc.seam, (residual, y, post, comb, weights)),
        "mhc.seam, reusing both": (reusing, (residual.clone(), y.clone())),
        "mhc.post_streams": (mhc.post_streams, (residual, y, post, comb)),
        "mhc.post_mean": (mhc.post_mean, (residual, y, post, comb, out)),
        "mhc.post_head": (mhc.post_head, (residual, y, post, comb, head, out)),
    }


def _graph_breaks(traced: Traced) -> tuple[list[Finding], int]:
    """Findings for functions that do not trace in one graph, and how many breaks there are."""
    import torch._dynamo  # seconds of import, so not for those who do not trace

    findings, breaks = [], 0
    for name, (fn, args) in traced.items():
        torch._dynamo.reset()
        try:
            explained: Any = torch._dynamo.explain(fn)(*args)
        except Exception as error:
            raise NotRun(f"{name} could not be traced: {type(error).__name__}: {error}") from error
        breaks += explained.graph_break_count
        if explained.graph_break_count:
            what = f"{name} breaks into {explained.graph_count} graphs"
            mend = "keep host reads, prints and data-dependent branches out of it"
            findings.append(Finding("graph-break", what, place(fn), mend))
    torch._dynamo.reset()
    return findings, breaks


def _captured(runner: Runner) -> list[tuple[str, Hashable, Replay]]:
    """(whose, batch size or what else a graph is for, replay) of every graph."""
    assert runner.rounds is not None
    assert isinstance(runner.rounds.proposer, DsparkProposer)
    owners: dict[str, DraftReplay | TargetReplay | StepReplay | None] = {"draft": runner.rounds.proposer.replay}
    if runner.config.capture == "rounds":
        owners["target"] = runner.target_replay
    elif runner.config.capture == "steps":
        owners = {"step": runner.step_replay}
    found: list[tuple[str, Hashable, Replay]] = []
    for name, owner in owners.items():
        if owner is None:
            raise NotRun(f"the engine has captured nothing of the {name}")
        keys = [(n, greedy) for n in owner.sizes for greedy in (False, True)] if name == "step" else owner.sizes
        found += [(name, key, owner.graphs.get_or_capture(key, _never)) for key in keys]
    return found


def _never() -> None:
    raise AssertionError("captured already")


def _poisoned_first(replay: Replay) -> Callable[[], None]:
    launch, poison = replay._launch, replay.poison
    assert poison is not None

    def run() -> None:
        poison()
        launch()

    return run


def _outcome(trace: trial.Trace) -> trial.Trace:
    """What an eager and a replaying engine both leave: tokens and cache. A replay does not pass the model's Python."""
    return [(name, value) for name, value in trace if name.startswith(("tokens", "cache"))]
