"""Which requests run in the next step, and how many tokens of each (torch-free).

Running requests keep their arrival order, and decodes are served before prefill chunks. A request
that lacks blocks takes them from the youngest; that one goes back to the head of the waiting line
with its outputs kept, and is computed again from its first token when there is room.

A decode's chunk is its last token and the drafts behind it. Drafts come out of what the budget has
left once every decode has its one token, and out of half of that while a prompt is being computed or could start.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field, replace

from impl.engine.blocks import BlockAllocator, least_blocks
from impl.engine.request import FinishReason, Request


@dataclass(frozen=True)
class Chunk:
    """Positions start to end - 1 of a request, computed in one step."""

    request: Request
    start: int
    end: int
    is_decode: bool
    samples: bool
    """Whether its last row yields the request's next token."""
    n_drafted: int = 0
    """Its last rows that hold drafts, to be verified."""
    draft_limit: int = 0
    """Query rows of the draft that follows this step may take the positions before it; 0: no draft follows."""


@dataclass
class Plan:
    """One step: decode chunks first, then prefill chunks, both in arrival order."""

    chunks: list[Chunk] = field(default_factory=list)
    n_decode: int = 0

    @property
    def n_tokens(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.chunks)

    @property
    def n_decode_rows(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.chunks[: self.n_decode])


