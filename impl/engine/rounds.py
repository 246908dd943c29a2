"""Speculative rounds: verify the drafts a step computed, then draft for the next one.

A decode's rows are its last token and its drafts. Verification accepts some of them and draws one token more; the rows
behind the accepted ones are rejected: the draft's cache does not take them, and the scheduler computes their positions
again. Everything up to the one read at the end stays on the device. Source: deepseek_v4_dspark.md sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from impl.engine.acceptance import AcceptanceCounts
from impl.engine.config import EngineConfig
from impl.engine.pages import LayerPages
from impl.engine.propose import DsparkProposer, MtpProposer
from impl.engine.request import Request, SamplingParams, TokenLogprobs
from impl.engine.round import Round
from impl.engine.scheduler import Chunk, Plan
from impl.engine.step import PageShape, Step
from impl.handshake import Markers
from impl.model.draft_logits import DraftLogits
from impl.model.target import Target, TargetOutput
from impl.ops import dispatch
from impl.ops.rejection import RejectionOutput, rejection_sample
from impl.ops.sampling import Logprobs, SamplingRows, cut_logits_, logprobs, sample
from impl.ops.workspace import Workspace

KEYWORD_TOGGLE = "rejection_keyword_binding"


class Drawn(NamedTuple):
    """What a step yields for each chunk that samples."""

    tokens: list[list[int]]
    """One or more tokens each"""
    logprobs: list[list[TokenLogprobs | None]]


@dataclass(frozen=True)
class Rows:
    """Where the rows of a step belong; made on the host, for the chunks that sample."""

    sampled: list[Chunk]
    last: list[int]
    """Step row of each chunk's last token."""
    chunk_of_row: list[int]
    """[N]: chunk of each step row, 0 where it does not sample."""
    offset: list[int]
    """[N]: how many drafts must be accepted for the row to stand."""

    @classmethod
    def of(cls, plan: Plan) -> Rows:
        sampled: list[Chunk] = []
        last: list[int] = []
        chunk_of_row: list[int] = []
        offset: list[int] = []
        for chunk in plan.chunks:
            length = chunk.end - chunk.start
            known = length - chunk.n_drafted
            offset += [0] * known + [*range(1, chunk.n_drafted + 1)]
            chunk_of_row += [len(sampled) if chunk.samples else 0] * length
            if chunk.samples:
                sampled.append(chunk)
                last.append(len(offset) - 1)
        return cls(sampled, last, chunk_of_row, offset)

    @classmethod
    def even(cls, plan: Plan, width: int, n_padded: int) -> Rows:
        """For decodes that have `width` rows each, up to `n_padded` requests; padding rows never stand."""
        sampled, never = plan.chunks, width
        last = [i * width + chunk.n_drafted for i, chunk in enumerate(sampled)]
        chunk_of_row = [min(i, len(sampled) - 1) for i in range(n_padded) for _ in range(width)]
        offset = [j if j <= chunk.n_drafted else never for chunk in sampled for j in range(width)]
        return cls(sampled, last, chunk_of_row, offset + [never] * (len(chunk_of_row) - len(offset)))


