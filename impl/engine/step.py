"""What one step tells the model: token rows, their positions, and where their cache entries live.

A step mixes decode and prefill rows freely, decode rows first. Every row reads the cache through
slots, so a row's result does not depend on which other rows share the step. A slot is
`block * states_per_page + state`; block 0 is the null block, and slot 0 is where padding points.
Source: deepseek_v4_dspark.md sections 3.2 to 3.5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class PageShape:
    """How many entries a page of each kind holds: what turns positions into slots."""

    window: int
    swa_tokens: int
    """Tokens a sliding-window page holds."""
    block_tokens: int
    """Tokens a block of the full group holds; a page of ratio r holds block_tokens // r states."""
    state_tokens: dict[int, int]
    """Per compression ratio: tokens a compressor-state page holds."""


@dataclass
class Emission:
    """The compressed entries of one ratio that are completed by this step's tokens.

    `rows` names the completing token row of each entry. Entries beyond the real ones pad to a
    multiple of four; their `valid` is False and their slots are 0.
    """

    rows: Tensor
    """int64 [E]: index into the step's token rows."""
    slots: Tensor
    """int64 [E]: slot of the compressed entry in the full group's pages."""
    source_slots: Tensor
    """int64 [E, (1 + overlap) * r]: state slots of the tokens it summarizes, oldest first."""
    source_valid: Tensor
    """bool [E, (1 + overlap) * r]: False before position 0."""
    positions: Tensor
    """int64 [E]: position its RoPE uses, (p // r) * r."""
    valid: Tensor
    """bool [E]"""


@dataclass
class Step:
    """One forward pass over N token rows (N <= T); all tensors on the engine's device."""

    token_ids: Tensor
    """int64 [N]"""
    positions: Tensor
    """int64 [N]"""
    request_rows: Tensor
    """int64 [N]: row of the block tables each token's request owns."""
    n_decode: int
    """Rows [0, n_decode) are decode rows."""
    block_tables: dict[str, Tensor]
    """Per group: int64 [max_num_seqs, blocks]; entries not allocated are 0."""
    swa_slots: dict[str, Tensor]
    """Per sliding-window group: int64 [N], where each token's own state goes."""
    window_slots: dict[str, Tensor]
    """Per sliding-window group: int64 [N, window], slots of the last `window` positions, oldest first."""
    window_valid: Tensor
    """bool [N, window]: False before position 0."""
    state_slots: dict[int, Tensor]
    """Per ratio: int64 [N], where each token's compressor-state row goes."""
    emissions: dict[int, Emission]
    """Per ratio; a ratio is absent when the step completes no entry of it."""
    visible: dict[int, Tensor]
    """Per ratio: int64 [N], compressed entries row t may read, (p + 1) // r; they are 0..n-1."""
    max_position: int | None = None
    """The largest position, known on the host: how far candidates reach. None reads the whole block table."""

    @property
    def n_tokens(self) -> int:
        return self.token_ids.shape[0]

    def compressed_slots(self, ratio: int, local: Tensor, states_per_page: int) -> Tensor:
        """Slots of local compressed indices [N, S] (int64, -1 = none, which maps to slot 0)."""
        table = self.block_tables["full"]
        block = local.clamp_min(0) // states_per_page
        blocks = table[self.request_rows[:, None], block.clamp_max(table.shape[1] - 1)]
        slots = blocks * states_per_page + local.clamp_min(0) % states_per_page
        return torch.where((local >= 0) & (block < table.shape[1]), slots, 0)


def build_step(
    token_ids: list[int],
    positions: list[int],
    request_rows: list[int],
    n_decode: int,
    block_tables: dict[str, Tensor],
    pages: PageShape,
    device: torch.device,
) -> Step:
    """Derive every slot of a step from its positions and block tables.

    The number of compressed entries it completes is known on the host, so nothing waits for the device.
    """
    # One transfer; everything else is derived where it is used.
    ids, at, rows = torch.tensor([token_ids, positions, request_rows], dtype=torch.int64).to(device).unbind()
    seen = at[:, None] - _last(pages.window, device)
    window_valid = seen >= 0
    window_slots, swa_slots = {}, {}
    page, offset = _split(seen.clamp_min_(0), pages.swa_tokens)
    for group in block_tables:
        if group.startswith("swa"):
            slots = block_tables[group][rows[:, None], page].mul_(pages.swa_tokens).add_(offset)
            window_slots[group] = slots.mul_(window_valid)
            swa_slots[group] = slots[:, -1].contiguous()
    step = Step(
        token_ids=ids,
        positions=at,
        request_rows=rows,
        n_decode=n_decode,
        block_tables=block_tables,
        swa_slots=swa_slots,
        window_slots=window_slots,
        window_valid=window_valid,
        state_slots={},
        emissions={},
        visible={},
        max_position=max(positions),
    )
    for ratio, tokens in pages.state_tokens.items():
        step.state_slots[ratio] = _slots(block_tables[state_group(ratio)], rows, at, tokens)
        step.visible[ratio] = (at + 1).div_(ratio, rounding_mode="floor")
        done = [i for i, p in enumerate(positions) if (p + 1) % ratio == 0]
        if done:
            step.emissions[ratio] = _host_emission(done, ratio, at, rows, block_tables, pages)
    return step


