import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.cli.params import NAMED_SHAPES, NumberRange, byte_size, ratios, shape


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("63586506240", 63_586_506_240),
        ("63,586,506,240", 63_586_506_240),
        ("63_586_506_240", 63_586_506_240),
        ("10.54GiB", int(10.54 * 2**30)),
        ("10.54 gib", int(10.54 * 2**30)),
        ("512MiB", 512 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("2TiB", 2 * 2**40),
        ("7kB", 7000),
        ("0", 0),
        ("12B", 12),
    ],
)
def test_sizes(text, size):
    assert byte_size(text) == size


@given(st.floats() | st.integers(-(10**400), 10**400).map(str))
def test_a_number_of_a_range_is_a_number_in_it(given):
    kind = NumberRange(min=0, min_open=True, max=1_000_000)
    try:
        number = kind.convert(given, None, None)
    except click.BadParameter:
        assert not 0 < float(given) <= 1_000_000
    else:
        assert 0 < number <= 1_000_000


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "12 XB", "1.2.3", ",", "ten"])
def test_no_sizes(text):
    with pytest.raises(click.BadParameter, match="is no size in bytes; write"):
        byte_size(text)


@given(st.integers(0, 2**60))
def test_whole_bytes_are_exact(size):
    assert byte_size(str(size)) == byte_size(f"{size:,}") == size
    assert byte_size(f"{size}GiB") == size * 2**30


@given(st.lists(st.integers(0, 256), min_size=1))
def test_ratios_read_back(values):
    assert ratios(",".join(map(str, values))) == ratios(str(values)) == tuple(values)


@pytest.mark.parametrize("text", ["", "4;128", "4,,128", "four"])
def test_no_ratios(text):
    with pytest.raises(click.BadParameter, match="one number a layer"):
        ratios(text)


def test_shapes():
    assert all(shape(name).name == name for name in NAMED_SHAPES)
    assert shape("flash6").compress_ratios == (0, 0, 4, 128, 4, 128)
    with pytest.raises(click.BadParameter, match="did you mean micro"):
        shape("mikro")