class Rounds:
    """Verification and drafting of one engine. `pages` must be set whenever the pool is."""

    def __init__(
        self,
        config: EngineConfig,
        target: Target,
        weights: dict[str, Tensor],
        block_tables: dict[str, Tensor],
        shape: PageShape,
        markers: Markers,
        workspace: Workspace,
        device: torch.device,
    ) -> None:
        """`weights`: the draft's, without their prefix."""
        self.config, self.dims, self.target = config, config.dims, target
        self.workspace, self.markers, self.device = workspace, markers, device
        self.draft_logits = DraftLogits(
            config.dims, config.toggles.on("draft_logits_persistent"), config.draft_sample_method == "probabilistic",
            markers, device,
        )  # fmt: skip
        self.keyword_binding = config.toggles.on(KEYWORD_TOGGLE)
        self.synthetic_rates: Tensor | None = None
        if config.synthetic_rates is not None:
            self.synthetic_rates = torch.tensor(config.synthetic_rates, dtype=torch.float32, device=device)
        proposer = DsparkProposer if config.speculative == "dspark" else MtpProposer
        self.proposer = proposer(
            config, target, weights, self.draft_logits, block_tables, shape, markers, workspace, device
        )
        self.counts = AcceptanceCounts.zero(config.draft_tokens)
        self._places: dict[Request, int] = {}
        """Places of the last proposal's requests in its batch."""

    @property
    def pages(self) -> list[LayerPages]:
        return self.proposer.pages

    @pages.setter
    def pages(self, pages: list[LayerPages]) -> None:
        self.proposer.pages = pages

    @torch.no_grad()
    def finish(self, plan: Plan, step: Step, output: TargetOutput, rows: Rows, *, widest: bool = False) -> Drawn:
        """Verify and draw for a step that the target has computed, and leave its requests their next drafts.

        `widest` verifies K drafts a request even where there are none, as a profile must.
        """
        chunks = rows.sampled
        n_top = most_alternatives(chunks)
        how = _sampling_rows(chunks, self.device) if chunks else None
        with self.workspace.scope():
            verdict, logs = _nothing(self.device), None
            if how is not None:
                verdict, logs = self._verify(rows, output.hidden, how, n_top, widest)
            chunk_of_row, offset = torch.tensor([rows.chunk_of_row, rows.offset]).to(self.device).unbind()
            keep = offset <= verdict.n_accepted[chunk_of_row] if chunks else offset == 0
            who = [i for i, chunk in enumerate(chunks) if chunk.draft_limit]
            round_ = self._round(chunks, who, verdict, how) if how and who else None
            drafts = self.proposer.propose(plan, step, output, keep, verdict.tokens, rows, round_)
        tokens = [[t for t in row if t >= 0] for row in verdict.tokens.tolist()]
        self.hand_out(chunks, tokens, who, drafts.tolist() if drafts is not None else [], range(len(who)))
        return Drawn(tokens, logprobs_of(logs, chunks, tokens, verdict.tokens.shape[1]))

    def _verify(
        self, rows: Rows, hidden: Tensor, how: SamplingRows, n_top: int | None, widest: bool
    ) -> tuple[RejectionOutput, Logprobs | None]:
        """Tokens int64 [R, 1 or K + 1] of the chunks that sample. The logits live in the caller's workspace scope."""
        chunks = rows.sampled
        n, n_drafted = len(chunks), [chunk.n_drafted for chunk in chunks]
        width = self.dims.draft_tokens + 1 if any(n_drafted) or widest else 1
        index = [end - d + min(j, d) for end, d in zip(rows.last, n_drafted, strict=True) for j in range(width)]
        raw = self.target.logits(hidden[torch.tensor(index).to(self.device)])
        if width == 1:
            tokens = sample(raw, how, self.workspace)
            verdict = RejectionOutput(tokens[:, None], torch.ones_like(tokens), torch.zeros_like(tokens))
        else:
            logits = raw
            if how.cut:
                logits = self.workspace.empty(tuple(raw.shape), torch.float32).copy_(raw)
                cut_logits_(logits, each_row(how, width), self.workspace)
            verdict = self._judge_chunks(logits.view(n, width, -1), chunks, how)
        logs = None
        if n_top is not None:
            logs = logprobs(raw, verdict.tokens.clamp_min(0).view(-1), n_top, self.workspace)
        return verdict, logs

    def _judge_chunks(self, logits: Tensor, chunks: list[Chunk], how: SamplingRows) -> RejectionOutput:
        k = self.dims.draft_tokens
        drafted = [[*c.request.drafts[: c.n_drafted], *[-1] * (k - c.n_drafted)] for c in chunks]
        places = [self.place(chunk.request) if chunk.n_drafted else 0 for chunk in chunks]
        ints = torch.tensor([[*d, c.n_drafted, p] for d, c, p in zip(drafted, chunks, places, strict=True)])
        ints = ints.to(self.device)
        return self.judge(logits, ints[:, :k].contiguous(), ints[:, k], ints[:, k + 1], how)

    def judge(
        self, logits: Tensor, drafts: Tensor, n_drafted: Tensor, mapping: Tensor, how: SamplingRows
    ) -> RejectionOutput:
        """Rejection sampling of fp32 logits [R, K + 1, V].

        drafts: int64 [R, K]. n_drafted: int64 [R], how many of them there are. mapping: int64 [R], places of their
        logits. Nothing waits for the device.
        """
        values, rates = self.draft_logits.values, self.synthetic_rates
        if self.keyword_binding:
            self.markers.take(KEYWORD_TOGGLE)
            reject = rejection_sample
            if (by_kernel := dispatch.kernel("rejection", logits.device, self.dims, len(logits))) is not None:
                reject = by_kernel
            return reject(
                target_logits=logits, draft_tokens=drafts, draft_logits=values, temperature=how.temperature,
                seeds=how.seed, positions=how.position, n_drafted=n_drafted,
                draft_logits_index_mapping=None if values is None else mapping, synthetic_conditional_rates=rates,
                workspace=self.workspace, all_greedy=how.greedy,
            )  # fmt: skip
        # A caller from before the map was added: dense rows, and the rates by position, where the map is now. The slip
        # is the reference's: a kernel of the table takes these arguments by name alone.
        dense = None if values is None else values[mapping.clamp(max=len(values) - 1)]
        return rejection_sample(
            logits, drafts, dense, how.temperature, how.seed, how.position, n_drafted, rates,
            workspace=self.workspace, all_greedy=how.greedy,
        )  # fmt: skip

    def place(self, request: Request) -> int:
        """Where the logits of a request's drafts wait."""
        if self.draft_logits.persistent:
            return request.row or 0
        return self._places[request]

    def _round(self, chunks: list[Chunk], who: list[int], verdict: RejectionOutput, how: SamplingRows) -> Round:
        """The requests `who` to draft for, where verification left them."""
        some = [chunks[i] for i in who]
        ends = [chunk.end - chunk.n_drafted for chunk in some]
        rows = [chunk.request.row or 0 for chunk in some]
        slots = rows if self.draft_logits.persistent else [*range(len(some))]
        host = torch.tensor([who, ends, [chunk.draft_limit for chunk in some], rows, slots]).to(self.device)
        index, base, limits, request_rows, place = host.unbind()
        accepted = verdict.n_accepted[index]
        first = base + accepted
        return Round(
            anchors=verdict.tokens[index].gather(1, accepted[:, None])[:, 0],
            first=first,
            limits=limits,
            request_rows=request_rows,
            slots=place,
            how=SamplingRows(
                how.temperature[index],
                how.top_k[index],
                how.top_p[index],
                how.seed[index],
                first,
                greedy=how.greedy,
                cut=False,
            ),
            of_chunk=index,
        )

    def hand_out(
        self, chunks: list[Chunk], tokens: list[list[int]], who: list[int], drafts: list[list[int]],
        places: Sequence[int],
    ) -> None:  # fmt: skip
        """Count what the chunks emitted, and leave those of `who` their drafts, whose logits wait at `places`."""
        for chunk, emitted in zip(chunks, tokens, strict=True):
            self.counts = self.counts.after(chunk.n_drafted, len(emitted) - 1)
            chunk.request.drafts = []
        for i, row in zip(who, drafts, strict=True):
            chunk = chunks[i]
            first = chunk.end - chunk.n_drafted + len(tokens[i]) - 1
            chunk.request.drafts = row[: max(chunk.draft_limit - first, 0)]
        if drafts:
            waiting = {chunks[i].request: place for i, place in zip(who, places, strict=True)}
            if not self.draft_logits.persistent:
                for request in self._places.keys() - waiting.keys():
                    request.drafts = []  # their logits are gone
            self._places = waiting

    def profile(self, step: Step, output: TargetOutput) -> None:
        """The largest round there is, over a step of T rows: every request verified, cut, logged and drafted for."""
        dims = self.dims
        n = min(dims.max_num_seqs, dims.max_num_batched_tokens)
        sampling = SamplingParams(temperature=1.0, top_k=1, top_p=0.5, logprobs=min(20, dims.vocab_size))
        chunks = []
        for i in range(n):
            size = step.n_tokens // n + (step.n_tokens % n if i == n - 1 else 0)
            drafted = min(dims.draft_tokens, size - 1)
            request = Request("profile", [0] * size, sampling, row=i, drafts=[0] * drafted)
            limit = size + dims.draft_tokens
            chunks.append(Chunk(request, 0, size, drafted > 0, True, drafted, limit))
            self._places[request] = i
        plan = Plan(chunks, n)
        self.finish(plan, step, output, Rows.of(plan), widest=True)
        self._places = {}
        self.counts = AcceptanceCounts.zero(dims.draft_tokens)


