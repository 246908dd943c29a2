"""Whole decode steps as captured graphs, one a batch size and kind of drawing: target, verification, draft.

What a step needs goes to the device in one copy from persistent host memory, and what it yields comes back in one;
nothing else passes between the two, and the host waits once. Steps with a prompt's chunk run eagerly.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from impl.engine.config import EngineConfig
from impl.engine.graphs import GraphCache
from impl.engine.pages import BlockTables, Changes, LayerPages
from impl.engine.propose import DsparkProposer
from impl.engine.rounds import Drawn, Rounds, each_row, logprobs_of, most_alternatives
from impl.engine.scheduler import Chunk, Plan
from impl.engine.step import PageShape, decode_step
from impl.engine.step_times import StepTimes
from impl.handshake import Markers
from impl.model.target import Target
from impl.ops.rejection import RejectionOutput
from impl.ops.sampling import SamplingRows, cut_logits_, logprobs, sample
from impl.ops.workspace import Workspace

CHANGES = 256
"""Changes of the block tables that a step takes along; more are entered before it."""
COLUMNS = ("first", "n_rows", "line", "n_drafted", "place", "slot", "limit", "source", "seed", "top_k", "temperature",
           "top_p")  # fmt: skip
"""What the host says of a request, besides its tokens; the last two are fp64, by their bits."""
FLOATS = 2


class _Rows(NamedTuple):
    """The columns of the requests, int64 [R] each where not said otherwise."""

    first: Tensor
    """Position of a request's first row."""
    n_rows: Tensor
    """Its last known token and its drafts; 0 is padding."""
    line: Tensor
    """Of the block tables."""
    n_drafted: Tensor
    place: Tensor
    """Where the logits of its drafts wait."""
    slot: Tensor
    """Where the logits of its next drafts go."""
    limit: Tensor
    """Positions at and beyond it have no page."""
    source: Tensor
    """The request that its draft is of: itself, or for padding the last one, whose logits it writes once more."""
    tokens: Tensor
    """int64 [R, 1 + K]"""
    how: SamplingRows


