"""The one buffer of dense index rows: decodes and prefills part it exactly, and what is stale in it harms nobody.

Rows [0, n_decode) are decodes', rows [n_decode, N) prefills', with no row between, in both or beyond. Rows and lens
behind N hold what earlier steps left: filled with indices that look real, before a step is built and behind its rows
after, they must change no output. Source: deepseek_v4_dspark.md section 3.4, source_pr.md section 6.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from impl.audit import trial
from impl.audit.bits import same
from impl.audit.dead_readers import fill_plausible, patched
from impl.audit.report import Finding, NotRun, Outcome
from impl.audit.source import place
from impl.audit.trial import DIMS
from impl.engine.index_rows import SHARED, IndexRows
from impl.engine.pages import page_shape
from impl.engine.step import Step, build_step
from impl.handshake import Markers
from impl.kv_geometry import KvGeometry
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet

SPLITS = ((0, 1), (0, 160), (1, 0), (7, 0), (1, 1), (6, 30), (12, 84), (63, 1), (64, 32), (65, 95))
"""(decode rows, prefill rows) of the steps that are tried; 64 rows are mapped at a time."""


def check() -> Outcome:
    findings = [finding for split in SPLITS for finding in _partition(*split)]
    plain, sharing = trial.baseline(), trial.engine(SHARED)
    before = sharing.markers.taken[SHARED]
    with _stale(Stale()) as stale:
        differs = trial.difference(plain, trial.run(sharing))
    if not stale.rows:
        raise NotRun("every step of the trial fills the whole buffer, so nothing in it is stale")
    if sharing.markers.taken[SHARED] == before:
        raise NotRun(f"the trial has not come to {SHARED}")
    if differs:
        findings.append(
            Finding(
                "stale-rows-read",
                f"with stale index rows and lens that look real, {differs} differ",
                place(IndexRows.build),
                "store every row's indices and lens unconditionally, and read [0, N) only",
            )
        )
    evidence = {"partitions": len(SPLITS), "steps": stale.steps, "stale rows planted": stale.rows}
    return Outcome(tuple(findings), evidence)


def _partition(n_decode: int, n_prefill: int) -> Iterator[Finding]:
    """What is wrong with one step's rows, seen against an engine with two buffers."""
    n, step = n_decode + n_prefill, sample_step(n_decode, n_prefill)
    where, at = place(IndexRows.for_layer), f"{n_decode} decode and {n_prefill} prefill rows"
    shared, apart = _rows(SHARED), _rows("")
    for rows in (shared, apart):
        fill_plausible(rows)
    tail = shared.decode[n:].clone()
    workspace = Workspace()
    with workspace.scope():
        for rows in (shared, apart):
            rows.build(step, workspace)
        decode, local = shared._parts_of(step)
        if decode.shape[0] != n_decode or local.shape[0] != n_prefill or _first_row(shared.decode, local) != n_decode:
            what = f"{at}: the parts are {decode.shape[0]} rows from row 0 and {local.shape[0]} from row "
            mend = "begin the prefill rows at row n_decode of the shared buffer"
            yield Finding("inexact-partition", f"{what}{_first_row(shared.decode, local)}", where, mend)
        got, expected = shared.for_layer(step, workspace), apart.for_layer(step, workspace)
        for name in ("decode", "prefill", "lens"):
            if not same(getattr(got, name), getattr(expected, name)):
                what = f"{at}: {name} differs from what two buffers hold"
                yield Finding("partition-differs", what, where, "let no row be written for two tokens")
    if not same(shared.decode[n:], tail):
        yield Finding(
            "row-beyond", f"{at}: rows behind the {n} of the step are written", where, "write the step's rows only"
        )


def _rows(toggles: str) -> IndexRows:
    return IndexRows(DIMS, ToggleSet.parse(toggles), Markers(), "cpu")


def sample_step(n_decode: int, n_prefill: int) -> Step:
    """One request a decode row and one for all prefill rows, at positions where several entries are visible."""
    geometry = KvGeometry.of(DIMS)
    gen = torch.Generator().manual_seed(n_decode)
    tables = {
        group.name: torch.randint(1, 60, (n_decode + 1, -(-DIMS.max_model_len // group.tokens)), generator=gen)
        for group in geometry.groups
    }
    positions = [33 + 5 * i % 300 for i in range(n_decode)] + [100 + i for i in range(n_prefill)]
    requests = [*range(n_decode)] + [n_decode] * n_prefill
    shape = page_shape(DIMS, geometry)
    return build_step([0] * len(positions), positions, requests, n_decode, tables, shape, torch.device("cpu"))


def _first_row(buffer: Tensor, part: Tensor) -> int:
    """The row of `buffer` at which `part`, a view of it, begins; -1 for another storage."""
    if part.untyped_storage()._cdata != buffer.untyped_storage()._cdata:
        return -1
    return (part.storage_offset() - buffer.storage_offset()) // buffer.stride(0)


class Stale:
    steps = 0
    rows = 0


@contextmanager
def _stale(stale: Stale) -> Iterator[Stale]:
    """Every row stale before a step is built, and the rows behind it again after."""
    build = IndexRows.build

    def building(self: IndexRows, step: Step, workspace: Workspace) -> None:
        fill_plausible(self)
        build(self, step, workspace)
        n = step.n_tokens
        for buffer in (self.decode, self.prefill) if self.shared else ():
            buffer[n:].fill_(1)
        self.lens[n:].fill_(self.columns.shape[0])
        stale.steps += 1
        stale.rows += len(self.lens) - n

    with patched(IndexRows, "build", building):
        yield stale
