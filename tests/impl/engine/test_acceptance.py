"""Acceptance metrics by their definitions, and the construction of synthetic rates."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterable
from itertools import accumulate
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.engine.acceptance import (
    AcceptanceCounts,
    AcceptanceError,
    conditional_from_survival,
    survival_from_length,
    synthetic_conditional_rates,
)

K = 5


def products(rates: Iterable[float]) -> tuple[float, ...]:
    """a_k, the product of c_0 to c_k."""
    return tuple(accumulate(rates, mul))


ROUNDS = st.lists(
    st.integers(0, K).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted))), max_size=40
)


def counted(rounds: list[tuple[int, int]]) -> AcceptanceCounts:
    counts = AcceptanceCounts.zero(K)
    for n_drafted, n_accepted in rounds:
        counts = counts.after(n_drafted, n_accepted)
    return counts


@settings(deadline=None)
@given(ROUNDS)
def test_metrics_are_their_definitions_over_rounds(rounds: list[tuple[int, int]]) -> None:
    counts = counted(rounds)
    real = [(drafted, accepted) for drafted, accepted in rounds if drafted]
    if not real:
        assert counts == AcceptanceCounts.zero(K)
        assert (counts.acceptance_rate, counts.acceptance_length, counts.survival, counts.conditional) == (None,) * 4
        return
    assert counts.acceptance_rate == sum(a for _, a in real) / sum(d for d, _ in real)
    assert counts.acceptance_length == pytest.approx(sum(1 + a for _, a in real) / len(real))
    for k in range(K):
        accepted = sum(a > k for _, a in real)
        reached = sum(a >= k for _, a in real)
        assert counts.survival is not None
        assert counts.conditional is not None
        assert counts.survival[k] == accepted / len(real)
        assert counts.conditional[k] == (accepted / reached if reached else None)


@settings(deadline=None)
@given(ROUNDS)
def test_length_is_one_plus_the_survivals_and_the_products_of_the_conditionals(rounds: list[tuple[int, int]]) -> None:
    counts = counted(rounds)
    if counts.survival is None or counts.conditional is None:
        return
    assert 1 + math.fsum(counts.survival) == pytest.approx(counts.acceptance_length)
    assert products(c or 0.0 for c in counts.conditional) == pytest.approx(counts.survival)


@settings(deadline=None)
@given(st.lists(st.integers(0, K), min_size=1, max_size=40))
def test_rate_and_length_are_one_number_when_every_round_has_k_drafts(accepted: list[int]) -> None:
    counts = counted([(K, a) for a in accepted])
    assert counts.acceptance_rate is not None
    assert counts.acceptance_length is not None
    assert 1 + K * counts.acceptance_rate == pytest.approx(counts.acceptance_length)


def test_the_fixed_k_identity_does_not_hold_for_ragged_rounds() -> None:
    counts = counted([(5, 5), (1, 0)])
    assert counts.acceptance_length == 3.5
    assert 1 + K * (counts.acceptance_rate or 0.0) != pytest.approx(3.5)


@settings(deadline=None)
@given(ROUNDS, ROUNDS)
def test_the_difference_of_two_readings_counts_the_rounds_between(
    before: list[tuple[int, int]], between: list[tuple[int, int]]
) -> None:
    assert counted(before + between).since(counted(before)) == counted(between)


def test_readings_that_cannot_be_are_refused() -> None:
    with pytest.raises(AcceptanceError, match="fell by 2"):
        counted([(3, 1)]).since(counted([(3, 1), (2, 0)]))
    with pytest.raises(AcceptanceError, match="5 and 2 positions"):
        AcceptanceCounts.zero(2).since(AcceptanceCounts.zero(K))
    for drafted, accepted in [(2, 3), (6, 1), (3, -1)]:
        with pytest.raises(AcceptanceError, match="need 0 <= accepted"):
            AcceptanceCounts.zero(K).after(drafted, accepted)


def test_a_synthetic_length_is_ones_a_fraction_and_zeros() -> None:
    assert survival_from_length(3.341, 5) == pytest.approx((1, 1, 0.341, 0, 0))
    assert survival_from_length(1, 3) == (0, 0, 0)
    assert survival_from_length(4, 3) == (1, 1, 1)
    assert synthetic_conditional_rates(5, length=3.341) == pytest.approx((1, 1, 0.341, 0, 0))


@settings(deadline=None)
@given(k=st.integers(1, 8), share=st.floats(0, 1))
def test_a_synthetic_length_is_the_length_of_its_rates(k: int, share: float) -> None:
    length = 1 + share * k
    rates = survival_from_length(length, k)
    assert 1 + math.fsum(rates) == pytest.approx(length)
    assert products(synthetic_conditional_rates(k, length=length)) == pytest.approx(rates)


def test_asked_rates_become_conditional_rates_and_zero_over_zero_is_zero() -> None:
    assert conditional_from_survival((0.8, 0.4, 0.4, 0.1)) == pytest.approx((0.8, 0.5, 1.0, 0.25))
    assert conditional_from_survival((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)
    assert conditional_from_survival(()) == ()


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=8))
def test_increasing_rates_are_refused_and_others_come_back(rates: list[float]) -> None:
    if rates == sorted(rates, reverse=True):
        assert products(conditional_from_survival(rates)) == pytest.approx(tuple(rates))
    else:
        with pytest.raises(AcceptanceError, match="increase at position"):
            conditional_from_survival(rates)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rates": (0.5, 0.8)}, "position 1, from 0.5 to 0.8"),
        ({"rates": (1.2, 0.8)}, "1.2 of position 0"),
        ({"rates": (0.5, float("nan"))}, "nan of position 1"),
        ({"rates": (0.5, -0.1)}, "-0.1 of position 1"),
        ({"rates": (0.5,)}, "1 rates for 2 drafts"),
        ({"length": 0.9}, "0.9 is not in 1..3"),
        ({"length": 3.1}, "3.1 is not in 1..3"),
        ({"length": float("nan")}, "nan is not in 1..3"),
        ({}, "either rates or a length"),
        ({"rates": (0.5, 0.2), "length": 2.0}, "either rates or a length"),
    ],
)
def test_impossible_requests_get_one_line(arguments: dict, message: str) -> None:
    with pytest.raises(AcceptanceError, match=message) as refused:
        synthetic_conditional_rates(2, **arguments)
    assert "\n" not in str(refused.value)


def test_it_needs_no_torch() -> None:
    probe = "import sys, impl.engine.acceptance; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0
