"""What one step tells the model: token rows, their positions, and where their cache entries live.

A step mixes decode and prefill rows freely, decode rows first. Every row reads the cache through
slots, so a row's result does not depend on which other rows share the step. A slot is
`block * states_per_page + state`; block 0 is the null block, and slot 0 is where padding points.
Source: deepseek_v4_dspark.md sections 3.2 to 3.5.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    ids = torch.tensor(token_ids, dtype=torch.int64, device=device)
    at = torch.tensor(positions, dtype=torch.int64, device=device)
    rows = torch.tensor(request_rows, dtype=torch.int64, device=device)
    back = torch.arange(pages.window - 1, -1, -1, device=device)
    seen = at[:, None] - back
    swa_groups = [name for name in block_tables if name.startswith("swa")]

    def slot_of(group: str, where: Tensor, tokens: int, row: Tensor) -> Tensor:
        inside = where.clamp_min(0)
        block = block_tables[group][row if where.dim() == 1 else row[:, None], inside // tokens]
        return torch.where(where >= 0, block * tokens + inside % tokens, 0)

    step = Step(
        token_ids=ids,
        positions=at,
        request_rows=rows,
        n_decode=n_decode,
        block_tables=block_tables,
        swa_slots={g: slot_of(g, at, pages.swa_tokens, rows) for g in swa_groups},
        window_slots={g: slot_of(g, seen, pages.swa_tokens, rows) for g in swa_groups},
        window_valid=seen >= 0,
        state_slots={},
        emissions={},
        visible={},
    )
    for ratio, tokens in pages.state_tokens.items():
        group = state_group(ratio)
        step.state_slots[ratio] = slot_of(group, at, tokens, rows)
        step.visible[ratio] = (at + 1) // ratio
        done = [i for i, p in enumerate(positions) if (p + 1) % ratio == 0]
        if not done:
            continue
        padded = done + [done[0]] * (-len(done) % 4)
        which = torch.tensor(padded, dtype=torch.int64, device=device)
        valid = torch.arange(len(padded), device=device) < len(done)
        span = (2 if ratio == 4 else 1) * ratio
        sources = at[which][:, None] - torch.arange(span - 1, -1, -1, device=device)
        per_page = pages.block_tokens // ratio
        entry = slot_of("full", at[which] // ratio, per_page, rows[which])
        step.emissions[ratio] = Emission(
            rows=which,
            slots=torch.where(valid, entry, 0),
            source_slots=slot_of(group, sources, tokens, rows[which]),
            source_valid=sources >= 0,
            positions=at[which] // ratio * ratio,
            valid=valid,
        )
    return step


def state_group(ratio: int) -> str:
    """The block-table group that holds a ratio's compressor-state pages."""
    return "c4_state" if ratio == 4 else "c128_state"
