import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dsbench.stats.power import POWER, blocks_needed, smallest_effect, visible
from dsbench.stats.samples import interval

ALPHA = 0.05


def test_nothing_is_visible_where_the_test_cannot_fire():
    assert smallest_effect(0.01, 5, ALPHA) is None
    assert smallest_effect(0.01, 6, ALPHA) is not None


def test_six_blocks_need_all_six_on_one_side():
    """At 6 blocks the test fires only if all signs agree: P(one sign) = 0.8^(1/6)."""
    assert visible(6, ALPHA) == pytest.approx(norm.ppf(POWER ** (1 / 6)), rel=0.06)


@pytest.mark.parametrize("blocks", [6, 8, 12, 13])
def test_the_power_is_what_it_says(blocks):
    effect = visible(blocks, ALPHA)
    rng = np.random.default_rng(blocks)
    runs = 400
    spans = [interval(rng.normal(effect, 1.0, blocks), 1 - ALPHA) for _ in range(runs)]
    hits = sum(not span.low <= 0 <= span.high for span in spans) / runs
    assert hits == pytest.approx(POWER, abs=3.0 * math.sqrt(0.16 / runs) + 0.02)


@given(st.floats(0.001, 0.5), st.floats(0.002, 0.2))
def test_blocks_needed_is_the_fewest(sd, effect):
    blocks = blocks_needed(effect, sd, ALPHA)
    assert blocks is not None
    assert smallest_effect(sd, blocks, ALPHA) <= effect
    if blocks > 6:
        assert smallest_effect(sd, blocks - 1, ALPHA) > effect


def test_the_visible_effect_shrinks_with_blocks():
    seen = [visible(n, ALPHA) for n in range(6, 40)]
    assert all(a > b for a, b in itertools.pairwise(seen))


def test_no_effect_is_never_seen():
    assert blocks_needed(0.0, 0.01, ALPHA) is None
    assert blocks_needed(1e-9, 1.0, ALPHA) is None
    assert blocks_needed(0.02, 0.0, ALPHA) == 6
