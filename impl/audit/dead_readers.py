"""No reader of a buffer after its death: poison it when its last reader is done, and compare every bit.

Reuse is right only if what it writes over is dead. So each buffer that a toggle hands on is filled with NaN at the
moment the code says it is dead, in a run that does not reuse it, and the run must compute what it computes unpoisoned.
The reusing arms must compute the same too. Source: deepseek_v4_dspark.md section 2.2, source_pr.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from impl.audit import trial
from impl.audit.bits import GARBAGE, poison_
from impl.audit.report import Finding, NotRun, Outcome
from impl.audit.source import place
from impl.engine.index_rows import IndexRows
from impl.engine.pages import LayerPages
from impl.engine.runner import Runner
from impl.engine.step import Step
from impl.model.attention import Attention, Projected
from impl.model.moe import Moe
from impl.model.streams import Seam, Streams, same_storage
from impl.model.target import Target, TargetOutput
from impl.ops.workspace import Workspace

REUSING = ("mhc_residual_reuse", "mhc_input_reuse", "q_in_place", "c128a_topk_shared", "c128_indices_in_place",
           "dflash_staging_skip")  # fmt: skip
"""Toggles that hand dead buffers on."""
REUSE = ",".join(("mtp_hidden_skip", "mhc_final_fused", *REUSING))


class Deaths:
    """How many buffers a run has poisoned."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, tensor: Tensor) -> None:
        poison_(tensor)
        self.count += 1


Poison = Callable[[Deaths], AbstractContextManager[None]]


@dataclass(frozen=True)
class Buffer:
    """A buffer that something is written over, and how to poison it."""

    name: str
    death: str
    where: Callable[..., Any]
    """The code after which it is dead."""
    poison: Poison


