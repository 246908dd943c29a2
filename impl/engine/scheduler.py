"""Which requests run in the next step, and how many tokens of each (torch-free).

Running requests keep their arrival order, and decodes are served before prefill chunks. A request
that lacks blocks takes them from the youngest; that one goes back to the head of the waiting line
with its outputs kept, and is computed again from its first token when there is room.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

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


@dataclass
class Plan:
    """One step: decode chunks first, then prefill chunks, both in arrival order."""

    chunks: list[Chunk] = field(default_factory=list)
    n_decode: int = 0

    @property
    def n_tokens(self) -> int:
        return sum(chunk.end - chunk.start for chunk in self.chunks)


class Scheduler:
    """Continuous batching over a block allocator. Call `plan`, run the step, then `complete`."""

    def __init__(self, blocks: BlockAllocator, max_num_batched_tokens: int, max_num_seqs: int) -> None:
        self.blocks = blocks
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
        preempted = False
        # Blocks are taken in arrival order, so that a victim is never a request already chosen.
        for request in list(self.running):
            if request.row is None:  # preempted by an older one
                continue
            room = min(1, n_decodes - len(decodes)) if request.is_decode else budget
            length, took = self._make_room(request, min(request.remaining, room))
            preempted |= took
            if not length:
                continue
            if request.is_decode:
                decodes.append(self._chunk(request, length))
            else:
                prefills.append(self._chunk(request, length))
                budget -= length
        while self.waiting and self._free_rows and budget and not preempted:
            chunk = self._admit(self.waiting[0], budget)
            if chunk is None:
                break
            prefills.append(chunk)
            budget -= chunk.end - chunk.start
        return Plan(decodes + prefills, len(decodes))

    def complete(self, plan: Plan) -> None:
        """Note a step as done and give back the pages it has passed; requests that are finished leave."""
        for chunk in plan.chunks:
            request = chunk.request
            if request.row is None:  # aborted meanwhile
                continue
            request.computed = chunk.end
            if request.finish_reason:
                self._leave(request)
            else:
                self.blocks.trim(request.row, request.computed)

    def _chunk(self, request: Request, length: int) -> Chunk:
        assert request.row is not None
        end = request.computed + length
        self.blocks.grow(request.row, end)
        return Chunk(request, request.computed, end, request.is_decode, end == request.n_tokens)

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
        request.n_preemptions += 1
        self.n_preemptions += 1
        self.waiting.appendleft(request)

    def _leave(self, request: Request) -> None:
        assert request.row is not None
        self.blocks.release(request.row)
        heapq.heappush(self._free_rows, request.row)
        request.row = None
        self.running.remove(request)