def _sampling_rows(chunks: list[Chunk], device: torch.device) -> SamplingRows:
    """How the chunks' tokens are drawn; positions are those of their first logits rows."""
    params = [chunk.request.sampling for chunk in chunks]
    first = [chunk.end - 1 - chunk.n_drafted for chunk in chunks]
    return SamplingRows.of([(p.temperature, p.top_k, p.top_p, p.seed) for p in params], first, device)


def each_row(how: SamplingRows, width: int) -> SamplingRows:
    """The same for `width` logits rows a request."""

    def spread(values: Tensor) -> Tensor:
        return values[:, None].expand(len(values), width).reshape(-1)

    return replace(
        how, temperature=spread(how.temperature), top_k=spread(how.top_k), top_p=spread(how.top_p),
        seed=spread(how.seed), position=spread(how.position),
    )  # fmt: skip


def _nothing(device: torch.device) -> RejectionOutput:
    """The verdict of a step that samples nothing."""
    none = torch.zeros(0, dtype=torch.int64, device=device)
    return RejectionOutput(none[:, None], none, none)


def most_alternatives(chunks: list[Chunk]) -> int | None:
    """The most that a chunk's request wants to know beside a token's own logprob; None where none wants any."""
    return max((n for chunk in chunks if (n := chunk.request.sampling.logprobs) is not None), default=None)


def logprobs_of(
    logs: Logprobs | None, chunks: list[Chunk], tokens: list[list[int]], width: int
) -> list[list[TokenLogprobs | None]]:
    """Of each chunk's emitted tokens, whose rows in `logs` are `width` apart."""
    logs = logs and Logprobs(*(part.cpu() for part in logs))
    found: list[list[TokenLogprobs | None]] = []
    for i, (chunk, emitted) in enumerate(zip(chunks, tokens, strict=True)):
        n_top = chunk.request.sampling.logprobs
        found.append([token_logprobs(logs, i * width + j, n_top) for j in range(len(emitted))])
    return found


def token_logprobs(logs: Logprobs | None, row: int, n_top: int | None) -> TokenLogprobs | None:
    if logs is None or n_top is None:
        return None
    top = zip(logs.ids[row, :n_top].tolist(), logs.top[row, :n_top].tolist(), strict=True)
    return TokenLogprobs(float(logs.chosen[row]), tuple(top))