@contextmanager
def patched(owner: type, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _old_residual(deaths: Deaths) -> AbstractContextManager[None]:
    return _after_seam(deaths, lambda streams: streams.residual)


def _old_y(deaths: Deaths) -> AbstractContextManager[None]:
    return _after_seam(deaths, lambda streams: streams.y)


def _after_seam(deaths: Deaths, dying: Callable[[Streams], Tensor | None]) -> AbstractContextManager[None]:
    seam = Seam.__call__

    def poisoning(self: Seam, streams: Streams) -> list[Tensor]:
        first = streams.y is None  # layer 0 has nothing to add, and its streams live on
        dead = dying(streams)
        cell = seam(self, streams)
        if dead is not None and not first:
            deaths.of(dead)
        return cell

    return patched(Seam, "__call__", poisoning)


@contextmanager
def _layer_input(deaths: Deaths) -> Iterator[None]:
    project, experts = Attention._project, Moe.forward

    def projecting(self: Attention, x_cell: list[Tensor], *rest: Any) -> Any:
        x = x_cell[0]
        result = project(self, x_cell, *rest)
        deaths.of(x)
        return result

    def routing(self: Moe, x_cell: list[Tensor], *rest: Any) -> Tensor:
        x = x_cell[0]
        result = experts(self, x_cell, *rest)
        deaths.of(x)
        return result

    with patched(Attention, "_project", projecting), patched(Moe, "forward", routing):
        yield


def _workspace(deaths: Deaths) -> AbstractContextManager[None]:
    """Everything taken in a scope dies with it: queries, indices, selected states, logits."""

    @contextmanager
    def scope(self: Workspace) -> Iterator[Workspace]:
        mark = self._used
        self._depth += 1
        try:
            yield self
        finally:
            self.buffer[mark : self._used].fill_(GARBAGE)
            deaths.count += 1
            self._used = mark
            self._depth -= 1

    return patched(Workspace, "scope", scope)


def _raw_queries(deaths: Deaths) -> AbstractContextManager[None]:
    queries = Attention._queries

    def poisoning(self: Attention, projected: Projected, step: Step, workspace: Workspace) -> Tensor:
        q = queries(self, projected, step, workspace)
        if not same_storage(q, projected.q):
            deaths.of(projected.q)
        return q

    return patched(Attention, "_queries", poisoning)


def _index_rows(deaths: Deaths) -> AbstractContextManager[None]:
    forward = Target.forward

    def poisoning(self: Target, step: Step, pages: list[LayerPages]) -> TargetOutput:
        output = forward(self, step, pages)
        for rows in {own.index_rows for own in pages if own.index_rows is not None}:
            fill_plausible(rows)
            deaths.count += 1
        return output

    return patched(Target, "forward", poisoning)


def fill_plausible(rows: IndexRows) -> None:
    """Garbage that looks like indices, so that a reader of it attends to an entry that is not its own."""
    for buffer in (rows.decode, rows.prefill):
        buffer.fill_(1)
    rows.lens.fill_(rows.columns.shape[0])


BUFFERS = (
    Buffer("residual streams", "the seam that consumed them", Seam.__call__, _old_residual),
    Buffer("sublayer output y", "the seam that consumed it", Seam.__call__, _old_y),
    Buffer("layer input x", "the projections that read it", Attention._project, _layer_input),
    Buffer("projected queries", "the norm and rotation that read them", Attention._queries, _raw_queries),
    Buffer("dense index rows", "the last layer of their step", Target.forward, _index_rows),
    Buffer("workspace (queries, indices, states)", "the scope it was taken in", Workspace.scope, _workspace),
)


def check() -> Outcome:
    poisoned, reused = poisoned_runs(), reusing_run()
    return Outcome((*poisoned.findings, *reused.findings), {**poisoned.evidence, **reused.evidence})


def poisoned_runs(buffers: tuple[Buffer, ...] = BUFFERS) -> Outcome:
    """The baseline with each buffer poisoned at its death, one after the other."""
    runner, plain = trial.engine(), trial.baseline()
    findings: list[Finding] = []
    evidence: dict[str, int | float | str] = {"values compared": sum(value.numel() for _, value in plain)}
    for buffer in buffers:
        count, differs = _poisoned(runner, buffer, plain)
        evidence[f"poisoned: {buffer.name}"] = count
        if differs:
            findings.append(
                Finding(
                    "read-after-death",
                    f"{buffer.name} is read after {buffer.death}: poisoned there, {differs} differ",
                    place(buffer.where),
                    "read it before, or keep a copy: whatever is written over it would be read in its place",
                )
            )
    return Outcome(tuple(findings), evidence)


def reusing_run(toggles: str = REUSE) -> Outcome:
    """The arm that reuses whatever it can, against the baseline."""
    runner = trial.engine(toggles)
    before = runner.markers.taken.copy()
    differs = trial.difference(trial.baseline(), trial.run(runner))
    taken = {toggle: runner.markers.taken[toggle] - before[toggle] for toggle in REUSING}
    idle = [toggle for toggle, count in taken.items() if not count]
    if idle:
        raise NotRun(f"the reusing arm has not come to {', '.join(idle)}")
    found: tuple[Finding, ...] = ()
    if differs:
        mend = "compare the arms toggle by toggle"
        what = f"{toggles}: {differs} differ from the baseline"
        found = (Finding("reuse-differs", what, place(Seam.__call__), mend),)
    return Outcome(found, {f"reused: {toggle}": count for toggle, count in taken.items()})


def _poisoned(runner: Runner, buffer: Buffer, plain: trial.Trace) -> tuple[int, str]:
    """How often the buffer died, and where the run differs from `plain`; a run that fails differs too."""
    deaths = Deaths()
    with buffer.poison(deaths):
        try:
            differs = trial.difference(plain, trial.run(runner))
        except RuntimeError as error:
            differs = str(error)
    if not deaths.count:
        raise NotRun(f"{buffer.name}: the trial has not come to {buffer.death}")
    return deaths.count, differs
