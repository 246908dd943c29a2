import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsbench.simulation import noise
from dsbench.simulation.counted import Drafts, _answers

N = 4000


@pytest.mark.parametrize("name", noise.SPREADS)
def test_boots_have_the_spread_of_their_source(name):
    spread, rng = noise.SPREADS[name], np.random.default_rng(1)
    sd = noise.draw_between(rng, spread.boot, N)
    assert spread.boot[0] <= sd.min() <= sd.max() <= spread.boot[1]
    effects = noise.boot_effects(rng, sd, 8) / sd[:, None]
    assert effects.mean() == pytest.approx(0, abs=0.03)
    assert effects.std() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("name", noise.SPREADS)
def test_a_benchmarks_own_error_is_far_below_the_spread_between_boots(name):
    """measurement.md, section 2: 5 to 30 times; with few requests of wide spread less."""
    spread = noise.SPREADS[name]
    if spread.requests > 1:
        sd = float(np.mean(spread.boot))
        ratio = sd / math.sqrt(noise.within_variance(spread, sd))
        assert 1.0 < ratio < 30


def test_drift_stays_for_a_while():
    path = noise.drift(np.random.default_rng(2), 20_000, 5)
    for lag in (1, 2, 4):
        seen = np.corrcoef(path[:, 0], path[:, lag])[0, 1]
        assert seen == pytest.approx(noise.DRIFT_CORRELATION**lag, abs=0.02)
    assert path.std(axis=0) == pytest.approx(np.ones(5), abs=0.02)


@pytest.mark.parametrize("name", ["decode.tps", "prefill.tps", "kv.device_bytes"])
def test_blocks_differ_as_the_power_figures_assume(name):
    spread, rng = noise.SPREADS[name], np.random.default_rng(3)
    sd = np.full(N, spread.boot[1])
    readings = noise.boot_readings(noise.requests(rng, spread, sd, 2))
    seen = readings if spread.absolute else np.log(readings)
    assert (seen[:, 1] - seen[:, 0]).std() == pytest.approx(noise.difference_sd(spread, spread.boot[1]), rel=0.04)


@pytest.mark.parametrize("boots", [4, 12])
def test_boots_in_any_order_spread_as_the_power_figures_assume(boots):
    spread, rng = noise.SPREADS["decode.tps"], np.random.default_rng(4)
    readings = np.log(noise.boot_readings(noise.requests(rng, spread, np.full(N, 0.06), boots)))
    seen = math.sqrt(readings.var(axis=1, ddof=1).mean())
    assert seen == pytest.approx(noise.shuffled_sd(spread, 0.06, boots), rel=0.04)


@settings(max_examples=25, deadline=None)
@given(st.floats(-0.2, 0.2), st.integers(0, 2**31))
def test_a_shift_moves_the_readings_by_just_that(shift, seed):
    spread, sd = noise.SPREADS["decode.tps"], np.full(3, 0.05)
    plain = noise.requests(np.random.default_rng(seed), spread, sd, 4)
    moved = noise.requests(np.random.default_rng(seed), spread, sd, 4, shift)
    assert moved / plain == pytest.approx(np.full(plain.shape, math.exp(shift)))


@pytest.mark.parametrize(("questions", "tolerance"), [(noise.GSM8K, 0.002), (noise.TOOLCALL, 0.006)])
@pytest.mark.parametrize("end", [0, 1])
def test_items_are_right_and_flip_as_often_as_they_should(questions, tolerance, end):
    rng, right, flipped, flips = np.random.default_rng(5), [], [], questions.flips[end]
    for _ in range(300):
        a, b = noise.answers(rng, questions, noise.item_chances(rng, questions, flips), 2)
        right.append(a.mean())
        flipped.append((a != b).mean())
    assert np.mean(right) == pytest.approx(questions.share, abs=tolerance)
    assert np.mean(flipped) == pytest.approx(flips, rel=0.12)


def test_flips_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"0\.100 of the items cannot flip if 0\.950 are right"):
        noise.item_chances(np.random.default_rng(1), noise.GSM8K, 0.10)


def test_answers_of_a_cluster_flip_together():
    rng = np.random.default_rng(6)

    def spread(questions):
        found = []
        for _ in range(200):
            chances = noise.item_chances(rng, questions, 0.16)
            a, b = noise.answers(rng, questions, chances, 2)
            found.append((b - a).reshape(15, -1).mean(axis=1))
        return np.std(found)

    loose = noise.ItemNoise(135, 0.86, (0.08, 0.16), 15, 0.0, "")
    assert spread(noise.TOOLCALL) > 1.1 * spread(loose)


@pytest.mark.parametrize(("questions", "loss", "tolerance"), [
    (noise.GSM8K, 0.0, 0.001), (noise.GSM8K, 0.015, 0.001), (noise.TOOLCALL, 0.08, 0.006),
])  # fmt: skip
def test_a_planted_loss_of_the_share_is_the_loss(questions, loss, tolerance):
    rng, seen = np.random.default_rng(8), []
    for _ in range(300):
        a, b = _answers(rng, questions, questions.flips[1], 2, loss)
        seen.append(b.mean() - a.mean())
    assert np.mean(seen) == pytest.approx(-loss, abs=tolerance)


def test_drafts_have_the_length_and_the_counting_noise_that_power_assumes():
    case = Drafts(5)
    counts = noise.accepted_counts(np.random.default_rng(9), noise.DRAFTS, 0.0, N)
    lengths = counts.sum(axis=1) / counts[:, 0]
    assert lengths.mean() == pytest.approx(case._length(0.0), rel=0.005)
    assert lengths.std() == pytest.approx(case._counting_sd(), rel=0.05)
    assert (np.diff(counts, axis=1) <= 0).all()


def test_boots_of_a_block_share_its_level():
    rng, drafts = np.random.default_rng(10), noise.DRAFTS
    levels = noise.block_levels(rng, drafts, [None, *(block for block in range(N) for _ in "ab")])
    assert levels[0] == 0
    assert (levels[1::2] == levels[2::2]).all()
    assert levels[1::2].std() == pytest.approx(drafts.blocks, rel=0.05)
    counts = noise.accepted_counts(rng, drafts, 0.0, 2 * N, levels[1:])
    lengths = (counts.sum(axis=1) / counts[:, 0]).reshape(N, 2)
    alone = Drafts(8)._counting_sd()
    assert lengths.std(axis=0).min() > 2 * alone
    assert np.diff(lengths, axis=1).std() == pytest.approx(math.sqrt(2) * alone, rel=0.06)
