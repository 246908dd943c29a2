"""The map from local to global slots, element by element against Python, and what it must not touch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.ops.index_map import fill_local, to_global
from impl.ops.workspace import Workspace

WIDTH = 12


@st.composite
def maps(draw):
    """Rows of local indices, -1 and indices beyond the table among them, over random block tables."""
    n, n_requests, n_blocks = draw(st.integers(1, 70)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    per_page = draw(st.integers(1, 3))
    gen = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    local = torch.randint(-1, n_blocks * per_page + 3, (n, WIDTH), generator=gen, dtype=torch.int32)
    table = torch.randint(0, 50, (n_requests, n_blocks), generator=gen)
    return local, table, torch.randint(0, n_requests, (n,), generator=gen), per_page


def by_hand(local, table, requests, per_page):
    def slot(index, blocks):
        page = index // per_page
        return -1 if index < 0 or page >= len(blocks) else blocks[page] * per_page + index % per_page

    return [[slot(i, table[r].tolist()) for i in row] for row, r in zip(local.tolist(), requests.tolist(), strict=True)]


@settings(max_examples=60, deadline=None)
@given(maps())
def test_every_element_is_its_own_slot_in_place_and_apart(case):
    local, table, requests, per_page = case
    wanted = by_hand(*case)
    out, before = torch.full_like(local, 77), local.clone()
    lens = torch.full((len(local),), 99, dtype=torch.int32)
    to_global(local, table, requests, per_page, out, lens, Workspace())
    assert out.tolist() == wanted
    assert lens.tolist() == [sum(slot >= 0 for slot in row) for row in wanted]
    assert torch.equal(local, before)
    in_place, again = local.clone(), torch.zeros_like(lens)
    to_global(in_place, table, requests, per_page, in_place, again, Workspace())
    assert torch.equal(in_place, out)
    assert torch.equal(again, lens)


@settings(max_examples=30, deadline=None)
@given(maps(), st.data())
def test_a_part_of_the_rows_leaves_the_others_alone(case, data):
    local, table, requests, per_page = case
    first = data.draw(st.integers(0, len(local)))
    rows, lens = local.clone(), torch.full((len(local),), -7, dtype=torch.int32)
    to_global(rows[first:], table, requests[first:], per_page, rows[first:], lens[first:], Workspace())
    assert torch.equal(rows[:first], local[:first])
    assert (lens[:first] == -7).all()
    assert rows[first:].tolist() == by_hand(*case)[first:]


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65])
def test_local_rows_are_all_visible_entries_and_no_more(n):
    visible = torch.arange(n) % (WIDTH + 3)
    rows, lens = torch.full((n, WIDTH), 99, dtype=torch.int32), torch.full((n,), 99, dtype=torch.int32)
    fill_local(torch.arange(WIDTH, dtype=torch.int32), visible, rows, lens, Workspace())
    for row, seen, length in zip(rows.tolist(), visible.tolist(), lens.tolist(), strict=True):
        assert length == min(seen, WIDTH)
        assert row == [i if i < seen else -1 for i in range(WIDTH)]


def test_a_second_map_over_the_same_rows_is_wrong():
    """Why a step's rows carry a flag: slots taken for indices."""
    rows, lens = torch.tensor([[0, 1, 2, -1]], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    table, request = torch.tensor([[5, 2]]), torch.zeros(1, dtype=torch.int64)
    to_global(rows, table, request, 2, rows, lens, Workspace())
    assert rows.tolist() == [[10, 11, 4, -1]]
    to_global(rows, table, request, 2, rows, lens, Workspace())
    assert rows.tolist() == [[-1, -1, -1, -1]]
    assert lens.tolist() == [0]
