"""Tiles cover every row once; under fake tensors one of each length is enough for the same peak."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from impl.ops.tiles import tiles


@given(st.integers(0, 1000), st.integers(1, 300))
def test_every_row_once_in_order_and_no_tile_too_long(n, size):
    parts = list(tiles(n, size))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n))
    assert all(part.stop - part.start == size for part in parts[:-1])


@given(st.integers(0, 1000), st.integers(1, 300))
def test_fake_tensors_get_one_tile_of_each_length(n, size):
    real = list(tiles(n, size))
    with FakeTensorMode():
        fake = list(tiles(n, size))
    assert all(part in real for part in fake)
    lengths = [p.stop - p.start for p in fake]
    assert sorted(lengths) == sorted({p.stop - p.start for p in real})


def test_a_tile_has_at_least_one_row():
    with pytest.raises(ValueError, match="at least 1 row, got 0"):
        list(tiles(8, 0))
