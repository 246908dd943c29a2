"""Pooling of compressor states against a float64 loop over tokens and channels (section 3.2)."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.engine.step import Emission
from impl.ops import compressor
from impl.ops.packed_kv import store_rows
from impl.ops.workspace import Workspace


def state_pages(rows: torch.Tensor, per_page: int, slots: torch.Tensor, spare: int) -> torch.Tensor:
    n_blocks = int(slots.max()) // per_page + 1
    pages = torch.zeros(n_blocks, per_page * rows.shape[1] * 4 + spare, dtype=torch.uint8)
    store_rows(pages, slots, slots // per_page, per_page, rows, Workspace())
    return pages


def plain_entry(rows: list[list[float]], last: int, ratio: int, width: int) -> list[float]:
    """One entry of float64 rows [kv | score] of tokens 0..last, completed at `last`."""
    columns = len(rows[0]) // 2
    entry = []
    for c in range(width):
        scores, values = [], []
        for u in range(last + 1 - (2 if ratio == 4 else 1) * ratio, last + 1):
            if u < 0:
                continue
            column = c + (width if ratio == 4 and u > last - ratio else 0)
            scores.append(rows[u][columns + column])
            values.append(rows[u][column])
        mass = [math.exp(s - max(scores)) for s in scores]
        entry.append(sum(m * v for m, v in zip(mass, values, strict=True)) / sum(mass))
    return entry


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([4, 8, 32]), st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.integers(0, 9))
def test_entries_are_the_channelwise_softmax_of_their_tokens(ratio, width, count, per_page, spare):
    columns = compressor.columns_of(ratio, width)
    gen = torch.Generator().manual_seed(width)
    rows = torch.randn(count * ratio, 2 * columns, generator=gen) * 3
    slots = per_page + torch.randperm(len(rows) + 5, generator=gen)[: len(rows)]
    pages = state_pages(rows, per_page, slots, spare)
    span = (2 if ratio == 4 else 1) * ratio
    last = torch.arange(1, count + 1) * ratio - 1
    sources = last[:, None] - torch.arange(span - 1, -1, -1)
    emission = Emission(
        rows=last, slots=last, positions=last, valid=last >= 0, source_valid=sources >= 0,
        source_slots=torch.where(sources >= 0, slots[sources.clamp_min(0)], 0),
    )  # fmt: skip
    workspace = Workspace()
    out = torch.empty(count, width)
    compressor.pool(pages, per_page, emission, ratio, out, workspace)
    wanted = [plain_entry(rows.double().tolist(), p, ratio, width) for p in last.tolist()]
    torch.testing.assert_close(out.double(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-5, atol=1e-5)

    # The null block's content does not count, whatever it is.
    pages[0] = 255
    again = torch.empty_like(out)
    compressor.pool(pages, per_page, emission, ratio, again, workspace)
    assert torch.equal(again, out)


def test_an_entry_has_the_same_bits_alone_and_in_tiles(monkeypatch):
    gen = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 4 * 32, generator=gen)
    pages = state_pages(rows, 4, 4 + torch.arange(64), 0)
    last = torch.arange(1, 17) * 4 - 1
    sources = last[:, None] - torch.arange(7, -1, -1)

    def pooled(which: slice) -> torch.Tensor:
        chosen = sources[which]
        emission = Emission(rows=chosen, slots=chosen, positions=chosen, valid=chosen >= 0, source_valid=chosen >= 0,
                            source_slots=torch.where(chosen >= 0, chosen + 4, 0))  # fmt: skip
        out = torch.empty(len(chosen), 32)
        compressor.pool(pages, 4, emission, 4, out, Workspace())
        return out

    whole = pooled(slice(None))
    assert torch.equal(torch.cat([pooled(slice(i, i + 1)) for i in range(16)]), whole)
    monkeypatch.setattr(compressor, "POOL_BYTES", 3 * 8 * 4 * 32 * 4)
    assert torch.equal(pooled(slice(None)), whole)


@pytest.mark.parametrize("widths", [[6], [6, 4]])
def test_score_offsets_touch_the_score_halves_only(widths):
    apes = [torch.full((4, w), float(i + 1)) for i, w in enumerate(widths)]
    offsets = compressor.score_offsets(apes)
    wanted = [value for i, w in enumerate(widths) for value in [0.0] * w + [i + 1.0] * w]
    assert offsets.tolist() == [wanted] * 4
