"""Which blocks hold which tokens of which running request (torch-free).

A block id is one place in every bucket of the pool and belongs to one group of one request at a time.
Block 0 is the null block: padding points at it and it is never given out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from impl.kv_geometry import Group

NULL_BLOCK = 0


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free: the caller must look at `missing` first."""


@dataclass
class PageList:
    """One request's pages of one group, by page number; pages behind the window are the null block again."""

    blocks: list[int] = field(default_factory=list)
    n_released: int = 0
    """Leading pages that are given back."""


class BlockAllocator:
    """Gives blocks to the rows of the running batch and takes them back.

    A *row* is a running request's line of the block tables. `changes` collects what the tables do not
    know yet: (group index, row, page) -> block.
    """

    def __init__(self, groups: Sequence[Group], n_blocks: int, n_rows: int) -> None:
        if n_blocks < 1:
            raise ValueError(f"a pool needs at least the null block, got {n_blocks} blocks: raise the memory budget")
        self.groups = tuple(groups)
        self.n_blocks = n_blocks
        self._free = deque(range(1, n_blocks))
        self._rows = [[PageList() for _ in self.groups] for _ in range(n_rows)]
        self.changes: dict[tuple[int, int, int], int] = {}

    @property
    def n_usable(self) -> int:
        """Blocks there are, the null block apart."""
        return self.n_blocks - 1

    @property
    def n_free(self) -> int:
        return len(self._free)

    def pages(self, row: int) -> list[PageList]:
        """What a row holds, in the order of `groups`."""
        return self._rows[row]

    def missing(self, row: int, end: int) -> int:
        """Blocks a row still lacks for positions 0 to end - 1."""
        return sum(
            max(-(-end // group.tokens) - len(held.blocks), 0)
            for group, held in zip(self.groups, self._rows[row], strict=True)
        )

    def grow(self, row: int, end: int) -> None:
        """Map every position before `end`. Raises OutOfBlocksError, with nothing taken, if they do not suffice."""
        if self.missing(row, end) > self.n_free:
            raise OutOfBlocksError(f"row {row} lacks {self.missing(row, end)} blocks, {self.n_free} are free")
        for index, group in enumerate(self.groups):
            blocks = self._rows[row][index].blocks
            for page in range(len(blocks), -(-end // group.tokens)):
                blocks.append(self._free.popleft())
                self.changes[index, row, page] = blocks[page]

    def trim(self, row: int, computed: int) -> None:
        """Give back pages that no token from position `computed` on can see."""
        for index, group in enumerate(self.groups):
            if group.lookback is not None:
                held = self._rows[row][index]
                passed = max(computed - group.lookback, 0) // group.tokens
                self._give_back(index, row, min(passed, len(held.blocks)))

    def release(self, row: int) -> None:
        """Give back all that a row holds."""
        for index in range(len(self.groups)):
            held = self._rows[row][index]
            self._give_back(index, row, len(held.blocks))
            self._rows[row][index] = PageList()

    def _give_back(self, index: int, row: int, upto: int) -> None:
        held = self._rows[row][index]
        for page in range(held.n_released, upto):
            self._free.append(held.blocks[page])
            held.blocks[page] = NULL_BLOCK
            self.changes[index, row, page] = NULL_BLOCK
        held.n_released = max(held.n_released, upto)


def least_blocks(groups: Sequence[Group], n_tokens: int) -> int:
    """Blocks without which a request of `n_tokens` computed tokens cannot run, even one token a step.

    A window of `lookback` tokens and the current one touches at most ceil(lookback / tokens) + 1 pages.
    """
    total = 0
    for group in groups:
        whole = -(-n_tokens // group.tokens)
        total += whole if group.lookback is None else min(whole, -(-group.lookback // group.tokens) + 1)
    return total
