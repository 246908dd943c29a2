"""Rows of exact metrics whose boots do not all agree: within the margin, far beyond it, and in drift controls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.metrics import metric
from dsbench.records import ALPHA
from dsbench.simulation.comparing import boot, reading, row_of, two_arms
from dsbench.stats.exact import FAR, compare_exact, far_apart
from tests.dsbench.judged import CANDIDATE, PRIMARY, row

GIB = 2**30


def judged(baseline, candidate, key="kv.available_bytes", **fields):
    of, boots = metric(key).model_copy(update=fields), []
    for block, pair in enumerate(zip(baseline, candidate, strict=True), start=1):
        for arm, value in zip("ab", pair, strict=True):
            boots.append(boot(len(boots) + 1, arm, block, [reading(of, len(boots) + 1, value)]))
    return row_of(two_arms(of, len(baseline)), boots)


# --- within the margin ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wobbling", ["baseline", "candidate", "both"])
def test_a_byte_within_the_margin_is_agreement(wobbling):
    steady, wobble = [10**9] * 2, [10**9, 10**9 + 1]
    a, b = (wobble if wobbling in (arm, "both") else steady for arm in ("baseline", "candidate"))
    found = judged(a, b, margin=0.01)
    assert (found.word, found.kind, found.p) == ("equivalent", "exact", None)
    assert found.notes == ["boots of one arm differ by up to 1 B, within the margin: taken as agreeing"]


@pytest.mark.parametrize(
    ("candidate", "word"),
    [(980, "regressed"), (1020, "improved"), (1004, "equivalent"), (1009, "inconclusive"), (988, "inconclusive")],
)
def test_a_word_must_hold_wherever_a_boot_reads(candidate, word):
    """A baseline of 995 to 1,000 and a margin of 10: 985 is the most that is no loss against all of them."""
    found = judged([1000, 995], [candidate, candidate - 4], margin=0.01)
    assert found.word == word
    assert ("the boots lie on both sides of the margin" in found.notes) == (word == "inconclusive")


def test_beyond_the_margin_a_candidate_that_varies_is_nondeterminism():
    found = judged([1000, 1000], [1000, 1011], margin=0.01)
    assert (found.word, found.notes) == ("regressed", ["not deterministic: its boots read 1,000, 1,011"])
    assert judged([1000, 1000], [1000, 1010], margin=0.01).word == "equivalent"


@given(st.lists(st.integers(900, 1100), min_size=2, max_size=5), st.integers(0, 300))
def test_within_the_tolerance_is_what_no_two_boots_exceed(values, tolerance):
    agree = compare_exact(values, [1000], tolerance) not in ("baseline-varies",)
    assert agree == all(abs(x - y) <= tolerance for x in values for y in values)


# --- far beyond what the boots differ by ----------------------------------------------------------------------------


@pytest.mark.parametrize("varies", ["baseline", "both"])
def test_a_byte_of_wobble_hides_no_loss_of_gibibytes(varies):
    a = [60 * GIB] * 4 + [60 * GIB + 1]
    b = [50 * GIB] * 4 + [50 * GIB - (varies == "both")]
    found = judged(a, b)
    assert (found.word, found.kind, found.delta) == ("regressed", "exact", -10 * GIB)
    assert found.notes == ["boots of one arm differ by up to 1 B; the arms lie more than 10 times as far apart"]
    # A baseline that repeats is owed a candidate that does.
    assert judged(b, a).word == ("regressed" if varies == "baseline" else "improved")


def test_what_is_not_that_far_is_a_sample_as_before():
    found = judged([1000, 1010] * 2, [1110, 1110] * 2)
    assert (found.word, found.kind) == ("inconclusive", "sample")
    assert judged([1000, 1010] * 2, [1111, 1111] * 2).word == "improved"
    assert judged([1000, 1010] * 2, [1120, 1132] * 2).word == "inconclusive"


@pytest.mark.parametrize("boots", [2, 3])
def test_so_few_boots_part_by_luck_and_claim_nothing(boots):
    found = judged([60 * GIB] * (boots - 1) + [60 * GIB + 1], [50 * GIB] * boots)
    assert (found.word, found.kind) == ("inconclusive", "sample")


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6), st.lists(st.integers(0, 1000), min_size=1, max_size=6))
def test_far_apart_is_the_same_from_both_sides(a, b):
    apart = far_apart(a, b, ALPHA)
    assert apart == far_apart(b, a, ALPHA)
    if apart:
        assert max(a) < min(b) or max(b) < min(a)
        assert FAR * max(max(a) - min(a), max(b) - min(b)) < min(abs(x - y) for x in a for y in b)


def false_rate(boots, share, wobble, alpha=ALPHA):
    """Share of A/A in which arms are far apart: boots that read one of two levels, the higher in `share` of them."""
    rng = np.random.default_rng(1)
    high = rng.random((4000, 2, boots)) < share
    drawn = 50 * GIB * (1 + high) + rng.integers(0, wobble, high.shape, endpoint=True)
    return np.mean([far_apart(a, b, alpha) for a, b in drawn.tolist()])


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("boots", [2, 3, 4, 5])
def test_by_simulation_equal_arms_of_two_levels_are_hardly_ever_far_apart(boots, share):
    assert false_rate(boots, share, wobble=1) <= ALPHA
    assert false_rate(boots, share, wobble=2**20) <= ALPHA


def test_by_simulation_two_boots_an_arm_of_two_levels_would_err():
    """What the number of boots is asked for."""
    assert false_rate(2, 0.5, wobble=2**20, alpha=1.0) > 0.10
    assert false_rate(4, 0.5, wobble=2**20) > 0


# --- drift controls -------------------------------------------------------------------------------------------------


def weights(of_baseline, of_candidate):
    def values(planned, key):
        if key != "kv.weights_bytes":
            return None
        return of_candidate(planned.block) if planned.arm == CANDIDATE else of_baseline(planned.block)

    return values


def wobbling(block):
    return 10**9 + (block == 5)


def test_a_drift_control_that_doubles_voids_whatever_a_byte_does(verdict_of):
    verdict = verdict_of(weights(wobbling, lambda block: 2 * 10**9), blocks=5)
    assert (verdict.word, [reason.code for reason in verdict.void]) == ("void", ["drift"])


def test_a_drift_control_that_may_have_moved_voids(verdict_of):
    verdict = verdict_of(weights(wobbling, lambda block: 10**9 + 5), blocks=5)
    assert (verdict.word, [reason.code for reason in verdict.void]) == ("void", ["drift-unresolved"])
    (reason,) = verdict.void
    assert "kv.weights_bytes, which mhc_input_reuse cannot touch, may have moved: 1,000,000,000" in reason.text
    assert row(verdict, PRIMARY).word == "void"


@pytest.mark.parametrize("candidate", [wobbling, lambda block: 10**9 + (block == 1), lambda block: 10**9])
def test_a_drift_control_that_varies_as_its_baseline_does_voids_nothing(verdict_of, candidate):
    verdict = verdict_of(weights(wobbling, candidate), blocks=5)
    assert (verdict.void, verdict.word) == ([], "improved")
    notes = row(verdict, "kv.weights_bytes").notes
    assert "no boot of the candidate reads beyond the baseline's own boots" in notes


def test_a_drift_control_nobody_can_read_voids_nothing(verdict_of):
    verdict = verdict_of(lambda planned, key: "unknown" if key == "kv.weights_bytes" else None)
    assert verdict.void == []
