"""Every slot of a step against the definition, written out with plain integers."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.dims import MICRO, PICO, Dims
from impl.engine.pages import BlockTables, page_shape
from impl.engine.step import PageShape, Step, build_step, state_group
from impl.kv_geometry import KvGeometry

N_ROWS = 4
CPU = torch.device("cpu")


def tables_of(dims: Dims, seed: int) -> tuple[BlockTables, PageShape]:
    """Tables full of distinct blocks, so that every wrong lookup shows."""
    geometry = KvGeometry.of(dims)
    tables = BlockTables(geometry.groups, N_ROWS, 512, CPU)
    blocks = list(range(1, sum(table.numel() for table in tables.tables.values()) + 1))
    random.Random(seed).shuffle(blocks)
    for table in tables.tables.values():
        flat = [blocks.pop() for _ in range(table.numel())]
        table.copy_(torch.tensor(flat).view_as(table))
    return tables, page_shape(dims, geometry)


CHUNKS = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 70)), min_size=1, max_size=N_ROWS)


@settings(max_examples=60, deadline=None)
@given(dims=st.sampled_from([PICO, MICRO]), chunks=CHUNKS, n_decodes=st.integers(0, N_ROWS), seed=st.integers(0, 99))
def test_slots_are_those_of_the_definition(
    dims: Dims, chunks: list[tuple[int, int]], n_decodes: int, seed: int
) -> None:
    tables, pages = tables_of(dims, seed)
    chunks = [(start, 1 if i < n_decodes else length) for i, (start, length) in enumerate(chunks)]
    positions = [p for start, length in chunks for p in range(start, start + length)]
    rows = [row for row, (_, length) in enumerate(chunks) for _ in range(length)]
    ids = [(7 * i) % dims.vocab_size for i in range(len(rows))]
    step = build_step(ids, positions, rows, min(n_decodes, len(chunks)), tables.tables, pages, CPU)

    assert step.n_tokens == len(ids)
    assert step.token_ids.tolist() == ids
    assert step.positions.tolist() == positions
    assert step.request_rows.tolist() == rows
    assert step.n_decode == min(n_decodes, len(chunks))
    assert step.max_position == max(positions)

    def slot(group: str, row: int, entry: int, per_page: int) -> int:
        if entry < 0:
            return 0
        return int(tables.tables[group][row, entry // per_page]) * per_page + entry % per_page

    windows = [list(range(p - dims.window + 1, p + 1)) for p in positions]
    assert step.window_valid.tolist() == [[p >= 0 for p in window] for window in windows]
    swa = [group for group in tables.tables if group.startswith("swa")]
    assert set(step.swa_slots) == set(step.window_slots) == set(swa)
    for group in swa:
        tokens = pages.swa_tokens
        expected = [[slot(group, row, p, tokens) for p in window] for row, window in zip(rows, windows, strict=True)]
        assert step.window_slots[group].tolist() == expected
        assert step.swa_slots[group].tolist() == [line[-1] for line in expected]
    assert set(step.state_slots) == set(step.visible) == set(pages.state_tokens)
    for ratio, tokens in pages.state_tokens.items():
        group = state_group(ratio)
        where = list(zip(rows, positions, strict=True))
        assert step.state_slots[ratio].tolist() == [slot(group, row, p, tokens) for row, p in where]
        assert step.visible[ratio].tolist() == [(p + 1) // ratio for p in positions]
        check_emission(step, ratio, where, pages, slot)


def check_emission(step: Step, ratio: int, where: list[tuple[int, int]], pages: PageShape, slot: object) -> None:
    done = [i for i, (_, p) in enumerate(where) if (p + 1) % ratio == 0]
    if not done:
        assert ratio not in step.emissions
        return
    emission = step.emissions[ratio]
    n = len(done)
    assert emission.rows.shape[0] % 4 == 0
    assert emission.rows.shape[0] - n < 4
    assert emission.valid.tolist() == [True] * n + [False] * (-n % 4)
    assert emission.rows[:n].tolist() == done
    assert emission.slots[n:].tolist() == [0] * (-n % 4)
    span = (2 if ratio == 4 else 1) * ratio
    for entry, i in enumerate(done):
        row, p = where[i]
        assert emission.slots[entry] == slot("full", row, p // ratio, pages.block_tokens // ratio)  # type: ignore[operator]
        assert emission.positions[entry] == p // ratio * ratio
        sources = range(p - span + 1, p + 1)
        assert emission.source_valid[entry].tolist() == [q >= 0 for q in sources]
        expected = [slot(state_group(ratio), row, q, pages.state_tokens[ratio]) for q in sources]  # type: ignore[operator]
        assert emission.source_slots[entry].tolist() == expected


@settings(max_examples=40, deadline=None)
@given(
    dims=st.sampled_from([PICO, MICRO]),
    local=st.lists(st.integers(-1, 600), min_size=6, max_size=6),
    ratio=st.sampled_from([4, 32]),
)
def test_local_indices_become_slots_of_their_request(dims: Dims, local: list[int], ratio: int) -> None:
    tables, pages = tables_of(dims, 5)
    step = build_step([1, 1], [9, 9], [2, 0], 2, tables.tables, pages, CPU)
    per_page = dims.block_tokens // ratio
    got = step.compressed_slots(ratio, torch.tensor(local).view(2, 3), per_page)
    table = tables.tables["full"]

    def expected(row: int, index: int) -> int:
        page = index // per_page
        return int(table[row, page]) * per_page + index % per_page if index >= 0 and page < table.shape[1] else 0

    assert got.tolist() == [[expected(row, i) for i in part] for row, part in ((2, local[:3]), (0, local[3:]))]


@pytest.mark.parametrize("n", [1, 5])
def test_a_row_has_the_same_slots_alone_and_in_a_batch(n: int) -> None:
    tables, pages = tables_of(PICO, 1)
    together = build_step([1] * n, [31] * n, [i % N_ROWS for i in range(n)], n, tables.tables, pages, CPU)
    alone = build_step([1], [31], [0], 1, tables.tables, pages, CPU)
    for group, slots in alone.window_slots.items():
        assert torch.equal(together.window_slots[group][0], slots[0])
    for ratio, emission in alone.emissions.items():
        assert torch.equal(together.emissions[ratio].source_slots[0], emission.source_slots[0])
