"""Drafting for the requests of a step, by either method: what each needs of the step, and its passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from impl.engine.config import EngineConfig
from impl.engine.draft_replay import DraftReplay
from impl.engine.pages import LayerPages
from impl.engine.round import Round
from impl.engine.scheduler import Plan
from impl.engine.step import PageShape, Step
from impl.handshake import Markers
from impl.model.draft import Draft
from impl.model.draft_logits import DraftLogits
from impl.model.mtp import Mtp
from impl.model.target import Target, TargetOutput
from impl.ops.workspace import Workspace


class StepRows(Protocol):
    @property
    def last(self) -> Sequence[int]: ...


class DsparkProposer:
    """Inserts the step's aux means as context, then drafts a block."""

    def __init__(
        self,
        config: EngineConfig,
        target: Target,
        weights: dict[str, Tensor],
        logits: DraftLogits,
        block_tables: dict[str, Tensor],
        shape: PageShape,
        markers: Markers,
        workspace: Workspace,
        device: torch.device,
    ) -> None:
        self.draft = Draft(
            config.dims, weights, target.embed, target.lm_head, logits, config.toggles, markers, workspace, device
        )
        self.dims, self.markers, self.device = config.dims, markers, device
        self.block_tables = block_tables
        self.pages: list[LayerPages] = []
        self.replay: DraftReplay | None = None

    def capture(self) -> None:
        """Replay graphs from now on; the pages must be the final ones."""
        self.replay = DraftReplay(self.dims, self.draft, self.block_tables, self.pages, self.markers, self.device)

    @property
    def graph_bytes(self) -> int:
        return self.replay.nbytes if self.replay else 0

    def propose(
        self,
        plan: Plan,
        step: Step,
        output: TargetOutput,
        keep: Tensor,
        emitted: Tensor,
        rows: StepRows,
        round_: Round | None,
    ) -> Tensor | None:
        """int64 [R, K]; None where nobody is to be drafted for."""
        self.draft.insert_context(output.aux, step, keep, self.pages)
        if round_ is None:
            return None
        if self.replay is not None:
            return self.replay.propose(round_)
        r = round_
        return self.draft.propose(
            r.anchors, r.first, r.limits, r.request_rows, r.slots, r.how, self.block_tables, self.pages
        ).tokens


class MtpProposer:
    """Runs the MTP layer over the step's own rows, then K - 1 times more."""

    def __init__(
        self,
        config: EngineConfig,
        target: Target,
        weights: dict[str, Tensor],
        logits: DraftLogits,
        block_tables: dict[str, Tensor],
        shape: PageShape,
        markers: Markers,
        workspace: Workspace,
        device: torch.device,
    ) -> None:
        if config.toggles.on("dflash_staging_skip"):
            markers.refuse("dflash_staging_skip", "inert: the mtp method stages no context")
        self.mtp = Mtp(
            config.dims, weights, target.embed, target.lm_head, logits, config.toggles, markers, workspace, device
        )
        self.target, self.shape, self.block_tables, self.device = target, shape, block_tables, device
        self.pages: list[LayerPages] = []

    def capture(self) -> None:
        """The serial passes are not captured: their first one has the step's ragged rows."""

    graph_bytes = 0

    def propose(
        self,
        plan: Plan,
        step: Step,
        output: TargetOutput,
        keep: Tensor,
        emitted: Tensor,
        rows: StepRows,
        round_: Round | None,
    ) -> Tensor | None:
        """int64 [R, K]; None where nobody is to be drafted for."""
        assert self.target.mtp_hidden is not None
        staged = self.target.mtp_hidden[: step.n_tokens]
        (pages,) = self.pages
        streams = self.mtp.read_step(staged, self._next_ids(plan, emitted), step, keep, pages)
        if round_ is None:
            return None
        r = round_
        last = torch.tensor(rows.last).to(self.device)[r.of_chunk]
        drafted = torch.tensor([c.n_drafted for c in plan.chunks if c.samples]).to(self.device)[r.of_chunk]
        ends = torch.tensor([c.end for c in plan.chunks if c.samples]).to(self.device)[r.of_chunk]
        # The last row that stands: rejected rows lie behind it.
        standing = last - drafted + (r.first - (ends - drafted))
        return self.mtp.propose(
            streams[standing], r.first, r.limits, r.request_rows, r.slots, r.how, self.block_tables, self.shape, pages
        )

    def _next_ids(self, plan: Plan, emitted: Tensor) -> Tensor:
        """int64 [N]: the token behind each row, from the prompt or from what the step has emitted."""
        known: list[int] = []
        source: list[int] = []
        width, r = emitted.shape[1], 0
        for chunk in plan.chunks:
            request, length = chunk.request, chunk.end - chunk.start
            n_known = length - chunk.n_drafted - (1 if chunk.samples else 0)
            known += request.tokens(chunk.start + 1, chunk.start + 1 + n_known) + [0] * (length - n_known)
            source += [-1] * n_known
            if chunk.samples:
                source += range(r * width, r * width + 1 + chunk.n_drafted)
                r += 1
        next_ids, index = torch.tensor([known, source]).to(self.device).unbind()
        if not r:
            return next_ids
        return torch.where(index >= 0, emitted.view(-1)[index.clamp_min(0)].clamp_min(0), next_ids)