class StepReplay:
    """Captures at construction, largest batch first; pages, block tables and the workspace must stay where they are."""

    def __init__(
        self,
        config: EngineConfig,
        target: Target,
        rounds: Rounds | None,
        tables: BlockTables,
        shape: PageShape,
        pages: list[LayerPages],
        markers: Markers,
        workspace: Workspace,
        times: StepTimes,
        device: torch.device,
    ) -> None:
        """`rounds`: of DSpark; None draws one token a request."""
        dims, self.times = config.dims, times
        self.target, self.rounds, self.tables, self.shape, self.pages = target, rounds, tables, shape, pages
        self.workspace, self.device = workspace, device
        self.width = 1 + config.draft_tokens
        n, on_cuda = min(dims.max_num_seqs, dims.max_num_batched_tokens // self.width), device.type == "cuda"
        size = 2 * CHANGES + n * (len(COLUMNS) + self.width)
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=on_cuda)
        self._inputs = torch.zeros(size, dtype=torch.int64, device=device)
        # Before any graph: what a table's place held stays where a change says -1.
        self._host[CHANGES : 2 * CHANGES] = -1
        self._inputs.copy_(self._host)
        results = (n, self.width + config.draft_tokens)
        self._results = torch.zeros(results, dtype=torch.int64, device=device)
        self._host_results = torch.zeros(results, dtype=torch.int64, pin_memory=on_cuda)
        self._logits = torch.zeros((n * self.width, dims.vocab_size), dtype=torch.float32, device=device)
        """Of the last step, for requests that want logprobs."""
        self._done = torch.cuda.Event() if on_cuda else None
        # On a CPU each size costs seconds of the boot.
        sizes = (1 << i for i in range(0, n.bit_length(), 1 if on_cuda else 2))
        self.sizes = sorted({n, *(size for size in sizes if size <= n)} - {0}, reverse=True)
        self.graphs = GraphCache(device, markers)
        for size in self.sizes:
            for greedy in (False, True):
                self.graphs.get_or_capture((size, greedy), self._captured(size, greedy))

    def _captured(self, size: int, greedy: bool) -> partial[Tensor]:
        values = self.rounds.draft_logits.values if self.rounds is not None else None
        return partial(self._step, size, greedy, values)

    def _step(self, size: int, greedy: bool, draft_logits: Tensor | None) -> Tensor:
        """int64 [R, 1 + K or 1 + 2 K]: what each request emits, -1 behind it, and its next drafts."""
        self._enter_blocks()
        rows = self._read(size, greedy)
        step = decode_step(rows.tokens, rows.first, rows.n_rows, rows.line, self.tables.tables, self.shape)
        output = self.target.forward(step, self.pages)
        results = self._results[:size]
        with self.workspace.scope():
            raw = self.target.logits(output.hidden)
            self._logits[: len(raw)].copy_(raw)
            if self.rounds is None:
                return results.copy_(sample(raw, rows.how, self.workspace)[:, None])
            # Where logits are assigned and not kept in place, each run of the capture must find what the first found.
            self.rounds.draft_logits.values = draft_logits
            verdict = self._verify(raw, rows)
            results[:, : self.width].copy_(verdict.tokens)
            proposer = self.rounds.proposer
            assert isinstance(proposer, DsparkProposer)
            column = torch.arange(self.width, device=self.device)
            stand = (column <= verdict.n_accepted[:, None]) & (column < rows.n_rows[:, None])
            proposer.draft.insert_context(output.aux, step, stand.view(-1), proposer.pages)
            results[:, self.width :].copy_(self._draft(proposer, verdict, rows))
        return results

    def _enter_blocks(self) -> None:
        """The block tables' changes; those of -1 leave their place as it is."""
        places, blocks = self._inputs[: 2 * CHANGES].view(2, CHANGES).unbind()
        flat = self.tables.flat
        flat.index_copy_(0, places, torch.where(blocks < 0, flat[places], blocks))

    def _read(self, size: int, greedy: bool) -> _Rows:
        lines = self._inputs[2 * CHANGES :].view(-1, len(COLUMNS) + self.width)[:size]
        of_request = _contiguous(lines[:, : len(COLUMNS)].t())
        first, n_rows, line, n_drafted, place, slot, limit, source, seed, top_k = of_request[:-FLOATS].unbind()
        temperature, top_p = of_request[-FLOATS:].view(torch.float64).float().unbind()
        how = SamplingRows(temperature, top_k, top_p, seed, first, greedy=greedy, cut=not greedy)
        tokens = _contiguous(lines[:, len(COLUMNS) :])
        return _Rows(first, n_rows, line, n_drafted, place, slot, limit, source, tokens, how)

    def _verify(self, raw: Tensor, rows: _Rows) -> RejectionOutput:
        assert self.rounds is not None
        logits = raw
        if rows.how.cut:
            logits = self.workspace.empty(tuple(raw.shape), torch.float32).copy_(raw)
            cut_logits_(logits, each_row(rows.how, self.width), self.workspace)
        n = len(rows.first)
        return self.rounds.judge(
            logits.view(n, self.width, -1), _contiguous(rows.tokens[:, 1:]), rows.n_drafted, rows.place, rows.how
        )

    def _draft(self, proposer: DsparkProposer, verdict: RejectionOutput, rows: _Rows) -> Tensor:
        """int64 [R, K]"""
        accepted = verdict.n_accepted
        anchors = verdict.tokens.gather(1, accepted[:, None])[:, 0]
        base = rows.first + 1 + accepted
        of = torch.stack((anchors, base, rows.limit, rows.line, rows.slot, rows.how.seed))[:, rows.source]
        anchors, base, limit, line, slot, seed = of.unbind()
        temperature = rows.how.temperature[rows.source]
        how = SamplingRows(
            temperature, rows.how.top_k, rows.how.top_p, seed, base, greedy=rows.how.greedy, cut=False
        )  # without cuts, top_k and top_p are not read
        return proposer.draft.propose(anchors, base, limit, line, slot, how, self.tables.tables, proposer.pages).tokens

    def run(self, plan: Plan, changes: Changes) -> Drawn | None:
        """What a plan of decodes yields, with the block tables' changes; None for a plan that no graph is for."""
        chunks = plan.chunks
        n = len(chunks)
        if not n or plan.n_decode < n or not self.sizes or n > self.sizes[0]:
            return None
        size = min(size for size in self.sizes if size >= n)
        self._write(chunks, size, changes)
        greedy = not any(chunk.request.sampling.temperature for chunk in chunks)
        replay = self.graphs.get_or_capture((size, greedy), _captured_already)
        with self.times.around(plan, replayed=True):
            results = replay.run()
        self._host_results[:n].copy_(results[:n], non_blocking=True)
        if self._done is not None:
            self._done.record()
            self._done.synchronize()
        found = self._host_results[:n].tolist()
        tokens = [[t for t in row[: self.width] if t >= 0] for row in found]
        n_top = most_alternatives(chunks)
        logs = None
        if n_top is not None:
            emitted = results[:n, : self.width].clamp_min(0).reshape(-1)
            with self.workspace.scope():
                logs = logprobs(self._logits[: n * self.width], emitted, n_top, self.workspace)
        if self.rounds is not None:
            who = [i for i, chunk in enumerate(chunks) if chunk.draft_limit]
            self.rounds.hand_out(chunks, tokens, who, [found[i][self.width :] for i in who], who)
        return Drawn(tokens, logprobs_of(logs, chunks, tokens, self.width))

    def _write(self, chunks: list[Chunk], size: int, changes: Changes) -> None:
        """Everything the host knows of the step, to the device."""
        lines, floats = [], []
        for i, chunk in enumerate(chunks):
            request, how = chunk.request, chunk.request.sampling
            ids = request.tokens(chunk.start, chunk.end - chunk.n_drafted) + request.drafts[: chunk.n_drafted]
            row, place = request.row or 0, 0
            if self.rounds is not None and chunk.n_drafted:
                place = self.rounds.place(request)
            lines.append([chunk.start, len(ids), row, chunk.n_drafted, place, row, chunk.draft_limit, i,
                          how.seed - (1 << 64) if how.seed >= 1 << 63 else how.seed, how.top_k, 0, 0,
                          *ids, *[0] * (self.width - len(ids))])  # fmt: skip
            floats.append([how.temperature, how.top_p])
        last, filling = len(chunks) - 1, [0] * (len(COLUMNS) + self.width)
        filling[COLUMNS.index("source")] = last
        lines += [filling] * (size - len(chunks))
        host = self._host[2 * CHANGES :].view(-1, len(filling))
        host[:size] = torch.tensor(lines)
        bits = host[: len(chunks), len(COLUMNS) - FLOATS : len(COLUMNS)].view(torch.float64)
        bits.copy_(torch.tensor(floats, dtype=torch.float64))
        self._write_changes(changes)
        used = 2 * CHANGES + size * len(filling)
        self._inputs[:used].copy_(self._host[:used], non_blocking=True)

    def _write_changes(self, changes: Changes) -> None:
        """The changes, which are done with then; behind them the first one again, or what leaves its place as it is."""
        if len(changes) > CHANGES:
            self.tables.apply(changes)
        places, blocks = self.tables.places(changes), [*changes.values()]
        changes.clear()
        rest = CHANGES - len(places)
        places += [places[0] if places else 0] * rest
        blocks += [blocks[0] if blocks else -1] * rest
        self._host[: 2 * CHANGES] = torch.tensor(places + blocks)

    @property
    def nbytes(self) -> int:
        """Bytes of the graphs' pool and of the buffers around them on the device."""
        return self.graphs.pool.nbytes + self._inputs.nbytes + self._results.nbytes + self._logits.nbytes


def _contiguous(values: Tensor) -> Tensor:
    """A copy whose rows lie behind each other, also where there is one row."""
    return values.clone(memory_format=torch.contiguous_format)


def _captured_already() -> None:
    raise AssertionError("every size is captured when the engine boots")