def window_step(
    token_ids: Tensor,
    positions: Tensor,
    limits: Tensor,
    request_rows: Tensor,
    block_tables: dict[str, Tensor],
    groups: Iterable[str],
    pages: PageShape,
    max_model_len: int,
) -> Step:
    """A step for layers that only have a window, from device tensors alone: int64 [N] each.

    Rows at or beyond `limits` have no page: they write to the null block.
    """
    seen = positions[:, None] - _last(pages.window, positions.device)
    valid = (seen >= 0) & (seen < limits[:, None])
    seen = seen.clamp(0, max_model_len - 1)
    swa_slots, window_slots = {}, {}
    for group in sorted(set(groups)):
        window_slots[group] = _slots(block_tables[group], request_rows[:, None], seen, pages.swa_tokens) * valid
        swa_slots[group] = window_slots[group][:, -1].contiguous()
    return Step(
        token_ids=token_ids,
        positions=seen[:, -1].contiguous(),
        request_rows=request_rows,
        n_decode=token_ids.shape[0],
        block_tables=block_tables,
        swa_slots=swa_slots,
        window_slots=window_slots,
        window_valid=valid,
        state_slots={},
        emissions={},
        visible={},
    )


def decode_step(
    token_ids: Tensor,
    first: Tensor,
    n_rows: Tensor,
    request_rows: Tensor,
    block_tables: dict[str, Tensor],
    pages: PageShape,
) -> Step:
    """The same step as `build_step`'s for decodes alone, from device tensors with static shapes: it can be captured.

    token_ids: int64 [R, W]; request r's rows lie at positions first[r] to first[r] + n_rows[r] - 1, all int64 [R]. Rows
    behind them are padding: position 0, the null block, nothing seen. Entries are as many as W rows can complete.
    """
    n, width = token_ids.shape
    device = token_ids.device
    column = torch.arange(width, device=device)
    valid = (column < n_rows[:, None]).view(-1)
    at = (first[:, None] + column).view(-1) * valid
    rows = request_rows[:, None].expand(n, width).reshape(-1)
    seen = at[:, None] - _last(pages.window, device)
    window_valid = (seen >= 0) & valid[:, None]
    seen = seen.clamp_min(0)
    step = Step(
        token_ids=token_ids.reshape(-1),
        positions=at,
        request_rows=rows,
        n_decode=n * width,
        block_tables=block_tables,
        swa_slots={},
        window_slots={},
        window_valid=window_valid,
        state_slots={},
        emissions={},
        visible={},
    )
    for group in block_tables:
        if group.startswith("swa"):
            slots = _slots(block_tables[group], rows[:, None], seen, pages.swa_tokens) * window_valid
            step.window_slots[group], step.swa_slots[group] = slots, slots[:, -1].contiguous()
    for ratio, tokens in pages.state_tokens.items():
        step.state_slots[ratio] = _slots(block_tables[state_group(ratio)], rows, at, tokens) * valid
        step.visible[ratio] = (at + 1).div(ratio, rounding_mode="floor")
        of_request = torch.arange(-(-width // ratio), device=device)
        done = (first.div(ratio, rounding_mode="floor")[:, None] + 1 + of_request) * ratio - 1 - first[:, None]
        real = done < n_rows[:, None]
        which = (done * real + torch.arange(n, device=device)[:, None] * width).view(-1)
        padding = which.new_zeros(-len(which) % 4)
        step.emissions[ratio] = _emission(
            torch.cat((which, padding)),
            torch.cat((real.view(-1), padding.bool())),
            ratio,
            at,
            rows,
            block_tables,
            pages,
        )
    return step


def _host_emission(
    done: list[int],
    ratio: int,
    positions: Tensor,
    request_rows: Tensor,
    block_tables: dict[str, Tensor],
    pages: PageShape,
) -> Emission:
    """The entries of one ratio that token rows `done` complete."""
    n_padding = -len(done) % 4
    index = torch.tensor([done + [done[0]] * n_padding, [1] * len(done) + [0] * n_padding]).to(positions.device)
    return _emission(index[0], index[1].bool(), ratio, positions, request_rows, block_tables, pages)


def _emission(
    which: Tensor,
    valid: Tensor,
    ratio: int,
    positions: Tensor,
    request_rows: Tensor,
    block_tables: dict[str, Tensor],
    pages: PageShape,
) -> Emission:
    """The entries that token rows `which` (int64 [E]) complete, where `valid`."""
    at, rows = positions[which], request_rows[which]
    sources = at[:, None] - _last((2 if ratio == 4 else 1) * ratio, positions.device)
    source_valid = sources >= 0
    tokens = pages.state_tokens[ratio]
    source_slots = _slots(block_tables[state_group(ratio)], rows[:, None], sources.clamp_min_(0), tokens)
    entry = at.div(ratio, rounding_mode="floor")
    return Emission(
        rows=which,
        slots=_slots(block_tables["full"], rows, entry, pages.block_tokens // ratio).mul_(valid),
        source_slots=source_slots.mul_(source_valid),
        source_valid=source_valid,
        positions=entry.mul_(ratio),
        valid=valid,
    )


def _slots(table: Tensor, rows: Tensor, where: Tensor, per_page: int) -> Tensor:
    """Slots of entries `where` >= 0 of the requests at `rows`."""
    page, offset = _split(where, per_page)
    return table[rows, page].mul_(per_page).add_(offset)


def _split(where: Tensor, per_page: int) -> tuple[Tensor, Tensor]:
    page = where.div(per_page, rounding_mode="floor")
    return page, where - page * per_page


@lru_cache(maxsize=32)
def _last(n: int, device: torch.device) -> Tensor:
    """How far back each of the last n positions is, oldest first: n - 1, ..., 0."""
    return torch.arange(n - 1, -1, -1, device=device)


def state_group(ratio: int) -> str:
    """The block-table group that holds a ratio's compressor-state pages."""
    return "c4_state" if ratio == 4 else "c128_state"
