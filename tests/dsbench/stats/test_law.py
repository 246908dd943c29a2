import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.stats.holm import holm
from dsbench.stats.law import Context, cells, compare_law, together

TOKENS = [f"t{i}" for i in range(100)]
TOP = 20


def context(rng, law, drawn_from, size):
    """Tokens of `size` requests drawn from one law, to be compared with the 20 likeliest of another."""
    counts = rng.multinomial(size, drawn_from)
    observed = {token: int(count) for token, count in zip(TOKENS, counts, strict=True) if count}
    return Context(observed, {TOKENS[i]: float(law[i]) for i in np.argsort(-law)[:TOP]})


def prompt(rng, requests, variation=0.0, contexts=(1, 4, 6)):
    """An output of three positions; from the second on, tokens come from a law `variation` away."""
    positions = []
    for number, how_many in enumerate(contexts):
        laws = rng.dirichlet(np.full(len(TOKENS), 0.1), size=how_many)
        sizes = rng.multinomial(requests, rng.dirichlet(np.full(how_many, 1.0)))
        moved = [_moved(law, rng.permutation(law), variation if number else 0.0) for law in laws]
        positions.append([context(rng, a, b, n) for a, b, n in zip(laws, moved, sizes, strict=True)])
    return positions


def _moved(law, other, variation):
    distance = np.abs(law - other).sum() / 2
    return law + (other - law) * min(variation / distance, 1.0)


@pytest.mark.parametrize("requests", [100, 500])
def test_by_simulation_a_sound_law_is_rejected_at_most_alpha_of_the_time(requests):
    rng = np.random.default_rng(1)
    ps = np.array([compare_law(prompt(rng, requests)).p for _ in range(1500)])
    for alpha in (0.05, 0.01):
        assert (ps <= alpha).mean() <= alpha + 2 * np.sqrt(alpha / 1500)
    assert (ps <= 1e-3).sum() <= 5


def probe_p(rng, prompts, requests, variation=0.0):
    """What the probe compares with alpha: Holm over its prompts and all of them together."""
    tests = [compare_law(prompt(rng, requests, variation)) for _ in range(prompts)]
    return min(holm([test.p for test in (*tests, together(tests))]))


def test_by_simulation_a_probe_of_a_sound_engine_fails_at_most_once_in_a_thousand():
    rng = np.random.default_rng(2)
    assert sum(probe_p(rng, 2, 200) <= 1e-3 for _ in range(800)) <= 4


@pytest.mark.parametrize(
    ("prompts", "requests", "variation", "power"), [(4, 500, 0.3, 1.0), (2, 200, 0.3, 0.75), (4, 500, 0.15, 0.95)]
)
def test_by_simulation_a_law_that_is_off_is_seen(prompts, requests, variation, power):
    rng = np.random.default_rng(3)
    assert np.mean([probe_p(rng, prompts, requests, variation) <= 1e-3 for _ in range(60)]) >= power


def test_contexts_that_know_their_token_make_the_test_conservative():
    """Ten contexts, each with one certain token: the counts are the expectation itself."""
    found = compare_law([[Context({t: 20}, {t: 1.0}) for t in TOKENS[:10]]])
    assert (found.p, found.statistic, found.total_variation) == (1.0, 0.0, 0.0)


def test_a_token_that_cannot_be_is_seen_even_where_one_token_is_certain():
    sound = Context({"a": 500}, {"a": 1.0})
    broken = Context({"a": 490, "b": 10}, {"a": 1.0})
    rare = Context({"a": 498, "b": 2}, {"a": 0.997, "b": 0.003})
    assert compare_law([[sound]]).p == 1.0
    assert compare_law([[broken]]).p < 1e-12
    assert compare_law([[rare]]).p > 0.3


def test_rare_tokens_are_pooled_over_contexts_then_as_the_rest():
    contexts = [Context({"a": 8, "b": 2}, {"a": 0.6, "b": 0.4}), Context({"b": 5, "c": 5}, {"b": 0.4, "c": 0.3})]
    assert cells(contexts) == [(7, 8.0), (8, 6.0), (5, pytest.approx(6.0))]  # b of both; a of the first; c and others


def test_nothing_to_compare_is_no_rejection():
    assert compare_law([]).p == 1.0
    assert compare_law([[], [Context({}, {"a": 1.0})]]).degrees == 0
    assert compare_law([[Context({"a": 1, "b": 2}, {"a": 0.5})]]).degrees == 0


def test_total_variation_is_half_the_sum_of_differences():
    assert compare_law([[Context({"a": 60, "b": 40}, {"a": 0.5, "b": 0.5})]]).total_variation == pytest.approx(0.1)
    assert compare_law([[Context({"a": 60, "z": 40}, {"a": 0.9})]]).total_variation == pytest.approx(0.3)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_only_raises_p_and_keeps_the_order(ps):
    adjusted = holm(ps)
    assert all(p <= q <= 1 for p, q in zip(ps, adjusted, strict=True))
    assert min(adjusted) == min(1.0, min(ps) * len(ps))
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_holm_of_known_values():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