class Scheduler:
    """Continuous batching over a block allocator. Call `plan`, run the step, then `complete`."""

    def __init__(
        self, blocks: BlockAllocator, max_num_batched_tokens: int, max_num_seqs: int, draft_tokens: int = 0
    ) -> None:
        """`draft_tokens`: K, the drafts of a round; 0 without speculation."""
        self.blocks = blocks
        self.draft_tokens = draft_tokens
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_num_seqs = max_num_seqs
        self.running: list[Request] = []
        """In arrival order, always older than every waiting request."""
        self.waiting: deque[Request] = deque()
        self.n_preemptions = 0
        self._free_rows = list(range(max_num_seqs))

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def refusal(self, n_tokens: int) -> str | None:
        """Why a request that computes `n_tokens` positions can never run here; None if it can."""
        least = least_blocks(self.blocks.groups, n_tokens)
        if least <= self.blocks.n_usable:
            return None
        return (
            f"a request of {n_tokens} tokens needs {least} KV blocks, the pool has {self.blocks.n_usable}: "
            "shorten the prompt or max_tokens, or raise --memory-budget"
        )

    def add(self, request: Request) -> None:
        """Put a request at the end of the line. Raises ValueError if it can never fit."""
        refusal = self.refusal(request.most_tokens)
        if refusal:
            raise ValueError(refusal)
        self.waiting.append(request)

    def finish(self, request: Request, reason: FinishReason) -> None:
        """Take a request out, wherever it is, and give its blocks back; twice does nothing."""
        request.finish_reason = request.finish_reason or reason
        if request in self.running:
            self._leave(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def plan(self) -> Plan:
        """Choose the next step and map its tokens. An empty plan means that there is no work."""
        decodes: list[Chunk] = []
        prefills: list[Chunk] = []
        n_decodes = min(sum(request.is_decode for request in self.running), self.max_num_batched_tokens)
        budget = self.max_num_batched_tokens - n_decodes
        prompts = not all(request.is_decode for request in self.running) or (self.waiting and self._free_rows)
        for_drafts = budget // 2 if prompts else budget
        preempted = False
        # Blocks are taken in arrival order, so that a victim is never a request already chosen.
        for request in list(self.running):
            if request.row is None:  # preempted by an older one
                continue
            if request.is_decode:
                room = min(1, n_decodes - len(decodes)) and 1 + min(self._n_drafts(request), for_drafts, budget)
            else:
                room = min(request.remaining, budget)
            length, took = self._make_room(request, room)
            preempted |= took
            if not length:
                continue
            if request.is_decode:
                decodes.append(self._chunk(request, length))
                for_drafts -= length - 1
                budget -= length - 1
            else:
                prefills.append(self._chunk(request, length))
                budget -= length
        while self.waiting and self._free_rows and budget and not preempted:
            chunk = self._admit(self.waiting[0], budget)
            if chunk is None:
                break
            prefills.append(chunk)
            budget -= chunk.end - chunk.start
        return Plan([self._with_draft(chunk) for chunk in decodes + prefills], len(decodes))

    def complete(self, plan: Plan) -> None:
        """Note a step as done and give back the pages it has passed; requests that are finished leave."""
        for chunk in plan.chunks:
            request = chunk.request
            if request.row is None:  # aborted meanwhile
                continue
            request.computed = _kept(chunk)
            if request.finish_reason:
                self._leave(request)
            else:
                self.blocks.trim(request.row, request.computed)

    def _chunk(self, request: Request, length: int) -> Chunk:
        assert request.row is not None
        end = request.computed + length
        self.blocks.grow(request.row, end)
        n_drafted = max(end - request.n_tokens, 0)
        return Chunk(request, request.computed, end, request.is_decode, end >= request.n_tokens, n_drafted)

    def _n_drafts(self, request: Request) -> int:
        """Drafts worth verifying: one token more is emitted than is accepted."""
        return min(len(request.drafts), request.sampling.max_tokens - len(request.outputs) - 1)

    def _with_draft(self, chunk: Chunk) -> Chunk:
        """Map pages for the query rows of the draft that follows the chunk, where that takes nothing from anyone.

        Without free blocks the draft is shorter, or there is none.
        """
        request = chunk.request
        if not self.draft_tokens or not chunk.samples or request.row is None:
            return chunk
        # The last position computed is most_tokens - 1, and a query row's draft is verified one position on.
        limit = min(chunk.end + self.draft_tokens, request.most_tokens - 1)
        if limit > chunk.end and self.blocks.missing(request.row, limit) <= self.blocks.n_free:
            self.blocks.grow(request.row, limit)
        else:
            limit = min(limit, chunk.end)
        return replace(chunk, draft_limit=limit) if limit > chunk.end - chunk.n_drafted else chunk

    def _make_room(self, request: Request, want: int) -> tuple[int, bool]:
        """Tokens of `want` that there are blocks for, at least one if younger requests can make way for it."""
        preempted = False
        while want and not (length := self._fitting(request, want)):
            youngest = self.running[-1]
            if youngest is request:
                return 0, preempted
            self._preempt(youngest)
            preempted = True
        return (length if want else 0), preempted

    def _fitting(self, request: Request, want: int) -> int:
        """The longest chunk, up to `want`, that the free blocks can map."""
        assert request.row is not None
        low, high = 0, want
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks.missing(request.row, request.computed + middle) <= self.blocks.n_free:
                low = middle
            else:
                high = middle - 1
        return low

    def _admit(self, request: Request, budget: int) -> Chunk | None:
        """Start the head of the line if its whole first chunk fits, or any part of it when nothing else runs."""
        row = self._free_rows[0]
        request.row = row
        want = min(request.remaining, budget)
        fits = self._fitting(request, want)
        if fits < want and (self.running or not fits):
            request.row = None
            return None
        heapq.heappop(self._free_rows)
        self.waiting.popleft()
        self.running.append(request)
        return self._chunk(request, fits)

    def _preempt(self, request: Request) -> None:
        self._leave(request)
        request.computed = 0
        request.drafts.clear()
        request.n_preemptions += 1
        self.n_preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        assert request.row is not None
        self.blocks.release(request.row)
        heapq.heappush(self._free_rows, request.row)
        request.row = None
        self.running.remove(request)


def _kept(chunk: Chunk) -> int:
    """Positions whose cache entries stand after the chunk's step.

    The last known token is not computed yet, and what drafts beyond it have written is written again: rejected rows
    leave no other trace, since nothing before their positions reads them.
    """
    return min(chunk.end, chunk.request.n_tokens - 1)
