"""Whether two tensors share a byte, against their addresses one by one; what outputs may be."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from impl.ops.places import check_outputs, dense_rows, overlap, place_of

STEPS = st.integers(1, 12)
BUFFER = torch.zeros(400, dtype=torch.int16)


@st.composite
def rows(draw, steps):
    """Dense rows somewhere in the buffer: int16 [count, width]."""
    step = draw(steps)
    width, count = draw(st.integers(1, step)), draw(st.integers(1, 12))
    return torch.as_strided(BUFFER, (count, width), (step, 1), draw(st.integers(0, 200)))


def addresses(tensor):
    start, (step, _), size = tensor.data_ptr(), tensor.stride(), tensor.element_size()
    return {
        start + (r * step + c) * size + byte
        for r in range(tensor.shape[0])
        for c in range(tensor.shape[1])
        for byte in range(size)
    }


@given(rows(STEPS), rows(STEPS))
def test_no_shared_byte_is_missed(a, b):
    assert dense_rows(a)
    assert overlap(a, b) >= bool(addresses(a) & addresses(b))
    assert overlap(a, b) == overlap(b, a)


@given(STEPS.flatmap(lambda step: st.tuples(rows(st.just(step)), rows(st.just(step)))))
def test_rows_of_one_spacing_are_told_exactly(pair):
    spaced = [tensor for tensor in pair if place_of(tensor).rows > 1]
    if len({place_of(tensor).step for tensor in spaced}) == 1:
        assert overlap(*pair) == bool(addresses(pair[0]) & addresses(pair[1]))


def test_columns_of_one_buffer_lie_apart():
    aux = torch.zeros(5, 3, 8)
    assert dense_rows(aux[:, 1])
    assert not overlap(aux[:, 0], aux[:, 1])
    assert overlap(aux[:, 1], aux[2:, 1])
    assert not overlap(aux[:2, 1], aux[2:, 1])
    assert not overlap(aux[:0], aux)
    assert not dense_rows(aux[..., ::2])
    assert not dense_rows(aux[:, 0].t())
    assert not dense_rows(aux[0, :1].expand(4, 8))


def test_outputs_are_two_places_and_inputs_themselves_or_apart():
    x, y = torch.zeros(4, 8), torch.zeros(4, 8)
    check_outputs({"out": y, "mean": torch.zeros(4, 8), "none": None}, {"y": y, "x": x, "fn": None}, {"out": "y"})
    with pytest.raises(ValueError, match="mean and out must be two places"):
        check_outputs({"out": y, "mean": y}, {"x": x})
    with pytest.raises(ValueError, match="out must lie apart from y, which is read again"):
        check_outputs({"out": y}, {"y": y})
    with pytest.raises(ValueError, match="out must be y itself or apart from it, got a part of its memory"):
        check_outputs({"out": y[1:]}, {"y": y}, {"out": "y"})
