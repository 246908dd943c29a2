"""Padded heads by platform."""

import pytest

from impl.platforms import padded_heads, query_in_place_refusal


@pytest.mark.parametrize(
    ("platform", "local", "heads"),
    [
        ("cpu", 1, 4), ("cpu", 4, 4), ("cpu", 5, 8),
        ("sm90", 64, 64), ("sm90", 32, 64), ("sm90", 65, 128),
        ("sm120", 32, 32), ("sm120", 8, 32), ("sm120", 33, 64), ("sm120", 64, 64),
    ],
)  # fmt: skip
def test_padded_heads(platform: str, local: int, heads: int) -> None:
    assert padded_heads(platform, local) == heads


@pytest.mark.parametrize(
    ("platform", "local", "message"),
    [("sm9", 64, "did you mean sm90"), ("sm90", 129, "at most 128"), ("cpu", 0, "at least 1")],
)
def test_what_cannot_be(platform: str, local: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        padded_heads(platform, local)


def test_only_equal_counts_are_written_in_place() -> None:
    assert query_in_place_refusal(32, padded_heads("sm120", 32)) is None
    assert "32 local heads, the kernel reads 64" in (query_in_place_refusal(32, padded_heads("sm90", 32)) or "")
